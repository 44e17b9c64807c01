"""What new versions of joins share with those in force: streams that are sent, and rows that are stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from watersmeet.program.operators import Form, Operator, Pair, Probe
from watersmeet.program.site.deployment import (
    Deployment,
    Joined,
    SentStream,
    parts_of,
    programs_of,
    sent_streams,
    stream_ships,
)
from watersmeet.program.site.nearest import Holder, Holding, nearest
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.roles import axis_alias, reads_window, stored_inputs
from watersmeet.program.site.streams import View, clock_flow, ordered_flow
from watersmeet.query.windows import Window, counted


def reusing(
    now: Deployment, added: list[Joined], revision: int, holdings: Mapping[str, Holding]
) -> tuple[list[Joined], list[SentStream]]:
    """New joins with the names of what they use: streams that are sent already, and rows that are stored already."""
    before = programs_of(now)
    in_force = _sent_in_force(now)
    names: dict[str, dict[str, dict[str, str]]] = {joined.name: {} for joined in added}
    more: list[SentStream] = []
    # Joins of queries that begin need no rows from before, so they share what is sent; others may need different rows.
    # A copy of a join goes on with the relations and flows of that one.
    own = [joined for joined in added if not joined.copy_of]
    groups = [[joined for joined in own if joined.is_fresh], *([joined] for joined in own if not joined.is_fresh)]
    for number, group in enumerate(groups):
        bare = parts_of(replace(now, joins=tuple(group)))
        ending = f"#{revision}" if number == 0 else f"#{revision}.{number}"
        for site in now.sites:
            ships = stream_ships(bare[site])
            for wanted in sent_streams(bare[site], {scan.stream: scan.stream + ending for scan in now.scans}):
                users = {part.name for part, _ in ships[wanted.stream, wanted.to]}
                has_clock = any(ship.flow.form is Form.CLOCK for _, ship in ships[wanted.stream, wanted.to])
                there = [part for part in bare[wanted.to] if part.name in users]
                known = [sent for sent in now.sent if _serves(before, in_force, sent, wanted, there, has_clock)]
                if not known:
                    holders = [] if has_clock else list(_holders(now, before, in_force, wanted, there, holdings))
                    more.append(replace(wanted, holder=nearest(site, wanted.to, holders, holdings)))
                for name in sorted(users):
                    names[name].setdefault(wanted.to, {})[wanted.stream] = (known or [wanted])[0].name
    named = [joined if joined.copy_of else replace(joined, names=names[joined.name]) for joined in added]
    parts = parts_of(replace(now, joins=tuple(named)))
    apart: dict[str, dict[str, dict[str, str]]] = {joined.name: {} for joined in named}
    copies = {joined.name: bool(joined.copy_of) for joined in named}
    for site in now.sites:
        for part in parts[site]:
            if copies[part.name]:
                continue
            found = {base: f"{base}~{revision}" for base in _not_shared(before[site], part)}
            if found:
                apart[part.name][site] = found
    return [joined if joined.copy_of else replace(joined, apart=apart[joined.name]) for joined in named], more


def _serves(
    before: Mapping[str, SiteProgram],
    in_force: Mapping[tuple[str, str, str], bool],
    sent: SentStream,
    wanted: SentStream,
    parts: Iterable[JoinPart],
    has_clock: bool,
) -> bool:
    """Whether new joins can use what is sent of a stream already, with all rows of it that they need."""
    with_clock = in_force.get((sent.stream, sent.to, sent.name))
    if (sent.stream, sent.to) != (wanted.stream, wanted.to) or with_clock is None or (has_clock and not with_clock):
        return False
    program = before[sent.to]
    return _contains(sent, wanted) and (not program.history or _has_history(program, sent, parts, has_clock=has_clock))


def _holders(
    now: Deployment,
    before: Mapping[str, SiteProgram],
    in_force: Mapping[tuple[str, str, str], bool],
    wanted: SentStream,
    parts: Sequence[JoinPart],
    holdings: Mapping[str, Holding],
) -> Iterable[Holder]:
    """The sites that have all rows of the past of a stream, up to some instant, that new joins need elsewhere."""
    needs = _past_needed(wanted.stream, parts)
    is_table = any(scan.is_table for scan in now.scans if scan.stream == wanted.stream)
    if not now.history or not needs or is_table or any(view.ordered for view, _ in needs):
        return
    for sent in now.sent:
        mark = holdings[sent.to].marks.get(sent.name) if sent.to in holdings else None
        if sent.stream != wanted.stream or sent.to == wanted.to or mark is None or not _contains(sent, wanted):
            continue
        if (sent.stream, sent.to, sent.name) in in_force:
            relation = before[sent.to].covering(sent.name, [(view.selection, window) for view, window in needs])
            if relation is not None:
                yield Holder(sent.to, sent.name, relation, mark)


def _past_needed(stream: str, parts: Iterable[JoinPart]) -> list[tuple[View, Window]]:
    """The windows over a stream, of rows of before, that new joins read at a site."""
    return [
        (view, window)
        for part in parts
        if not part.is_fresh
        for view, window in windows_needed(part)
        if view.stream == stream
    ]


def _sent_in_force(now: Deployment) -> dict[tuple[str, str, str], bool]:
    """Streams that are sent for joins that nothing follows yet, by (stream, to, name), and whether with their clock."""
    found: dict[tuple[str, str, str], bool] = {}
    names = {joined.name: joined.names for joined in now.joins}
    for parts in parts_of(replace(now, joins=now.in_force)).values():
        for (stream, to), ships in stream_ships(parts).items():
            for part, ship in ships:
                slot = (stream, to, names[part.name].get(to, {}).get(stream, stream))
                found[slot] = found.get(slot, False) or ship.flow.form is Form.CLOCK
    return found


def _contains(sent: SentStream, wanted: SentStream) -> bool:
    """Whether what is sent of a stream has all that is wanted."""
    return (
        set(wanted.columns) <= set(sent.columns)
        and set(wanted.keys) <= set(sent.keys)
        and set(wanted.selections) <= set(sent.selections)
        and all(flow in sent.routes and sent.routes[flow] in (None, route) for flow, route in wanted.routes.items())
    )


def _has_history(before: SiteProgram, sent: SentStream, parts: Iterable[JoinPart], *, has_clock: bool) -> bool:
    """Whether a site that gets a stream has all rows of it that new joins need there, and the clock to count them."""
    needs = [
        (ordered_flow(sent.name) if view.ordered else sent.name, (view.selection, window))
        for view, window in _past_needed(sent.stream, parts)
    ]
    flows = {flow for flow, _ in needs}
    if any(before.covering(flow, [need for name, need in needs if name == flow]) is None for flow in flows):
        return False
    counts = [
        count
        for part in parts
        if not part.is_fresh and has_clock
        for scan in part.join.scans
        if scan.stream == sent.stream and (count := counted(scan.window)) is not None
    ]
    return not counts or max(counts) <= max(_counts_kept(before, clock_flow(sent.name)), default=0)


def _counts_kept(program: SiteProgram, clock: str) -> Iterable[int]:
    """How many rows back a row clock is kept at a site."""
    for part in program.parts:
        if part.is_in_force:
            concerned = {alias for operator in part.program.operators for alias in _concerned(part, operator)}
            for alias in concerned:
                window = part.join.scan(alias).window
                if (count := counted(window)) is not None and part.clock(alias) == clock:
                    yield count


def _concerned(part: JoinPart, operator: Operator) -> tuple[str, ...]:
    if isinstance(operator, Pair):
        return operator.aliases
    return tuple(part.views) if isinstance(operator, Probe) else (operator.alias,) if operator.alias else ()


def windows_needed(part: JoinPart) -> Iterable[tuple[View, Window]]:
    """The windows whose rows a join looks up at a site, as far as they are rows of streams."""
    for operator in part.program.operators:
        for flow in stored_inputs(operator):
            view = part.view_of(flow)
            if view is not None and reads_window(operator, flow):
                yield view, part.join.scan(axis_alias(operator, flow)).window


def _not_shared(before: SiteProgram, part: JoinPart) -> set[str]:
    """Relations that are there under the name a new join would use, but do not have all rows that it needs."""
    found: set[str] = set()
    if part.is_fresh:
        return found
    for operator in part.program.operators:
        for flow in stored_inputs(operator):
            view = part.view_of(flow)
            if view is None or not reads_window(operator, flow):
                continue
            relation = part.relation(flow, operator.key, operator.sub_plans)
            window = part.join.scan(axis_alias(operator, flow)).window
            if all(index.relation != relation for index in before.indexes.get(view.flow, ())):
                continue
            readers = [reader for reader in before.windows_read.get(relation, ()) if reader.is_whole]
            if not before.history or not any(reader.covers(view.selection, window) for reader in readers):
                found.add(relation)
    return found


def used(deployment: Deployment) -> Iterable[SentStream]:
    """What is sent of streams for any of the joins."""
    names = {joined.name: joined.names for joined in deployment.joins}
    slots = {
        (stream, to, names[part.name].get(to, {}).get(stream, stream))
        for parts in parts_of(deployment).values()
        for (stream, to), ships in stream_ships(parts).items()
        for part, _ in ships
    }
    return (sent for sent in deployment.sent if (sent.stream, sent.to, sent.name) in slots)
