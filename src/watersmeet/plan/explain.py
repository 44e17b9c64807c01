"""A plan as text or as plain data; the same on every run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import floor, inf, isfinite, log10
from typing import Any, assert_never

from watersmeet.cost.costs import Cost
from watersmeet.plan.nodes import (
    Distinct,
    Group,
    HashParts,
    HeadPlan,
    Hop,
    Input,
    Into,
    JoinNode,
    JoinPlan,
    Key,
    KeyClass,
    Leaf,
    Linear,
    Matching,
    OuterJoin,
    Partition,
    Plan,
    Project,
    RangeParts,
    Reduction,
    Restrict,
    Scan,
    Stage,
    SubPlan,
    Symmetric,
    Tree,
    ValueParts,
    join_plan_of,
)
from watersmeet.plan.partition import part_text
from watersmeet.planners.auto import Tried
from watersmeet.program.compile import compile_sites
from watersmeet.program.operators import Probe, Purpose, node_operators
from watersmeet.query.model import EVENT_TIME, Expression, Grouping, SelectItem
from watersmeet.query.outer import RelationKind
from watersmeet.query.windows import AsOf, Changes, counted

_MONTH_S = 30 * 86_400


def explain_text(plan: Plan, *, operators: bool = True) -> str:
    """The plan as an indented tree, with the operators of each site if wanted."""
    return "\n".join(_lines(plan, 0, operators))


def explain_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for JSON; every node says what it is under `node`."""
    data: dict[str, Any] = _plain(plan)
    return data


def estimate_text(
    planner: str,
    cost: Cost | None,
    batch_interval_s: float,
    note: str = "",
    tried: Sequence[Tried] = (),
    words: Mapping[str, str] | None = None,
) -> str:
    """Who made a plan, why it is taken, and what it is expected to cost, flow by flow; and the cost by planner.

    `words` says by flow what travels in it.
    """
    lines = [f"planned by {planner}" + (f": {note}" if note else "")]
    if cost is not None:
        lines += _why(cost, tried)
        lines.append(f"estimate, with a micro-batch every {batch_interval_s:g} s:")
        for flow in cost.flows:
            if flow.bytes_s:
                shown = (words or {}).get(flow.flow, flow.flow)
                what = f"{flow.origin} -> {flow.to}  {shown}  ({flow.purpose.value})"
                rows = "records" if flow.purpose is Purpose.RECORDS else "rows"
                line = f"  {what}: {_figure(flow.rows_s)} {rows}/s, {_figure(flow.bytes_s)} bytes/s"
                if flow.answers_s:
                    saved = 1 - flow.bytes_s / flow.answers_bytes_s if flow.answers_bytes_s else 0.0
                    line += f" instead of {_figure(flow.answers_s)} rows/s, {_figure(flow.answers_bytes_s)} bytes/s"
                    line += f" ({_figure(100 * saved)} % saved)" if saved > 0 else ""
                lines.append(line)
        rest = sum(size for size, _ in cost.overhead.values())
        lines.append(f"  watermarks and what parcels take: {_figure(rest)} bytes/s")
        lines += [
            f"  {origin} -> {to} in all: {_figure(size)} bytes/s" for (origin, to), size in cost.link_bytes.items()
        ]
        lines.append(
            f"  all links: {_figure(cost.bytes_s)} bytes/s in {_figure(cost.messages_s)} parcels/s, "
            f"price {_figure(cost.money_s * _MONTH_S)} a month (unit: price_per_gb), delay {_figure(cost.delay_s)} s"
        )
        for site, share in cost.cpu.items():
            kept = cost.state_rows.get(site, 0.0)
            lines.append(f"  site {site}: {_figure(100 * share)} % of a core, {_figure(kept)} rows kept")
        origin, to, used = cost.busiest
        if used > 1:
            lines.append(f"  too much for the link {origin} -> {to}: {_figure(100 * used)} % of its bandwidth")
    if tried:
        lines.append("cost by planner: (as the objective weighs it: bytes/s unless the query names another one)")
        lines += [
            f"  {result.planner}: " + (_figure(result.value) if result.join is not None else f"none; {result.reason}")
            for result in sorted(tried, key=lambda result: (result.value, result.planner))
        ]
    return "\n".join(lines)


def _why(cost: Cost, tried: Sequence[Tried]) -> list[str]:
    """Why the plan with this cost, of those that were tried: what the next one would ship, and what it has more of."""
    others = [one for one in tried if one.cost is not None and one.join is not None and one.planner != "auto"]
    dearer = [tried for tried in others if tried.cost is not None and tried.cost.bytes_s > cost.bytes_s * (1 + 1e-9)]
    if not dearer:
        return []
    runner = min(dearer, key=lambda tried: (tried.value, tried.planner))
    assert runner.cost is not None
    own, theirs = _bytes_by_purpose(cost), _bytes_by_purpose(runner.cost)
    more = {name: theirs.get(name, 0.0) - own.get(name, 0.0) for name in {*own, *theirs}}
    most = max(sorted(more), key=lambda name: more[name])
    times = runner.cost.bytes_s / cost.bytes_s if cost.bytes_s else inf
    return [
        f"why: the next best, {runner.planner}, would ship {_figure(runner.cost.bytes_s)} bytes/s, {_figure(times)} "
        f"times as much, above all more {most}: {_figure(theirs.get(most, 0.0))} instead of "
        f"{_figure(own.get(most, 0.0))} bytes/s"
    ]


def _bytes_by_purpose(cost: Cost) -> dict[str, float]:
    found = {"watermarks and what parcels take": sum(size for size, _ in cost.overhead.values())}
    for flow in cost.flows:
        found[flow.purpose.value] = found.get(flow.purpose.value, 0.0) + flow.bytes_s
    return found


def estimate_data(
    planner: str, cost: Cost | None, batch_interval_s: float, note: str, tried: Sequence[Tried]
) -> dict[str, Any]:
    """The same as plain data for JSON."""
    data: dict[str, Any] = {"planner": planner, "note": note, "batch_every_s": batch_interval_s}
    if cost is not None:
        data |= {
            "flows": [
                {
                    "from": flow.origin,
                    "to": flow.to,
                    "flow": flow.flow,
                    "purpose": flow.purpose.value,
                    "rows_s": flow.rows_s,
                    "bytes_s": flow.bytes_s,
                    "messages_s": flow.messages_s,
                    **(
                        {"answers_s": flow.answers_s, "answers_bytes_s": flow.answers_bytes_s} if flow.answers_s else {}
                    ),
                }
                for flow in cost.flows
            ],
            "links": [
                {"from": origin, "to": to, "bytes_s": size, "parcels_s": cost.overhead[origin, to][1]}
                for (origin, to), size in cost.link_bytes.items()
            ],
            "bytes_s": cost.bytes_s,
            "parcels_s": cost.messages_s,
            "price_s": cost.money_s,
            "delay_s": cost.delay_s,
            "cpu": cost.cpu,
            "state_rows": dict(cost.state_rows),
        }
    if tried:
        data["planners"] = {
            result.planner: result.value if result.join is not None else {"reason": result.reason} for result in tried
        }
    return data


def _figure(value: float) -> str:
    """A figure with three digits that count.

    >>> _figure(12345.6), _figure(0.12345), _figure(0.0)
    ('12,300', '0.123', '0')
    """
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - floor(log10(abs(value))))
    return f"{round(value, 2 - floor(log10(abs(value)))):,.{digits}f}"


def _lines(plan: Plan, depth: int, operators: bool) -> list[str]:
    pad = "  " * depth
    match plan:
        case Distinct(child):
            return [f"{pad}distinct", *_lines(child, depth + 1, operators)]
        case Group(child, grouping):
            lines, join = _group_lines(grouping, pad), join_plan_of(child)
            if {*join.homes} != {join.site}:
                lines.append(f"{pad}  answers made elsewhere travel to {join.site} as partial aggregates, not as rows")
            return [*lines, *_lines(child, depth + 1, operators)]
        case Project(child, select):
            columns = ", ".join(f"{_shown(item.expression)} AS {item.name}" for item in _named(select))
            return [f"{pad}project {columns}", *_lines(child, depth + 1, operators)]
        case Restrict(child, predicates):
            return [
                f"{pad}keep where {' AND '.join(_shown(predicate) for predicate in predicates)}",
                *_lines(child, depth + 1, operators),
            ]
        case OuterJoin(branches, matching, grouping):
            lines = [] if grouping is None else _group_lines(grouping, pad)
            lines += [f"{pad}distinct"] if matching.is_distinct else []
            lines.append(f"{pad}match rows of {len(branches)} joins, each decided when no partner can come any more")
            lines += [f"{pad}  {line}" for line in _relation_lines(matching)]
            for number, branch in enumerate(branches, start=1):
                lines += [f"{pad}  join {number}: {', '.join(_aliases(branch))}", *_lines(branch, depth + 2, operators)]
            return lines
        case Into(child, target):
            whose = f"rows of {target.name}" if target.is_stream else f"answers of {target.name}"
            return [f"{pad}{whose}", *_lines(child, depth + 1, operators)]
        case JoinPlan():
            return _sited_lines(plan, pad, operators) if len({*plan.homes, plan.site}) > 1 else _local_lines(plan, pad)
        case _:
            assert_never(plan)


def _relation_lines(matching: Matching) -> list[str]:
    """Which combinations are answers; a relation that only others look at says nothing."""
    relations, lines = matching.relations, []
    for relation in relations:
        rows, steps = relation, []
        while rows.kind is not RelationKind.ALL:
            if rows.kind is RelationKind.PART:
                kept = ", ".join(relations[rows.of].aliases)
                steps.append(f"whose part ({kept}) is a row of the outer join below")
                break
            others = [set(relations[matcher.relation].aliases) - set(rows.aliases) for matcher in rows.by]
            names = ", ".join(sorted(set().union(*others)))
            steps.append(f"{'with' if rows.kind is RelationKind.MATCHED else 'without'} a partner ({names})")
            rows = relations[rows.of]
        if relation.is_output:
            what = " and ".join(reversed(steps)) or "as they come"
            lines.append(f"answer rows of join {relation.branch + 1} ({', '.join(relation.aliases)}) {what}")
    return lines


def _aliases(plan: Plan) -> tuple[str, ...]:
    return tuple(scan.alias for scan in join_plan_of(plan).scans)


def _group_lines(grouping: Grouping, pad: str) -> list[str]:
    """The groups of a query; `key0` and `value0` are its keys and aggregates in order."""
    columns = ", ".join(f"{_group_shown(item.expression)} AS {item.name}" for item in _named(grouping.select))
    aggregates = ", ".join(
        f"value{i} = {aggregate.sql.replace('`', '')}" for i, aggregate in enumerate(grouping.aggregates)
    )
    keys = ", ".join([*(f"key{number}" for number in range(grouping.keys)), str(grouping.window)])
    lines = [f"{pad}answer each window once, when it has ended: {columns}"]
    if isinstance(grouping.window, Changes):
        keys = ", ".join(f"key{number}" for number in range(grouping.keys)) or "nothing"
        lines = [f"{pad}emit the changes of groups, up to the watermark: {columns}"]
    if grouping.limit is not None:
        order = ", ".join(
            f"{_group_shown(key.expression)}{' descending' if key.descending else ''}" for key in grouping.order
        )
        lines.append(f"{pad}  the first {grouping.limit} of each window by {order}")
    if grouping.having:
        lines.append(f"{pad}  keep where {' AND '.join(_group_shown(predicate) for predicate in grouping.having)}")
    lines.append(f"{pad}  group by {keys}{f': {aggregates}' if aggregates else ''}")
    return lines


def _group_shown(expression: Expression) -> str:
    return _shown(expression).replace("group.", "")


def _local_lines(join: JoinPlan, pad: str) -> list[str]:
    """A join whose streams all arrive where its answers are wanted."""
    ordered = any(counted(scan.window) is not None for scan in join.scans)
    order = "in event-time order, behind the watermark" if ordered else "as rows arrive"
    lines = [f"{pad}{_what(join)} {order}"]
    lines += [f"{pad}  {_class(key_class)}" for key_class in join.classes]
    lines += [f"{pad}  {line}" for line in _condition_lines(join)]
    if len(join.scans) > 1:
        lines += [f"{pad}  {line}" for sub_plan in join.sub_plans for line in sub_plan_lines(sub_plan, _tables(join))]
    indexes = _indexes(join)
    for scan in join.scans:
        keys = ", ".join(_key(key) for key in indexes[scan.alias])
        lines.append(f"{pad}  {_window(scan)}{f', indexed by {keys}' if keys else ''}")
        lines += [f"{pad}    where {_shown(expression)}" for expression in scan.filters]
    return lines


def _condition_lines(join: JoinPlan) -> list[str]:
    """The comparisons that are applied within the join, and when."""
    return [
        f"keep where {_shown(condition.expression)}, as soon as {' and '.join(condition.aliases)} have met"
        for condition in join.conditions
    ]


def _what(join: JoinPlan) -> str:
    return "read one stream" if len(join.scans) == 1 else f"join {len(join.scans)} windows"


def _named(select: Sequence[SelectItem]) -> list[SelectItem]:
    """The columns that have names of the user's: rows of views have their time beside them."""
    return [item for item in select if item.name != EVENT_TIME]


def _tables(join: JoinPlan) -> list[str]:
    return [scan.alias for scan in join.scans if isinstance(scan.window, AsOf)]


def _indexes(join: JoinPlan) -> dict[str, list[Key]]:
    """The keys by which the window of each alias is looked up."""
    found: dict[str, set[Key]] = {scan.alias: set() for scan in join.scans}
    for program in compile_sites(join).values():
        for operator in program.operators:
            looked_up = operator.lookups if isinstance(operator, Probe) else ()
            for name in (*(lookup.alias for lookup in looked_up), *(flow.name for flow in operator.inputs[1:])):
                if name in found:
                    found[name].add(operator.key)
    return {alias: sorted(keys) for alias, keys in found.items()}


def _sited_lines(join: JoinPlan, pad: str, operators: bool) -> list[str]:
    sites = {*join.homes, join.site} - {None}
    place = f"at {join.site}" if join.site is not None else "where they are made"
    lines = [f"{pad}{_what(join)} at {len(sites)} sites, answers {place}"]
    lines += [f"{pad}  {_class(key_class)}" for key_class in join.classes]
    lines += [f"{pad}  {line}" for line in _condition_lines(join)]
    if join.partition is None:
        lines += [f"{pad}  {line}" for line in sub_plan_lines(join.sub_plans[0], _tables(join))]
    else:
        lines.append(f"{pad}  {partition_text(join.partition, len(join.sub_plans))}")
        for number, sub_plan in enumerate(join.sub_plans):
            part = f"{_letter(join.partition.key_class)}: {part_text(join.partition, number)}"
            lines.append(f"{pad}  sub-plan {number + 1} ({part}):")
            lines += [f"{pad}    {line}" for line in sub_plan_lines(sub_plan, _tables(join))]
    for scan, home in zip(join.scans, join.homes, strict=True):
        lines.append(f"{pad}  {_window(scan)}, home {home}")
        lines += [f"{pad}    where {_shown(expression)}" for expression in scan.filters]
    for site, program in compile_sites(join).items() if operators else ():
        lines.append(f"{pad}  site {site}:{'' if program.operators or program.ships else ' takes answers'}")
        lines += [f"{pad}    {text}" for text in node_operators(program)]
    return lines


def sub_plan_lines(sub_plan: SubPlan, tables: Collection[str] = ()) -> list[str]:
    """One sub-plan: a line for each head, or a tree; rows of tables, by alias, are no heads."""
    if isinstance(sub_plan, Linear):
        return [f"new rows of {plan.head}: {_hops(plan)}" for plan in sub_plan.heads if plan.head not in tables]
    if isinstance(sub_plan, Symmetric):
        heads = [sequence for sequence in sub_plan.sequences if sequence.head not in tables]
        return [f"new rows of {s.head}: {' => '.join(map(_stage, s.stages))}" for s in heads]
    return [f"tree: {tree_text(sub_plan)}"]


def tree_text(tree: Tree) -> str:
    """A tree in one line.

    >>> tree_text(JoinNode("x", (Input(Leaf("a")), Input(Leaf("b"), Reduction.ONE_STEP))))
    '(a + b reduced in one step) at x'
    """
    match tree:
        case Leaf(alias):
            return alias
        case JoinNode(at, inputs):
            return f"({' + '.join(_input(item) for item in inputs)}) at {at}"


def _input(item: Input) -> str:
    steps = {
        Reduction.NONE: "",
        Reduction.ONE_STEP: " reduced in one step",
        Reduction.TWO_STEP: " reduced in two steps",
    }
    by = ", ".join(one.alias + (" (Bloom filter)" if one.bloom else "") for one in item.reducers)
    first = f" reduced first by keys of {by}" if by else ""
    if first and item.reduction is not Reduction.NONE:
        first += ", then"
    return f"{tree_text(item.node)}{first}{steps[item.reduction]}{' with Bloom filters' if item.bloom else ''}"


def partition_text(partition: Partition, sub_plans: int) -> str:
    """Which values of a key belong to which sub-plan."""
    letter = _letter(partition.key_class)
    match partition.parts:
        case HashParts(buckets):
            return f"{sub_plans} sub-plans by a hash of {letter} in {len(buckets)} buckets"
        case RangeParts(bounds):
            return f"{sub_plans} sub-plans by {len(bounds) + 1} ranges of {letter}"
        case ValueParts(values, _, others):
            return f"{sub_plans} sub-plans by {len(values)} values of {letter}, all others sub-plan {others + 1}"


def _hops(plan: HeadPlan) -> str:
    return ", ".join(_hop(hop) for hop in plan.hops)


def _hop(hop: Hop) -> str:
    place = f" at {hop.at}" if hop.at is not None else ""
    return f"{hop.alias} by {hop.method.value}{' with Bloom filters' if hop.bloom else ''}{place}"


def _class(key_class: KeyClass) -> str:
    kind = "compared as 64-bit values" if key_class.exact else "hashed to 64 bits, compared again on a hit"
    members = " = ".join(_shown(member) for member in key_class.members)
    return f"key {_letter(key_class.number)}: {members}; {kind}"


def _window(scan: Scan) -> str:
    kept = ", ".join(_shown(item.expression) for item in scan.kept) or "no columns"
    if isinstance(scan.window, AsOf):
        return f"{str(scan.window).lower()} {scan.alias}: {scan.stream}, keeps {kept}"
    return f"window {scan.alias}: {scan.stream} [{scan.window}], keeps {kept}"


def _stage(stage: Stage) -> str:
    probes = [
        probe.alias + _also([_letter(number) for number in probe.checks if number not in stage.key])
        for probe in stage.probes
    ]
    return f"by {_key(stage.key)} probe {', '.join(probes)}"


def _also(classes: list[str]) -> str:
    return f" (and compare {', '.join(classes)})" if classes else ""


def _key(key: Key) -> str:
    return "+".join(_letter(number) for number in key) or "nothing"


def _letter(number: int) -> str:
    return f"K{number + 1}"


def _shown(expression: Expression) -> str:
    return expression.sql.replace("`", "")


def _plain(value: Any) -> Any:
    if isinstance(value, Expression):
        return _shown(value)
    if is_dataclass(value) and not isinstance(value, type):
        data = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
        return {"node": type(value).__name__, **data}
    if isinstance(value, tuple):
        shown = (item for item in value if not isinstance(item, SelectItem) or item.name != EVENT_TIME)
        return [_plain(item) for item in shown]
    return value
