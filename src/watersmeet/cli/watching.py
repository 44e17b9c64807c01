"""What `dashboard` and `top` look at: checkpoints, event files, traces, or a topology and its sites anywhere."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.cli.options import add_parameters
from watersmeet.metrics.jsonl import KEPT
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import Topology
from watersmeet.topology.parameters import parse_settings

if TYPE_CHECKING:
    from watersmeet.dashboard.watcher import Watcher
    from watersmeet.spark.links.board import Elsewhere

_TOPOLOGIES = (".yaml", ".yml")


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Declare what is looked at."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="CHECKPOINT_OR_EVENTS",
        help="a checkpoint directory (of all sites, or one of each), a file of --events, one of simulate --trace, or a "
        "topology file: then sites that run elsewhere are found through their links",
    )
    add_parameters(parser)


@contextlib.contextmanager
def watched(options: argparse.Namespace) -> Iterator["Watcher"]:
    """Follow what the options name; sites elsewhere are asked for their events until it ends."""
    from watersmeet.dashboard.watcher import Watcher

    named = [Path(path) for path in options.paths]
    given = [path for path in named if path.suffix.lower() in _TOPOLOGIES and path.is_file()]
    if not given:
        yield Watcher(named)
        return
    topologies = [load_topology(path, parse_settings(options.parameters)) for path in given]
    places = [path for path in named if path not in given]
    with contextlib.ExitStack() as closing:
        far = [_elsewhere(topology) for topology in topologies]
        watcher = Watcher([*places, *(root for root, _, _ in far)], elsewhere=[aside for _, aside, _ in far])
        for _, _, sites in far:
            if sites is not None:
                sites.wants_answers = lambda: watcher.wants_answers
                sites.start()
                closing.callback(sites.close)
        yield watcher


def _elsewhere(topology: Topology) -> tuple[Path, Path, "Elsewhere | None"]:
    """The checkpoint of a topology here, where events of sites elsewhere are kept, and what asks these for them."""
    from watersmeet.spark.links.board import Elsewhere, open_board
    from watersmeet.spark.run import checkpoint_root

    root = checkpoint_root(topology, None)
    aside = Path(topology.directory) / ".watersmeet" / "elsewhere"
    aside.mkdir(parents=True, exist_ok=True)
    if len(topology.site_names) == 1:
        return root, aside, None
    board = open_board(topology, "events")
    return root, aside, Elsewhere(topology, board, aside, lambda site: (root / site / KEPT).exists())
