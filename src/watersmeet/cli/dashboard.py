"""`watersmeet dashboard`: a web page about a run, while it goes on or afterwards."""

import argparse
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from watersmeet.cli.options import Subparsers, check_port, debug_option
from watersmeet.cli.watching import add_paths, watched
from watersmeet.errors import InputError

PORT = 8642


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "dashboard",
        parents=[debug_option()],
        help="show a run on a web page: a checkpoint, an event file, or a trace of simulated peers",
        description="Serve a page about a run on the loopback address until Ctrl-C: sites and links, queries, what "
        "happened, latest answers, simulated peers. It reads the events that every run keeps in its checkpoint; the "
        "run goes on, has ended, or is started later. Given a topology, sites that run elsewhere (`watersmeet site`) "
        "are asked for theirs through their links. History is kept in the checkpoint.",
    )
    add_paths(parser)
    parser.add_argument("--port", type=int, default=PORT, help="(default: %(default)s; 0 is any free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s; any other asks for a token)"
    )
    parser.add_argument("--while-stdin", action="store_true", help=argparse.SUPPRESS)  # of `run --dashboard`
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    check_port("--port", options.port)
    try:
        from watersmeet.dashboard.server import Server
    except ImportError as error:
        raise InputError(
            f"the dashboard needs {error.name}; install it with `pip install 'watersmeet[dashboard]'`"
        ) from None
    with watched(options) as watcher:
        server = Server(watcher, options.host, options.port)
        print(f"watersmeet: dashboard at {server.url}", file=sys.stderr, flush=True)
        if options.while_stdin:
            threading.Thread(target=_stop_at_end_of_input, args=(server.stop,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    return 0


def _stop_at_end_of_input(stop: Callable[[], None]) -> None:
    sys.stdin.read()
    stop()


@contextlib.contextmanager
def beside(checkpoint: Path, port: int) -> Iterator[None]:
    """A dashboard of a run in a process of its own, which takes no time of the run's, until the run has ended."""
    command = [sys.executable, "-m", "watersmeet", "dashboard", str(checkpoint), "--port", str(port), "--while-stdin"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
