"""What follows the joins of a micro-batch: from combinations to answers, in the ledger of a site.

Residual predicates and select list, matching of outer joins, groups, DISTINCT; partial records for other sites; and
what expressions fail for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import ExpressionFailed
from watersmeet.program.finish.changes import Values
from watersmeet.program.finish.failed import failed_sink, refuse_failed
from watersmeet.program.finish.model import Evaluated, Evaluator, Finish, answer_column
from watersmeet.program.finish.outer import MatchRows
from watersmeet.program.finish.shared import RecordShape
from watersmeet.program.join.axis import Clock
from watersmeet.program.operators import Form
from watersmeet.program.site.filing import Made, pack_for_others
from watersmeet.program.site.finishing import Finishing
from watersmeet.program.site.grouping import GroupRecords
from watersmeet.program.site.inputs import read_clock
from watersmeet.program.site.ledger import Answers, SiteLedger
from watersmeet.program.site.part import JoinPart
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.shared_groups import SharedGroups, SharedQuery, detached, regrouped, shared_query
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.model import Grouping
from watersmeet.query.outer import WHERE_HOLDS
from watersmeet.query.windows import Changes


class Answering:
    """Turns the combinations of one site into answers of its queries; holds no state."""

    def __init__(
        self,
        program: SiteProgram,
        shelf: Shelf,
        run_tasks: RunTasks[Any],
        evaluate: Evaluator,
        buckets_for: Callable[[int], int],
    ) -> None:
        self._program = program
        self._shelf = shelf
        self._finishing = Finishing(shelf, run_tasks, evaluate, buckets_for)
        self._records = GroupRecords(shelf, run_tasks)
        self._shared = SharedGroups(program, shelf, self._records)

    @cached_property
    def finishes(self) -> dict[str, list[tuple[JoinPart, Finish]]]:
        """By query, what follows each version of its join."""
        found: dict[str, list[tuple[JoinPart, Finish]]] = {}
        for part, finish in self._program.finishes:
            found.setdefault(finish.query, []).append((part, finish))
        return found

    @cached_property
    def feeders(self) -> dict[str, set[str]]:
        """By derived stream, the queries whose answers are its rows."""
        found: dict[str, set[str]] = {}
        for query, finishes in self.finishes.items():
            if finishes[-1][1].target.is_stream:
                found.setdefault(finishes[-1][1].target.name, set()).add(query)
        return found

    def given_until(self, queries: Iterable[str], ledger: SiteLedger) -> int:
        """The instant before which none of some queries gives an answer any more; those that are over hold up none."""
        reached: list[int] = []
        ends = [UNKNOWN]
        for query in queries:
            part, finish = self.finishes[query][-1]
            if finish.matching is not None:
                mark = ledger.closed.get(finish.definition, UNKNOWN)
            else:
                mark = self._answered_until([part for part, _ in self.finishes[query]], query, ledger)
            is_over = part.heads.until_us is not None and mark >= part.heads.until_us
            (ends if is_over else reached).append(mark)
        return min(reached, default=max(ends))

    def partial_records(
        self, ledger: SiteLedger, made: Sequence[Made]
    ) -> tuple[SiteLedger, list[Made], list[str | None]]:
        """Partial records of answers that are wanted at other sites: those of panes that have ended go there."""
        groups, marks, failed = dict(ledger.groups), dict(ledger.watermarks), dict(ledger.failed)
        records: list[Made] = []
        failed_paths: list[str | None] = []
        for shape, parts in self._shared_partials.items():
            self._shared.take(ledger, groups, made, [shape])
            first_open, marks[shape.name] = self._panes_ended(shape, parts, ledger)
            sent = self._shared.sent(groups, shape, first_open)
            records += [] if sent is None else [sent]
        for part, finish in self._program.partials:
            if finish.query in part.shared:
                continue
            grouping, flow = finish.grouping, part.records(finish.query, self._program.site)
            assert grouping is not None
            answers, evaluated = self._finished_results(part, finish, made, ledger)
            self._note_failed(finish.query, evaluated, failed, failed_paths)
            state = self._records.added(grouping, [] if answers is None else [answers], groups.get(flow, ()))
            now = self._answered_until([part], finish.query, ledger)
            if isinstance(grouping.window, Changes):  # an answer that has expired is needed too: nothing to wait for
                ended = self._records.united(grouping, state)
                if ended is not None:
                    payloads = pack_for_others(self._program, self._shelf, flow, ended, part)
                    records.append(Made(flow, ended.num_rows, payloads=payloads))
                marks[flow] = max(now, marks.get(flow, UNKNOWN))
                continue
            if now > marks.get(flow, UNKNOWN):
                pane_us = grouping.window.pane_us
                first_open = now // pane_us * pane_us
                if now == part.heads.until_us:  # another version follows: the pane that both share goes in two parts
                    first_open += pane_us
                state, ended = self._records.without_ended_panes(grouping, state, first_open)
                if ended is not None:
                    payloads = pack_for_others(self._program, self._shelf, flow, ended, part)
                    records.append(Made(flow, ended.num_rows, payloads=payloads))
                marks[flow] = now
            groups[flow] = self._records.merged(grouping, state)
        return replace(ledger, groups=groups, watermarks=marks, failed=failed), records, failed_paths

    def _sharing(self, part: JoinPart, finish: Finish) -> SharedQuery | None:
        """What a query that is answered here may share."""
        return self._sharing_queries.get((part.name, finish.query))

    @cached_property
    def _sharing_queries(self) -> dict[tuple[str, str], SharedQuery]:
        found = ((part, finish, shared_query(part, finish)) for part, finish in self._program.finishes)
        return {(part.name, finish.query): shared for part, finish, shared in found if shared is not None}

    @cached_property
    def _shared_partials(self) -> dict[RecordShape, list[JoinPart]]:
        """Shapes of queries that are answered elsewhere, and the joins of these."""
        found: dict[RecordShape, list[JoinPart]] = {}
        for part, finish in self._program.partials:
            if finish.query in part.shared:
                found.setdefault(part.shapes[finish.query], []).append(part)
        return found

    def _panes_ended(self, shape: RecordShape, parts: Sequence[JoinPart], ledger: SiteLedger) -> tuple[int, int]:
        """The first pane of a shape that has not ended, and the instant before which no more of its rows come.

        Where a version of a query ends, the pane goes in two parts: another version may be answered from elsewhere.
        """
        flows = [part.flow(operator.out) for part in parts for operator in part.program.operators]
        before = ledger.watermarks.get(shape.name, UNKNOWN)
        now = max(before, min(ledger.watermarks.get(flow, UNKNOWN) for flow in flows))
        first_open = now // shape.pane_us * shape.pane_us
        ends = [part.heads.until_us for part in parts if part.heads.until_us is not None]
        return first_open + (shape.pane_us if any(before < end <= now for end in ends) else 0), now

    def regrouped(self, ledger: SiteLedger, program: SiteProgram) -> SiteLedger:
        """The ledger with partial records where the next program looks for them."""
        return regrouped(self._records, ledger, program)

    def detached(self, ledger: SiteLedger, program: SiteProgram) -> SiteLedger:
        """The ledger with what queries still need of joins that are over, for the program without these."""
        return detached(self._records, ledger, self._program, program)

    def _note_failed(
        self, query: str, evaluated: Evaluated, failed: dict[str, int], failed_paths: list[str | None]
    ) -> None:
        if evaluated.failed:
            self.refuse_failed(query, evaluated.failed, evaluated.failed_paths, evaluated.cause)
            failed[query] = failed.get(query, 0) + evaluated.failed
            failed_paths.extend(evaluated.failed_paths)

    def _finished_results(
        self, part: JoinPart, finish: Finish, made: Sequence[Made], ledger: SiteLedger
    ) -> tuple[Answers | None, Evaluated]:
        """The combinations of a micro-batch after residual predicates and select list."""
        is_shared = finish.query in part.shared  # its rows are in shared records
        results = [
            filed for filed in made if not is_shared and filed.results is not None and _is_result_of(part, filed.flow)
        ]
        rows = sum(filed.rows for filed in results)
        paths = tuple(filed.results for filed in results if filed.results is not None)
        return self._finishing.rows(finish, paths, rows, ledger) if rows else (None, Evaluated(()))

    def answer(
        self,
        ledger: SiteLedger,
        made: Sequence[Made],
        due: Mapping[str, Sequence[tuple[JoinPart, Finish]]],
        given: dict[str, list[Answers]],
        failed_rows: Sequence[str | None],
    ) -> tuple[SiteLedger, list[str | None]]:
        """Finish the combinations of this micro-batch for some queries that are answered here.

        Answers are added to those of their targets; what expressions fail for, to what has failed before.
        """
        seen, rows_out = dict(ledger.seen), dict(ledger.rows_out)
        groups, closed, matching = dict(ledger.groups), dict(ledger.closed), dict(ledger.matching)
        failed, failed_paths = dict(ledger.failed), list(failed_rows)
        sharing = [shared for finishes in due.values() for version in finishes if (shared := self._sharing(*version))]
        self._shared.take(ledger, groups, made, dict.fromkeys(shared.shape for shared in sharing))
        answered = self._answered_together(ledger, groups, made, due)
        for query, finishes in due.items():
            for name, versions in _by_definition(finishes).items():
                pieces: list[Answers] = []
                by_branch: dict[int, list[Answers]] = {}
                for part, finish in versions:
                    found, evaluated = self._finished_results(part, finish, made, ledger)
                    self._note_failed(query, evaluated, failed, failed_paths)
                    by_branch.setdefault(finish.branch, []).extend([] if found is None else [found])
                    pieces += [] if found is None else [found]
                _, finish = versions[-1]
                until_us = self._answered_until([part for part, _ in versions], query, ledger)
                if finish.matching is not None:
                    pieces, until_us = self._matched(name, versions, by_branch, ledger, matching)
                    closed[name] = max(closed.get(name, UNKNOWN), until_us)
                    if finish.matching.is_distinct:
                        finish = finish.of_matched
                        pieces = self._finishing.compared(finish, pieces, ledger)
                if finish.grouping is not None:
                    parts = [part for part, _ in versions]
                    before = ledger.closed.get(name, UNKNOWN)
                    now = max(before, until_us)
                    arrived = self._records.arrived(finish.grouping, self._arrived_records(parts, query, made))
                    state = self._records.added(finish.grouping, pieces, (*groups.get(name, ()), *arrived))
                    more = (
                        self._shared.own((self._sharing(*version) for version in versions), groups)
                        if (name not in answered and now > before)
                        else ()
                    )
                    clock_of = self._clocks(parts, ledger)
                    groups[name], ended = self._ended_groups(query, finish.grouping, state, before, now, clock_of, more)
                    closed[name], pieces = now, list(answered.get(name, ()))
                    if ended:
                        found, evaluated = self._finishing.groups(finish, ended, ledger)
                        self._note_failed(query, evaluated, failed, failed_paths)
                        pieces += [] if found is None else [found]
                if finish.time_column is not None:
                    groups[name], pieces = self._finishing.first_answers(
                        finish, pieces, groups.get(name, ()), until_us, ledger
                    )
                if finish.distinct:
                    unseen = (self._finishing.kept_distinct(answers, finish, seen) for answers in pieces)
                    pieces = [answers for answers in unseen if answers is not None]
                if pieces:
                    target = finish.target.name
                    given.setdefault(target, []).extend(pieces)
                    rows_out[target] = rows_out.get(target, 0) + sum(answers.rows for answers in pieces)
        self._shared.evict(groups, closed, sharing)
        ledger = replace(ledger, seen=seen, groups=groups, closed=closed, rows_out=rows_out, failed=failed)
        return replace(ledger, matching=matching), failed_paths

    def to_deliver(
        self, ledger: SiteLedger, given: Mapping[str, Sequence[Answers]], failed_paths: Sequence[str | None]
    ) -> SiteLedger:
        """Put answers where sinks take them from, and what expressions fail for where queries keep it."""
        undelivered = dict(ledger.undelivered)
        for target, pieces in given.items():
            undelivered[target] = (*undelivered.get(target, ()), self._finishing.together(pieces))
        for query, answers in self._kept_failed(ledger.number, failed_paths):
            undelivered[failed_sink(query)] = (*undelivered.get(failed_sink(query), ()), answers)
        return replace(ledger, undelivered=undelivered)

    def _ended_groups(
        self,
        query: str,
        grouping: Grouping,
        state: tuple[Segment, ...],
        before: int,
        now: int,
        clock_of: Callable[[str], Clock],
        more: Sequence[pa.Table] = (),
    ) -> tuple[tuple[Segment, ...], tuple[pa.Table, ...] | Values | None]:
        if isinstance(grouping.window, Changes):
            return self._records.with_changes(query, grouping, state, before, now, clock_of)
        return self._records.without_ended_windows(query, grouping, state, before, now, more)

    def _answered_together(
        self,
        ledger: SiteLedger,
        groups: Mapping[str, tuple[Segment, ...]],
        made: Sequence[Made],
        due: Mapping[str, Sequence[tuple[JoinPart, Finish]]],
    ) -> dict[str, list[Answers]]:
        """By definition, the answers of queries that have no records but shared ones: those that are alike at once.

        Where an expression fails for a group of one of them, each is left to be answered by itself.
        """
        alike: dict[tuple[RecordShape, Grouping, str, int, int], list[SharedQuery]] = {}
        for query, finishes in due.items():
            for name, versions in _by_definition(finishes).items():
                shared = self._sharing(*versions[-1]) if len(versions) == 1 else None
                if shared is None or shared.finish.distinct or groups.get(name) or not groups.get(shared.shape.name):
                    continue
                is_direct = shared.part.program.operators and query not in shared.part.shared
                if is_direct or self._arrived_records([shared.part], query, made):
                    continue
                before = ledger.closed.get(name, UNKNOWN)
                now = max(before, self._answered_until([shared.part], query, ledger))
                slot = (shared.shape, shared.grouping, shared.finish.errors, before, now)
                alike.setdefault(slot, []).append(shared)
        answered: dict[str, list[Answers]] = {}
        for (*_, before, now), queries in alike.items():
            try:
                tables = self._shared.ended(queries, groups, before, now)
            except ExpressionFailed:  # of whose groups, each finds out by itself
                continue
            found = self._finishing.groups_together(queries, tables, ledger) if tables else {}
            if found is not None:
                answered |= {query.finish.definition: found.get(place, []) for place, query in enumerate(queries)}
        return answered

    def _clocks(self, parts: Sequence[JoinPart], ledger: SiteLedger) -> Callable[[str], Clock]:
        """The row clock of each alias of a join."""
        names = {alias: part.clock(alias) for part in parts for alias in part.views}
        return lambda alias: read_clock(self._shelf, ledger.clocks.get(names[alias], ()))

    def _matched(
        self,
        name: str,
        versions: Sequence[tuple[JoinPart, Finish]],
        by_branch: Mapping[int, Sequence[Answers]],
        ledger: SiteLedger,
        state: dict[str, tuple[Segment, ...]],
    ) -> tuple[list[Answers], int]:
        """The rows of an outer join that are answers now, and the instant before which no more come."""
        main = next(finish for _, finish in versions if finish.branch == 0)
        assert main.matching is not None
        match = MatchRows(self._shelf, name, main.matching, self._clocks([part for part, _ in versions], ledger))
        columns = tuple((answer_column(number), name) for number, name in enumerate(main.matching.names))
        given: list[Answers] = []
        arrived: dict[int, list[pa.Table]] = {}
        for finish in {finish.branch: finish for _, finish in versions}.values():
            answered = len(finish.answers)
            names = [*(name for name, _ in columns[:answered]), *(item.name for item in finish.select[answered:])]
            for answers in by_branch.get(finish.branch, ()):
                tables = [
                    self._shelf.get(path).select([stored for stored, _ in answers.columns]) for path in answers.paths
                ]
                arrived.setdefault(finish.branch, []).extend(table.rename_columns(names) for table in tables)
                if match.passes_through(finish.branch) and WHERE_HOLDS not in names:
                    given.append(replace(answers, columns=answers.columns[:answered]))
        branches = sorted({finish.branch for _, finish in versions})
        reached = [
            self._answered_until([part for part, finish in versions if finish.branch == branch], main.query, ledger)
            for branch in branches
        ]
        matched = match(arrived, state, min(reached))
        state.update(matched.state)
        if matched.rows:
            paths = tuple(self._shelf.put("answers", table).path for table in matched.rows)
            given.append(Answers(ledger.number, paths, columns, sum(table.num_rows for table in matched.rows)))
        return given, matched.complete_to

    def _answered_until(self, parts: Sequence[JoinPart], query: str, ledger: SiteLedger) -> int:
        """The instant before which no more combinations come about here or arrive, of any version of a join."""
        reached, ends = [], [UNKNOWN]
        for part in parts:
            flows = [part.flow(operator.out) for operator in part.program.operators if operator.out.form is Form.RESULT]
            flows += self._record_flows(part, query) if part.is_grouped else _arriving_results(part)
            if (shape := part.shapes.get(query)) is not None:
                senders = sorted({sender for sender, _ in self._program.inbound})
                flows += [flow for sender in senders if (flow := shape.arrives_as(sender)) in self._arriving]
            mark = min((ledger.watermarks.get(flow, UNKNOWN) for flow in flows), default=UNKNOWN)
            if part.heads.until_us is not None and mark >= part.heads.until_us:
                ends.append(part.heads.until_us)  # what follows is another version's
            else:
                reached.append(mark)
        return min(reached, default=max(ends))

    def _record_flows(self, part: JoinPart, query: str) -> list[str]:
        """The names under which other sites send partial records of a query."""
        senders = {sender for sender, _ in self._program.inbound}
        return sorted(self._arriving & {part.records(query, sender) for sender in senders})

    @cached_property
    def _arriving(self) -> frozenset[str]:
        return frozenset(shipment.arrives_as for _, shipment in self._program.inbound)

    def _arrived_records(self, parts: Sequence[JoinPart], query: str, made: Sequence[Made]) -> list[str]:
        flows = {flow for part in parts for flow in self._record_flows(part, query)}
        return [filed.results for filed in made if filed.flow in flows and filed.results is not None]

    def refuse_failed(self, query: str, count: int, paths: Sequence[str | None], cause: str = "") -> None:
        """End the run for what expressions of a query fail for, where the query wants that."""
        if self._program.errors[query] == "fail":
            refuse_failed(query, pa.concat_tables(self._tables(paths)), count, cause)

    def _kept_failed(self, number: int, paths: Sequence[str | None]) -> Iterator[tuple[str, Answers]]:
        """By query, where it keeps them: rows and combinations of a micro-batch for which an expression fails."""
        tables = self._tables(paths)
        if not tables:
            return
        found = pa.concat_tables(tables)
        for query in sorted(query for query, errors in self._program.errors.items() if errors == "keep"):
            rows = found.filter(pc.equal(found.column("query"), query))
            if rows.num_rows:
                rows = rows.add_column(1, "batch", pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows))
                columns = tuple((name, name) for name in rows.column_names)
                yield query, Answers(number, (self._shelf.put("failed", rows).path,), columns, rows.num_rows)

    def _tables(self, paths: Sequence[str | None]) -> list[pa.Table]:
        return [self._shelf.get(path) for path in paths if path is not None]


def _by_definition(finishes: Sequence[tuple[JoinPart, Finish]]) -> dict[str, list[tuple[JoinPart, Finish]]]:
    """What follows the versions of a query's join, apart where the query was replaced by another of its name."""
    found: dict[str, list[tuple[JoinPart, Finish]]] = {}
    for part, finish in finishes:
        found.setdefault(finish.definition, []).append((part, finish))
    return found


def _arriving_results(part: JoinPart) -> list[str]:
    return [part.flow(flow) for _, flow in part.program.inbound if flow.form is Form.RESULT]


def _is_result_of(part: JoinPart, flow: str) -> bool:
    return flow.startswith(f"{part.name}:") and not flow.startswith(f"{part.name}:records of ")
