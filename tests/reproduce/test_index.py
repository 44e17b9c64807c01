"""The page of all figures names every experiment, with a plot that is there."""

import re
from pathlib import Path

from watersmeet.reproduce import EXPERIMENTS

PAGE = Path(__file__).resolve().parents[2] / "docs/reproduce/index.md"


def test_every_experiment_has_a_line_with_its_plot_and_a_verdict() -> None:
    lines = re.findall(r"^\| !\[\]\((.+?)\.svg\) \| `(.+?)` \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for _, name, _ in lines) == sorted(experiment.name for experiment in EXPERIMENTS)
    for plot, name, verdict in lines:
        assert plot == name and PAGE.with_name(f"{plot}.svg").exists(), name
        assert re.match(r"matches|partly|differs|other measure|ours|as table", verdict), name
