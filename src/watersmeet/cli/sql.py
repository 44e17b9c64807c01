"""`watersmeet sql`: a prompt over a topology: type a query, see its plan, cost and first answers, keep it."""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from watersmeet.cli.options import Subparsers, add_parameters, spark_options
from watersmeet.cli.session import spark_session
from watersmeet.cli.tables import counted, print_table
from watersmeet.errors import InputError, WatersmeetError, did_you_mean
from watersmeet.topology.keep import with_query
from watersmeet.topology.load import load_topology
from watersmeet.topology.model import LinkTransport, Query, Topology
from watersmeet.topology.parameters import parse_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HELP = """\
a query, over as many lines as you like, ends with ;   its plan, its cost and its first answers are shown
.streams            the streams and tables and their columns
.keep NAME          add the last query to the file, with its answers at out/NAME
.help   .quit"""
_COMMANDS = (".streams", ".keep", ".help", ".quit", ".exit")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "sql",
        parents=[spark_options()],
        help="a prompt: type queries over a topology, see plans, costs and first answers, keep what you like",
        description=f"Commands at the prompt:\n{_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topology", nargs="?", default="topology.yaml", help="the topology file (default: %(default)s)")
    parser.add_argument("--rows", metavar="N", type=int, default=10, help="answers to show (%(default)s)")
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=30.0, help="how long to wait for them (%(default)s)"
    )
    add_parameters(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Read queries and commands until the input ends."""
    if options.rows <= 0 or options.seconds <= 0:
        raise InputError("--rows and --seconds must be more than 0")
    path, parameters = Path(options.topology), parse_settings(options.parameters)
    load_topology(path, parameters)
    console = Console(highlight=False)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and a history
    with spark_session(options) as spark:
        prompt = _Prompt(path, parameters, spark, console, options.rows, options.seconds)
        for statement in _statements():
            try:
                if not prompt.obey(statement):
                    break
            except WatersmeetError as error:
                console.print(f"watersmeet: {error}", soft_wrap=True, markup=False)
    return 0


def _statements() -> Iterator[str]:
    """Commands, each on a line, and queries up to their semicolon."""
    lines: list[str] = []
    while True:
        try:
            line = input(("sql> " if not lines else "...> ") if sys.stdin.isatty() else "")
        except EOFError:
            break
        except KeyboardInterrupt:  # forget what was typed
            print()
            lines = []
            continue
        if not lines and line.strip().startswith("."):
            yield line.strip()
        elif line.strip() or lines:
            lines.append(line)
            if line.rstrip().endswith(";"):
                yield "\n".join(lines).strip().removesuffix(";")
                lines = []
    if lines:
        yield "\n".join(lines).strip()


@dataclass
class _Prompt:
    path: Path
    parameters: Mapping[str, str]
    spark: "SparkSession"
    console: Console
    rows: int
    seconds: float
    last: str | None = None  # the query that can be kept

    def obey(self, statement: str) -> bool:
        """Do what a statement says; whether to go on."""
        command, _, argument = statement.partition(" ")
        match command:
            case ".quit" | ".exit":
                return False
            case ".help":
                self._say(_HELP)
            case ".streams":
                from watersmeet.spark.ingest.tables import with_table_schemas

                for stream in with_table_schemas(self.spark, load_topology(self.path, self.parameters)).sources:
                    columns = ", ".join(f"{name} {kind}" for name, kind in stream.types.items())
                    kind = f"event time {stream.event_time_column}" if stream.event_time else "a table"
                    self._say(f"{stream.name}: {columns}; {kind}")
            case ".keep":
                self._keep(argument.strip())
            case _ if statement.startswith("."):
                raise InputError(f"unknown command {command!r}; {did_you_mean(command, _COMMANDS)}")
            case _ if statement:
                self._ask(statement)
        return True

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def _ask(self, sql: str) -> None:
        """Show the plan and the cost of a query, and its first answers."""
        from watersmeet.plan.explain import estimate_text, explain_text
        from watersmeet.plan.explain_words import flow_words
        from watersmeet.plan.nodes import join_plan_of
        from watersmeet.planners.choose import estimate
        from watersmeet.spark.planning import plan_queries

        topology = load_topology(self.path, self.parameters)
        site = next((query.site for query in topology.queries if query.site is not None), None)
        query = Query("prompt", sql, site=site)
        planned = plan_queries(self.spark, topology, [query])
        for chosen in planned.plans.values():
            self._say(explain_text(chosen.plan, operators=False))
            cost, interval_s = estimate(chosen), chosen.batch_interval_s
            words = flow_words(join_plan_of(chosen.plan)) if cost is not None else {}
            text = estimate_text(chosen.planner, cost, interval_s, chosen.note, chosen.tried, words)
            self._say("  " + text.replace("\n", "\n  "))
        self.last = sql
        names = [item.name for item in planned.bounds[query.name].query.output]
        answers, is_all = self._first_answers(topology, query)
        table = Table(*names, title=self._title(answers, is_all=is_all), title_justify="left", min_width=24)
        for row in answers[: self.rows]:
            table.add_row(*map(str, row))
        print_table(table, self.console)

    def _title(self, answers: list[Any], *, is_all: bool) -> str:
        if is_all and len(answers) <= self.rows:
            return f"all {counted(len(answers), 'answer', 'answers')} to the data there is"
        shown = min(len(answers), self.rows)
        return f"the first {counted(shown, 'answer', 'answers')}" if shown else f"no answer in {self.seconds:g} seconds"

    def _first_answers(self, topology: Topology, query: Query) -> tuple[list[Any], bool]:
        """Answers to the data that is there, as many as are shown; and whether these are all."""
        from watersmeet.spark.run import start

        found: list[Any] = []

        def take(rows: "DataFrame", batch: int) -> None:
            if len(found) <= self.rows:
                found.extend(map(tuple, rows.limit(self.rows + 1).collect()))

        with tempfile.TemporaryDirectory(prefix="watersmeet-") as place:
            links = LinkTransport(path=f"{place}/links")
            alone = replace(topology, queries=(replace(query, foreach_batch=take),), link_transport=links)
            settings: dict[str, Any] = {"spark": self.spark, "checkpoint": f"{place}/checkpoint", "warn": None}
            handle = start(alone, once=_ends(topology), **settings)
            deadline = time.monotonic() + self.seconds
            try:
                has_ended = False
                while not has_ended and len(found) <= self.rows and time.monotonic() < deadline:
                    has_ended = bool(handle.awaitTermination(0.1))
            finally:
                handle.stop()
        return found, has_ended

    def _keep(self, name: str) -> None:
        if self.last is None:
            raise InputError("there is no query to keep yet; type one first")
        if not name:
            raise InputError("say under which name, as in .keep first_try")
        topology = load_topology(self.path, self.parameters)
        if any(query.name.casefold() == name.casefold() for query in topology.queries):
            raise InputError(f"the file has a query {name!r} already; choose another name")
        before = self.path.read_text(encoding="utf-8")
        after = with_query(before, name, self.last, f"out/{name}")
        self.path.write_text(after, encoding="utf-8")
        try:
            kept = load_topology(self.path, self.parameters).queries
            if kept[:-1] != topology.queries or kept[-1].sql.split() != self.last.split():
                raise InputError("the query cannot be added to this file as it is written; add it by hand")
        except WatersmeetError:
            self.path.write_text(before, encoding="utf-8")
            raise
        self._say(f"kept as query {name} in {self.path}; its answers go to out/{name}")


def _ends(topology: Topology) -> bool:
    """Whether all streams can be read to an end: not a generator without one."""
    sources = [stream.source for stream in topology.streams]
    return all(source is None or source.format != "generator" or "rows" in source.options for source in sources)
