"""What a site does for one join: the node operator set (adaptive paper, 4.1), as values; `compile.py` builds it.

Everything a site does is one of seven operators over flows of rows, and shipping a flow to another site:

    Probe     new rows of a head look up the windows of the others by one key (delta join): the symmetric multi-way join
    Join      pairs of a left row and a right row whose intervals meet, each exactly once
    Pair      the same for results of a tree, which are intervals themselves: until the first of their rows expires
    Semijoin  a subject row, as soon as a first witness meets it: the reduction step of all semijoins
    Gather    several semijoins of one stream for one other site, as one flow: each row once, at its first match of any
    Announce  the distinct keys of a window as intervals of presence: V2 of the paper, kept in step by event time
    Project   the distinct keys of new rows, with the time range they are asked for: K1 of the paper

With N1 the site of the partial combinations and N2 the home of the stream they are joined with:

    SP-S   N2 ships its rows; join at N1
    SP-D   N1 ships its partial combinations; join at N2
    SM-S1  N1 projects and ships keys; N2 semijoins its window by them and ships the hits; join at N1
    SM-S2  N2 announces keys; N1 semijoins them by its rows, ships those wanted; N2 ships their rows; join at N1
    SM-D1  N2 announces keys; N1 semijoins its rows by them and ships the hits; join at N2
    SM-D2  N1 projects and ships keys; N2 semijoins its announcements by them, ships those found; N1 as in SM-D1

A tree (tree ordering; PMJoin's MJoins) has one join for both directions: an input comes whole, or reduced by the keys
that its partner announces (one step) or is asked about (two steps).

A plan with several sub-plans is the union of their programs: what two of them share is there once, and where they
differ an operator or a shipment is for the rows of its own sub-plans, which the value of the partition's key decides.

Every operator has a low watermark, the lowest watermark of its inputs, which is that of its output; a row is kept until
its interval ends before the low watermark of every operator that reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from watersmeet.plan.nodes import JoinPlan, Key

SubPlans = tuple[int, ...] | None  # the sub-plans that something is for; None is all of them


class Purpose(StrEnum):
    """What the bytes on a link are for."""

    TUPLES = "full tuples"
    KEYS = "keys"
    FILTERS = "filters"
    SYNC = "window sync"
    RESULTS = "results"
    RECORDS = "partial aggregates"
    TABLES = "tables"  # rows of tables, once a version, and their versions
    WATERMARKS = "watermarks"
    MIGRATION = "migration"  # rows of windows that a new version of a join needs and had not been sent
    AGREEMENT = "agreement"  # on the instant at which a new version takes over
    OBSERVATIONS = "observations"  # statistics for whoever decides on plans


class Form(StrEnum):
    """What the rows of a flow are, and so which interval a row stands for (see program.axis)."""

    POINT = "point"  # a partial combination, at the time of its head
    ROW = "row"  # a row of a window, as long as it is visible
    INTERMEDIATE = "intermediate"  # a combination that a tree has made, as long as all its rows are visible
    SPAN = "span"  # a key, as long as it is present
    ASK = "ask"  # a key, for the time range it is asked for
    CLOCK = "clock"  # the timestamps of a stream's rows, in order
    PACE = "pace"  # no rows: only how far those who ask for a window's keys have got
    REACHED = "reached"  # no rows: only up to when all rows have been sent that one of several semijoins wants
    DELTA = "delta"  # what a stage of a probe has found, for the next stage of the same micro-batch
    RESULT = "result"  # a finished combination
    RECORD = "record"  # a partial state record of a group


@dataclass(frozen=True, slots=True)
class Flow:
    """A named stream of batches, the same at every site it reaches."""

    name: str
    form: Form
    purpose: Purpose
    bloom: bool = False  # its batches travel, and are kept, as Bloom filters of their keys
    alias: str = ""  # of a pace, whose keys are asked for; of a piece, the alias with the shortest window
    mark: str = ""  # of rows that are gathered for several: the flow whose watermark holds for this reader

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Lookup:
    """A window that a probe looks up; `checks` are the classes still to be compared on a hit."""

    alias: str
    rows: Flow
    checks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """New rows of a head, or what an earlier stage found for them, extended by the windows of others.

    A combination is found when the last of its rows arrives: aliases before the head show their new rows too, those
    after it only rows of earlier micro-batches. With ROWS windows rows are new when all watermarks have passed them.
    """

    head: str
    left: Flow
    lookups: tuple[Lookup, ...]
    key: Key
    bound: tuple[str, ...]  # aliases of the left rows
    carried: tuple[int, ...]  # classes that later stages need
    windows: tuple[Flow, ...]  # the rows of all aliases, in the order of the query
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, *(lookup.rows for lookup in self.lookups))

    @property
    def alias(self) -> str:
        return self.head


@dataclass(frozen=True, slots=True)
class Join:
    """Partial combinations of a head with the window of an alias."""

    head: str
    alias: str
    left: Flow
    right: Flow
    key: Key
    checks: tuple[int, ...]  # classes to compare on a hit
    bound: tuple[str, ...]  # aliases of the left rows
    carried: tuple[int, ...]  # classes that later joins of this head need
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two inputs of a tree joined, whichever side is later; each is about the window of an alias.

    Where windows count rows, pairs are found when the row clocks of all of them have passed the later side.
    """

    left: Flow
    right: Flow
    left_alias: str
    right_alias: str
    key: Key
    checks: tuple[int, ...]
    left_bound: tuple[str, ...]
    right_bound: tuple[str, ...]
    carried: tuple[int, ...]
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.left, self.right)

    @property
    def alias(self) -> str:
        return self.left_alias

    @property
    def aliases(self) -> tuple[str, ...]:
        """All aliases of its pairs."""
        return (*self.left_bound, *self.right_bound)


@dataclass(frozen=True, slots=True)
class Semijoin:
    """Rows of the subject that have met a witness, each once; about the window of an alias, for a head if any."""

    head: str
    alias: str
    subject: Flow
    witness: Flow
    key: Key
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.subject, self.witness)

    @property
    def has_rows(self) -> bool:
        """Whether rows of another window at the same site are its witness, in a tree, and not keys or a head's rows."""
        return not self.head and self.witness.form is Form.ROW


@dataclass(frozen=True, slots=True)
class Copy:
    """Gathered rows as another alias of their stream sees them, where they arrive."""

    flow: str
    columns: tuple[tuple[str, str], ...]  # name for this alias, name in what arrives
    bit: int | None = None  # of the rows that it takes; None is all


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of a stream that any of several semijoins finds, each once: what is the same row travels once.

    Each of them has a watermark of its own, by its own subject and witness: what one waits for holds up no other.
    """

    members: tuple[Semijoin, ...]  # the first has all columns that any of them needs; their outputs are the readers'
    reached: tuple[Flow, ...]  # one for each semijoin
    out: Flow
    copies: tuple[Copy, ...] = ()  # where they are of several aliases
    sub_plans: SubPlans = None

    @property
    def semijoins(self) -> tuple[Semijoin, ...]:
        """Its members, each for the sub-plans that it is for."""
        return tuple(replace(member, sub_plans=self.sub_plans) for member in self.members)

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return tuple(dict.fromkeys(flow for member in self.members for flow in member.inputs))

    @property
    def key(self) -> Key:
        return self.members[0].key

    @property
    def alias(self) -> str:
        return self.aliases[0]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases whose rows it finds: they are of one stream."""
        return tuple(dict.fromkeys(member.subject.name for member in self.members))

    def alias_of(self, flow: Flow) -> str:
        """The alias whose window an input is about."""
        found = (member.alias for member in self.members if flow == member.witness)
        return flow.name if flow.name in self.aliases else next(found)


@dataclass(frozen=True, slots=True)
class Announce:
    """When each key of an alias's window is present.

    A presence that goes on is announced again only when the watermark, or a tuple that may ask, gets to its end.
    """

    alias: str
    rows: Flow
    key: Key
    out: Flow
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True)
class ProjectKeys:
    """The keys of new partial combinations; those of a tree's input with the intervals that it stands for."""

    rows: Flow
    key: Key
    out: Flow
    alias: str = ""  # whose window the rows of a tree's input are about
    sub_plans: SubPlans = None

    @property
    def inputs(self) -> tuple[Flow, ...]:
        return (self.rows,)


Operator = Probe | Join | Pair | Semijoin | Gather | Announce | ProjectKeys
ROWLESS = (Form.PACE, Form.REACHED)  # like watermarks, they are not worth a line


@dataclass(frozen=True, slots=True)
class Ship:
    """A flow that goes to another site, as it is or as Bloom filters."""

    flow: Flow
    to: str
    arrives_as: Flow
    sub_plans: SubPlans = None

    @property
    def payload(self) -> str:
        """The name under which its rows are packed."""
        return self.arrives_as.name + sub_plans_name(self.sub_plans)


@dataclass(frozen=True)
class JoinProgram:
    """What one site does for one join: pure data. `program.site` overlays those of all queries and runs them."""

    site: str
    join: JoinPlan
    operators: tuple[Operator, ...] = ()
    ships: tuple[Ship, ...] = ()
    paces: tuple[tuple[Flow, Flow], ...] = ()  # pace reported from here, flow whose rows set it
    inbound: tuple[tuple[str, Flow], ...] = ()  # sender, flow
    local: tuple[str, ...] = ()  # aliases whose streams arrive here

    @property
    def is_query_site(self) -> bool:
        return self.join.site in (None, self.site)

    def paces_of(self, alias: str) -> tuple[str, ...]:
        """The paces that those who ask for an alias's keys report to this site."""
        return tuple(flow.name for _, flow in self.inbound if flow.form is Form.PACE and flow.alias == alias)


def sub_plans_name(sub_plans: SubPlans) -> str:
    """What tells names of the same thing for different sub-plans apart."""
    return "" if sub_plans is None else "~" + ".".join(map(str, sub_plans))


def rows_of(alias: str) -> Flow:
    """The rows of an alias, as they come at its home and wherever they are shipped."""
    return Flow(alias, Form.ROW, Purpose.TUPLES)


def clock_of(alias: str) -> Flow:
    """The row clock of an alias with a ROWS window."""
    return Flow(f"clock({alias})", Form.CLOCK, Purpose.SYNC)


def result_of(head: str) -> Flow:
    """The finished combinations of a head."""
    return Flow(f"answers({head})", Form.RESULT, Purpose.RESULTS)


def key_name(key: Key) -> str:
    """A key as it is shown."""
    return "+".join(f"K{number + 1}" for number in key) or "nothing"


def node_operators(program: JoinProgram) -> Iterator[str]:
    """The node operator set in the paper's notation: join(what, window), update(window), ship(flow, site)."""
    updated: set[str] = set()
    for operator in program.operators:
        match operator:
            case Probe():
                windows = ", ".join(lookup.alias for lookup in operator.lookups)
                yield f"probe({operator.left}: {windows} by {key_name(operator.key)}) -> {operator.out}"
                for lookup in operator.lookups:
                    if lookup.rows.name not in updated:
                        updated.add(lookup.rows.name)
                        yield f"update({lookup.rows})"
            case Join():
                yield f"join({operator.left}, {operator.alias}){_for(operator.sub_plans)}"
                if operator.right.name not in updated:
                    updated.add(operator.right.name)
                    yield f"update({operator.right})"
            case Pair():
                yield f"join({operator.left}, {operator.right}){_for(operator.sub_plans)}"
                for flow in (operator.left, operator.right):
                    if flow.name not in updated:
                        updated.add(flow.name)
                        yield f"update({flow})"
            case Semijoin():
                yield f"semijoin({operator.subject}, {operator.witness}) -> {operator.out}{_for(operator.sub_plans)}"
            case Gather():
                several = " or ".join(
                    f"semijoin({semijoin.subject}, {semijoin.witness})" for semijoin in operator.semijoins
                )
                yield f"{several} -> {operator.out}{_for(operator.sub_plans)}"
            case Announce():
                yield f"announce({operator.rows}) -> {operator.out}{_for(operator.sub_plans)}"
            case ProjectKeys():
                yield f"project({operator.rows}) -> {operator.out}{_for(operator.sub_plans)}"
    for ship in program.ships:
        if ship.flow.form not in ROWLESS:
            yield f"ship({ship.arrives_as}, {ship.to}){_for(ship.sub_plans)}"


def _for(sub_plans: SubPlans) -> str:
    if sub_plans is None:
        return ""
    return f" for sub-plan{'s' if len(sub_plans) > 1 else ''} {', '.join(str(sub_plan + 1) for sub_plan in sub_plans)}"
