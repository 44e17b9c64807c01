"""What operators and their host say to each other (PIER, sections 3.1.1 and 3.3.4).

Control is pulled: a probe goes from an operator to its sources by plain calls, and leaves state behind. Data are
pushed: batches go from a source to those that named it, by plain calls, with the tag of the probe that asked for them.
No operator blocks, opens anything or reads a clock: all that is the host's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from watersmeet.errors import UflError
from watersmeet.program.pier.algorithms import Algorithm
from watersmeet.program.pier.expressions import Malformed, compiled_condition, evaluated
from watersmeet.program.pier.graph import Expression, Operator
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch, Row, Schema

Address: TypeAlias = int
Tag: TypeAlias = int
Cancel: TypeAlias = Callable[[], None]
Take: TypeAlias = Callable[[Batch], None]


class ProbeKind(Enum):
    """What a probe asks for."""

    SET = "set"  # what is there now
    STREAM = "stream"  # what comes from now on
    BOTH = "both"  # first the one, then the other: a query that begins late catches up so (section 3.3.8)


@dataclass(frozen=True, slots=True)
class DataProbe:
    """A request for data.

    A set probe can be limited: by `key`, the values of a partitioning key, or by `condition`, a predicate of the
    source's own columns. A source that cannot look a key up gives all it has, and whoever asked compares.
    """

    kind: ProbeKind
    tag: Tag
    key: Row | None = None
    condition: Expression | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it asks for a part of a set (a set-predicate probe)."""
        return self.key is not None or self.condition is not None


class Host(Protocol):
    """The node on which an op-graph runs."""

    address: Address

    @property
    def now_us(self) -> int:
        """The node's clock."""

    def after(self, delay_us: int, action: Callable[[], None]) -> Cancel:
        """Let an action happen later."""

    def put(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        """Store a tuple in the DHT."""

    def renew(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        """Let a stored tuple live on, and store it again where it has been lost."""

    def send(self, namespace: str, key: str, suffix: str, batch: Batch, lifetime_us: int) -> None:
        """Route a tuple through the DHT, where nodes on the way see it."""

    def get(self, namespace: str, key: str, found: Callable[[Sequence[Batch]], None]) -> None:
        """Fetch the tuples of a partitioning key from the DHT."""

    def index(self, name: str, key: int, suffix: str, batch: Batch, lifetime_us: int) -> None:
        """Publish a tuple into a range index."""

    def look_up(self, name: str, low: int, high: int, found: Callable[[Sequence[Batch]], None]) -> None:
        """Fetch the tuples of a range index with keys from `low` to `high`."""

    def stored(self, namespace: str) -> Sequence[Batch]:
        """The tuples of a namespace that this node owns."""

    def on_stored(self, namespace: str, take: Take) -> Cancel:
        """Call back with tuples of a namespace as this node begins to own them."""

    def on_passing(self, namespace: str, change: Callable[[Batch], Batch]) -> Cancel:
        """Let tuples of a namespace that pass through this node be seen, and changed."""

    def transmit(self, address: Address, port: str, batch: Batch) -> None:
        """Send tuples straight to another node."""

    def listen(self, port: str, take: Take) -> Cancel:
        """Call back with tuples that are sent to a port of this node, those that came before first."""

    def owner_address(self, namespace: str, key: str) -> Address:
        """Who owns a key: an ideal directory of all nodes, which only experiments have."""

    def broadcast(self, port: str, batch: Batch) -> None:
        """Send tuples to a port of every node."""

    def aggregate(
        self,
        name: str,
        algorithm: Algorithm,
        period_us: int,
        begin_us: int,
        algebra: Any,
        local: Callable[[int], Any],
        at_root: Callable[[int, Any, int], None],
    ) -> tuple[Callable[[int, Any], None], Cancel]:
        """Take part in an aggregation by epochs: epoch e begins at `begin_us + e * period_us` of this node's clock.

        `local` is asked for this node's records when an epoch begins; at the root `at_root` gets the epoch, records and
        how many nodes are in them, each only once. Returns what adds records to an epoch later, and what ends it.
        """

    def table(self, name: str) -> Sequence[Batch]:
        """The tuples of a table that applications of this node have published."""

    def on_inserted(self, name: str, take: Take) -> Cancel:
        """Call back with tuples of a table as applications of this node publish them."""

    def fetch(
        self, address: Address, table: str, column: str, value: Any, found: Callable[[Sequence[Batch]], None]
    ) -> None:
        """Fetch tuples of a table of another node by the value of a column."""

    def read_csv(self, path: str, table: str, types: dict[str, str]) -> Sequence[Batch]:
        """Read a file with a header line."""

    def query_database(self, url: str, sql: str, table: str) -> Sequence[Batch]:
        """Ask a database."""


@dataclass(slots=True)
class Counters:
    """What one op-graph at one node has dropped or held back."""

    malformed: dict[str, int] = field(default_factory=dict)  # tuples by operator
    withheld: int = 0  # messages beyond the limit
    late: int = 0  # tuples and records of windows that had been answered


class Receiver(NamedTuple):
    """Whoever gets results instead of the node that sent the op-graph: a node, and its own name for its query."""

    address: Address
    query_id: str


class ReplyPath(Protocol):
    """The way to whoever asked."""

    def __call__(self, kind: str, operator: str, batch: Batch, receiver: Receiver | None = None) -> None:
        """Send tuples; the kind is result, tap or error."""


@dataclass(slots=True, eq=False)
class Context:
    """An op-graph at a node: its host, and the way to whoever asked."""

    host: Host
    query_id: str
    reply: ReplyPath
    counters: Counters = field(default_factory=Counters)
    cancels: list[Cancel] = field(default_factory=list)
    is_stopped: bool = False
    tags: int = 0
    numbers: int = 0

    def new_tag(self) -> Tag:
        """A tag that no other probe of this op-graph has."""
        self.tags += 1
        return self.tags

    def new_suffix(self) -> str:
        """A suffix that no other tuple of this query has."""
        self.numbers += 1
        return f"{self.host.address}.{self.numbers}"

    def after(self, delay_us: int, action: Callable[[], None]) -> Cancel:
        """Let an action happen later, unless the op-graph has stopped by then."""
        return self.host.after(delay_us, lambda: None if self.is_stopped else action())


ERROR_SCHEMA = Schema.of("errors", {"operator": "string", "tuples": "integer", "reason": "string", "node": "integer"})


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An operator that has been checked; one for all nodes, with what was compiled for it."""

    operator: Operator
    settings: Any
    make: Callable[["Plan", Context], "RunningOperator"]
    sends_errors: bool
    tap: str  # none, input, output or both
    sources: tuple[str, ...]
    kernels: dict[Any, Any] = field(default_factory=dict)


class RunningOperator:
    """An operator at a node; it passes probes on to its sources and tuples on to those that named it."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan, self.context = plan, context
        self.sources: list[RunningOperator] = []
        self.targets: list[tuple[RunningOperator, int]] = []

    def start(self) -> None:
        """The op-graph is complete and begins."""

    def probe(self, probe: DataProbe, asker: "RunningOperator | None" = None) -> None:
        """A request from above."""
        for source in self.sources:
            source.probe(probe, self)

    def push(self, batch: Batch, tag: Tag, port: int) -> None:
        """Tuples from the source of this number."""
        raise NotImplementedError

    def end(self, tag: Tag, port: int) -> None:
        """The source of this number has pushed all that a set probe asked for."""
        self.emit_end(tag)

    def emit(self, batch: Batch, tag: Tag) -> None:
        """Push tuples on."""
        if batch.rows:
            for target, port in self.targets:
                target.push(batch, tag, port)

    def gave(self, batch: Batch) -> None:
        """Tuples leave by another way than `emit`; whoever taps the operator sees them here."""

    def emit_end(self, tag: Tag) -> None:
        """Push an end-of-probe on."""
        for target, port in self.targets:
            target.end(tag, port)

    def compiled(self, name: str, schema: Schema, compile_it: Callable[[Schema], Any]) -> Any:
        """What is compiled for tuples of a kind; None, and an error report, if they are malformed."""
        key = (name, schema)
        found = self.plan.kernels.get(key)
        if found is None:
            try:
                found = compile_it(schema)
            except Malformed as error:
                found = error
            self.plan.kernels[key] = found
        return found

    def evaluated(self, kernel: Callable[[Row], Any], batch: Batch) -> tuple[list[Any], Sequence[Row]]:
        """A function over a batch, and the rows for which it does not fail; the others are dropped and counted."""
        values, failed = evaluated(kernel, batch.rows)
        if not failed:
            return values, batch.rows
        self.malformed(len(failed), "an expression fails")
        wrong = set(failed)
        return values, [row for place, row in enumerate(batch.rows) if place not in wrong]

    def satisfying(self, batch: Batch, condition: Expression | None) -> Batch:
        """The tuples for which a condition is true; those for which it cannot be evaluated are malformed."""
        if condition is None:
            return batch
        name = f"condition {id(condition)}"  # of this op-graph, so it is there as long as what is compiled for it
        kernel = self.compiled(name, batch.schema, lambda schema: compiled_condition(condition, schema))
        if isinstance(kernel, Malformed):
            self.malformed(len(batch.rows), str(kernel))
            return Batch(batch.schema, ())
        verdicts, rows = self.evaluated(kernel, batch)
        kept = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict]
        return batch if len(kept) == len(batch.rows) else Batch(batch.schema, kept)

    def malformed(self, tuples: int, reason: str) -> None:
        """Count tuples that are dropped, and report them if the operator was asked to."""
        name, counts = self.plan.operator.name, self.context.counters.malformed
        counts[name] = counts.get(name, 0) + tuples
        if self.plan.sends_errors:
            row = (name, tuples, reason, self.context.host.address)
            self.context.reply("error", name, Batch(ERROR_SCHEMA, (row,)))


Configure: TypeAlias = Callable[[SettingsReader, Operator], Any]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation of an operator: its settings, what runs, and how many sources it takes."""

    configure: Configure
    make: Callable[[Plan, Context], RunningOperator]
    least_sources: int = 1
    most_sources: int | None = 1  # None: any number


def no_settings(reader: SettingsReader, operator: Operator) -> None:
    """The settings of an operator that has none."""
    if operator.predicates:
        raise UflError(f"{reader.where}: it takes no predicates; put them into a selection")
