"""Op-graphs checked once, and set up at each node that gets them: operators, and the flows between them (3.3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass

from watersmeet.errors import UflError, did_you_mean
from watersmeet.program.pier.graph import Operator, OpGraph, UflQuery
from watersmeet.program.pier.operators.basic import NULL, PROJECTION, QUEUE, SELECTION, TEE, UNION, Queue
from watersmeet.program.pier.operators.eddy import EDDY, EDDY_PUT, Eddy, EddyPut
from watersmeet.program.pier.operators.flow import CACHE, DUPELIM, FLOWCONTROL, RESULT, FlowControl
from watersmeet.program.pier.operators.groupby import GROUPBY
from watersmeet.program.pier.operators.join import JOIN
from watersmeet.program.pier.operators.put import PUT
from watersmeet.program.pier.operators.scan import SCAN
from watersmeet.program.pier.operators.share import DECONSTRUCT, FRAGMENT, RECONSTRUCT
from watersmeet.program.pier.operators.top import TOP
from watersmeet.program.pier.runtime import Context, DataProbe, Implementation, Plan, ProbeKind, RunningOperator, Tag
from watersmeet.program.pier.settings import SettingsReader
from watersmeet.program.pier.tuples import Batch
from watersmeet.program.pier.ufl.format import format_ufl

# The first implementation of each is what an operator without one gets.
OPERATORS: Mapping[str, Mapping[str, Implementation]] = {
    "selection": SELECTION,
    "projection": PROJECTION,
    "tee": TEE,
    "union": UNION,
    "join": JOIN,
    "groupby": GROUPBY,
    "dupelim": DUPELIM,
    "scan": SCAN,
    "put": {**PUT, **EDDY_PUT},
    "result": RESULT,
    "flowcontrol": FLOWCONTROL,
    "queue": QUEUE,
    "cache": CACHE,
    "eddy": EDDY,
    "null": NULL,
    "top": TOP,
    "fragment": FRAGMENT,
    "deconstruct": DECONSTRUCT,
    "reconstruct": RECONSTRUCT,
}
TAPS = ("none", "input", "output", "both")
DURATION_US = 60_000_000  # of an op-graph that does not say


@dataclass(frozen=True, slots=True, eq=False)
class PreparedGraph:
    """An op-graph that has been checked; one for all nodes."""

    graph: OpGraph
    plans: Mapping[str, Plan]
    namespace: str | None  # with `resource`, the key whose owner alone gets it
    resource: str | None
    bounds: tuple[int, int] | None  # with `namespace`, a range of an index: who published into it gets it
    duration_us: int
    most_messages: int | None  # to whoever asked, from one node
    once: tuple[str, ...]  # columns by which whoever asked knows a result that came before
    size_bytes: int


def prepare(query: UflQuery) -> tuple[PreparedGraph, ...]:
    """Check all op-graphs of a query."""
    return tuple(_prepared(graph) for graph in query.graphs)


def _prepared(graph: OpGraph) -> PreparedGraph:
    reader = SettingsReader(graph.settings, f"line {graph.line}, opgraph {graph.name!r}")
    namespace, resource = reader.optional("ns"), reader.optional("rid")
    bounds = reader.bounds()
    if bounds is not None and (namespace is None or resource is not None):
        raise reader.fail("low and high are a range of the index ns, without rid; add ns, or leave rid out")
    if bounds is None and (namespace is None) != (resource is None):
        raise reader.fail("ns and rid go together; give both, or neither for all nodes")
    duration_us = reader.duration_us("duration", DURATION_US) or DURATION_US
    most_messages = reader.whole("limit", None)
    reader.done()
    if not graph.operators:
        raise reader.fail("it has no operators")
    plans = {operator.name: _planned(operator, graph) for operator in graph.operators}
    _check_links(graph, plans, reader)
    once = tuple(
        name for plan in plans.values() if _text(plan.operator, "type") == "result" for name in plan.settings.once
    )
    size_bytes = len(format_ufl(UflQuery((graph,))).encode())
    return PreparedGraph(graph, plans, namespace, resource, bounds, duration_us, most_messages, once, size_bytes)


def _text(operator: Operator, key: str) -> str:
    found = operator.settings.get(key)
    return found.casefold() if isinstance(found, str) else ""


def _planned(operator: Operator, graph: OpGraph) -> Plan:
    reader = SettingsReader.of(operator)
    kind = reader.text("type").casefold()
    if kind not in OPERATORS:
        raise reader.fail(f"unknown type {kind!r}; {did_you_mean(kind, OPERATORS)}")
    known = OPERATORS[kind]
    name = reader.text("implementation", next(iter(known))).casefold()
    if name not in known:
        raise reader.fail(f"unknown implementation {name!r} of {kind}; {did_you_mean(name, known)}")
    made = known[name]
    sources = reader.texts("sources")
    if len(sources) < made.least_sources or (made.most_sources is not None and len(sources) > made.most_sources):
        wanted = str(made.least_sources) if made.most_sources == made.least_sources else f"{made.least_sources} or more"
        if made.most_sources not in (None, made.least_sources):
            wanted = f"{made.least_sources} to {made.most_sources}"
        raise reader.fail(f"{kind} by {name} takes {wanted} sources, not {len(sources)}")
    settings = made.configure(reader, operator)
    sends_errors, tap = reader.flag("errors", default=False), reader.choice("tap", TAPS, "none")
    reader.done()
    return Plan(operator, settings, made.make, sends_errors, tap, sources)


def _check_links(graph: OpGraph, plans: Mapping[str, Plan], reader: SettingsReader) -> None:
    for name, plan in plans.items():
        where = f"line {plan.operator.line}, operator {name!r}"
        for source in plan.sources:
            if source not in plans:
                raise UflError(f"{where}: unknown source {source!r}; {did_you_mean(source, plans)}")
        if plan.make is EddyPut:
            eddy = plans.get(plan.settings)
            if eddy is None or eddy.make is not Eddy:
                raise UflError(f"{where}: {plan.settings!r} is no eddy of this op-graph")
        if plan.make is Eddy:
            for module in plan.settings.modules:
                if module not in plans or name not in plans[module].sources:
                    raise UflError(f"{where}: the module {module!r} is no operator that takes tuples from the eddy")
    _check_cycles(plans)


def _check_cycles(plans: Mapping[str, Plan]) -> None:
    """Each cycle needs a queue and a union: the one unwinds the stack, the other knows a probe that comes round."""
    for needed, kinds in (("queue", (Queue,)), ("union", (OPERATORS["union"]["basic"].make,))):
        left = {name: set(plan.sources) for name, plan in plans.items() if plan.make not in kinds}
        is_free = True
        while is_free:
            is_free = False
            for name in list(left):
                if not left[name] & left.keys():
                    del left[name]
                    is_free = True
        if left:
            name = min(left)
            line = plans[name].operator.line
            raise UflError(f"line {line}, operator {name!r}: it is in a cycle without a {needed}; put one into it")


class RunningGraph:
    """An op-graph at a node."""

    def __init__(self, prepared: PreparedGraph, context: Context) -> None:
        self.prepared, self.context = prepared, context
        self.operators: dict[str, RunningOperator] = {
            name: plan.make(plan, context) for name, plan in prepared.plans.items()
        }
        for name, operator in self.operators.items():
            for port, source in enumerate(prepared.plans[name].sources):
                operator.sources.append(self.operators[source])
                self.operators[source].targets.append((operator, port))
            if isinstance(operator, EddyPut):
                eddy = self.operators[operator.plan.settings]
                assert isinstance(eddy, Eddy)
                operator.eddy = eddy
            if operator.plan.tap != "none":
                _tap(operator)

    def start(self) -> None:
        """Begin: flow controls issue their probes; without any, each operator that nobody reads asks for all."""
        for operator in self.operators.values():
            operator.start()
        if not any(isinstance(operator, FlowControl) for operator in self.operators.values()):
            for operator in self.operators.values():
                if not operator.targets and operator.sources and not isinstance(operator, EddyPut):
                    operator.probe(DataProbe(ProbeKind.BOTH, self.context.new_tag()), None)

    def stop(self) -> None:
        """End: whatever comes from now on is not for this op-graph."""
        self.context.is_stopped = True
        for cancel in self.context.cancels:
            cancel()
        self.context.cancels.clear()


def _tap(operator: RunningOperator) -> None:
    """Send copies of what an operator gets or gives to whoever asked."""
    name, reply, push, emit = operator.plan.operator.name, operator.context.reply, operator.push, operator.emit

    def tapped_push(batch: Batch, tag: Tag, port: int) -> None:
        reply("tap", name, batch)
        push(batch, tag, port)

    def tapped_emit(batch: Batch, tag: Tag) -> None:
        if batch.rows:
            reply("tap", name, batch)
        emit(batch, tag)

    def gave(batch: Batch) -> None:
        reply("tap", name, batch)

    if operator.plan.tap in ("input", "both"):
        operator.push = tapped_push  # type: ignore[method-assign]
    if operator.plan.tap in ("output", "both"):
        operator.emit, operator.gave = tapped_emit, gave  # type: ignore[method-assign]
