"""From rows to answers: residual predicates and select list, of combinations and of groups, and DISTINCT."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from watersmeet.program.finish.changes import Values, changed_rows
from watersmeet.program.finish.distinct import Held, KeepUnseen
from watersmeet.program.finish.groups import first_of_windows
from watersmeet.program.finish.model import Evaluated, Evaluator, Finish, answer_column
from watersmeet.program.finish.outer import columns_or_nulls, select_columns
from watersmeet.program.finish.shared import split_by_member
from watersmeet.program.site.ledger import Answers, SiteLedger
from watersmeet.program.site.shared_groups import MEMBER_ITEM, SharedQuery
from watersmeet.program.site.tasks import RunTasks
from watersmeet.program.storage.shelf import Segment, Shelf
from watersmeet.query.model import MEMBER


class Finishing:
    """Turns rows into answers; holds no state."""

    def __init__(
        self, shelf: Shelf, run_tasks: RunTasks[Any], evaluate: Evaluator, buckets_for: Callable[[int], int]
    ) -> None:
        self._shelf = shelf
        self._run_tasks = run_tasks
        self._evaluate = evaluate
        self._buckets_for = buckets_for  # into how many buckets so many rows are cut

    def rows(
        self, finish: Finish, paths: tuple[str, ...], rows: int, ledger: SiteLedger
    ) -> tuple[Answers | None, Evaluated]:
        """Rows through residual predicates and select list; None where none are left."""
        if finish.plain is not None:
            return Answers(ledger.number, paths, finish.plain, rows), Evaluated(paths)
        if finish.matching is not None and (columns := columns_or_nulls(finish)) is not None:
            given = tuple(
                self._shelf.put("evaluated", select_columns(self._shelf.get(path), columns)).path for path in paths
            )
            names = tuple((answer_column(number), item.name) for number, item in enumerate(finish.select))
            return Answers(ledger.number, given, names, rows), Evaluated(given)
        evaluated = self._evaluate(finish, paths, rows)
        left = sum(self._shelf.get(path).num_rows for path in evaluated.paths)
        answers = Answers(ledger.number, evaluated.paths, finish.evaluated_columns, left)
        return answers if left else None, evaluated

    def groups(
        self, finish: Finish, ended: Sequence[pa.Table] | Values, ledger: SiteLedger
    ) -> tuple[Answers | None, Evaluated]:
        """Groups through HAVING and the select list; with LIMIT the first of each window, or where they changed."""
        assert finish.grouping is not None
        tables = [ended.groups] if isinstance(ended, Values) else ended
        paths = tuple(self._shelf.put("groups", table).path for table in tables)
        rows = sum(table.num_rows for table in tables)
        answers, evaluated = self.rows(finish.of_groups, paths, rows, ledger) if rows else (None, Evaluated(()))
        if answers is None:
            return None, evaluated
        if isinstance(ended, Values) or finish.grouping.limit is not None:
            stored = [name for name, _ in answers.columns]
            names = [answer_column(number) for number in range(len(stored))]
            table = pa.concat_tables(self._shelf.get(path).select(stored) for path in answers.paths)
            table = table.rename_columns(names)
            if isinstance(ended, Values):
                left = changed_rows(finish.grouping, ended, table)
            else:
                left = first_of_windows(finish.grouping, table)
            columns = tuple(zip(names, finish.names, strict=False))
            if not left.num_rows:
                return None, evaluated
            return Answers(ledger.number, (self._shelf.put("groups", left).path,), columns, left.num_rows), evaluated
        return answers, evaluated

    def groups_together(
        self, queries: Sequence[SharedQuery], tables: Sequence[pa.Table], ledger: SiteLedger
    ) -> dict[int, list[Answers]] | None:
        """By place of a query, its groups through HAVING and the select list; None where an expression fails."""
        finish = queries[0].finish.of_groups
        if finish.plain is not None and queries[0].grouping.limit is None:
            columns, groups = finish.plain, pa.concat_tables(tables)
            groups = groups.select(list(dict.fromkeys([*(name for name, _ in columns), MEMBER.flat])))
            by_member = split_by_member(groups, MEMBER.flat)
        else:
            together = replace(
                finish, columns=(*finish.columns, MEMBER.flat), select=(*finish.select, MEMBER_ITEM), errors="fail"
            )
            paths = tuple(self._shelf.put("groups", table).path for table in tables)
            evaluated = self._evaluate(together, paths, sum(table.num_rows for table in tables))
            if evaluated.failed:
                return None
            columns = finish.evaluated_columns
            names = [name for name, _ in columns]
            rows = pa.concat_tables(self._shelf.get(path) for path in evaluated.paths)
            by_member = split_by_member(rows.select([*names, answer_column(len(names))]), answer_column(len(names)))
        if queries[0].grouping.limit is not None:
            by_member = {place: first_of_windows(queries[place].grouping, rows) for place, rows in by_member.items()}
        return {place: [answers] for place, answers in self._in_one_file(queries, by_member, columns, ledger)}

    def _in_one_file(
        self,
        queries: Sequence[SharedQuery],
        tables: Mapping[int, pa.Table],
        columns: tuple[tuple[str, str], ...],
        ledger: SiteLedger,
    ) -> Iterator[tuple[int, Answers]]:
        """Answers by place of a query: in one file where they go to sinks, alone where they are rows of streams."""
        columns = columns[: len(queries[0].grouping.select)]
        together = [place for place in tables if not queries[place].finish.target.is_stream]
        if together:
            path, first = self._shelf.put("groups", pa.concat_tables(tables[place] for place in together)).path, 0
            for place in together:
                yield place, Answers(ledger.number, (path,), columns, tables[place].num_rows, first)
                first += tables[place].num_rows
        for place in tables.keys() - together:
            path = self._shelf.put("groups", tables[place]).path
            yield place, Answers(ledger.number, (path,), columns, tables[place].num_rows)

    def compared(self, finish: Finish, pieces: Sequence[Answers], ledger: SiteLedger) -> list[Answers]:
        """Answers of an outer join with what DISTINCT finds equal ones by."""
        tables = [
            self._shelf.get(path).select([name for name, _ in answers.columns])
            for answers in pieces
            for path in answers.paths
        ]
        paths = tuple(self._shelf.put("answers", table.rename_columns(list(finish.columns))).path for table in tables)
        rows = sum(answers.rows for answers in pieces)
        found, _ = self.rows(finish, paths, rows, ledger) if rows else (None, Evaluated(()))
        return [] if found is None else [found]

    def first_answers(
        self, finish: Finish, pieces: Sequence[Answers], held: tuple[Segment, ...], until_us: int, ledger: SiteLedger
    ) -> tuple[tuple[Segment, ...], list[Answers]]:
        """Answers of a DISTINCT that is a stream wait for the watermark: each is given at the first time it has."""
        assert finish.time_column is not None
        paths = [path for answers in pieces for path in answers.paths]
        held, due = Held(self._shelf, finish.time_column).released(held, paths, until_us)
        if due is None:
            return held, []
        path = self._shelf.put("evaluated", due).path
        return held, [Answers(ledger.number, (path,), finish.evaluated_columns, due.num_rows)]

    def kept_distinct(self, answers: Answers, finish: Finish, seen: dict[str, tuple[Segment, ...]]) -> Answers | None:
        """Answers that were never given before, which are remembered."""
        fresh = tuple(self._unseen(finish, answers.paths, answers.rows, seen.get(finish.definition, ())))
        if not fresh:
            return None
        seen[finish.definition] = (*seen.get(finish.definition, ()), *fresh)
        given = tuple(part.path for segment in fresh for part in segment.parts)
        return replace(answers, paths=given, rows=sum(segment.rows for segment in fresh))

    def _unseen(self, finish: Finish, paths: tuple[str, ...], rows: int, seen: tuple[Segment, ...]) -> list[Segment]:
        buckets = self._buckets_for(rows)
        names = self._shelf.get(paths[0]).column_names
        time = finish.time_column
        others = {*_replaced_columns(names), *([time] if time is not None else [])}
        compared = tuple(name for name in names if not name.startswith("#") and name not in others)
        return self._run_tasks(KeepUnseen(self._shelf, buckets, paths, seen, compared, time), buckets, rows)

    def together(self, pieces: Sequence[Answers]) -> Answers:
        """The answers of several versions of a query as those of one micro-batch: sinks know them by its number."""
        first, *others = pieces
        if not others:
            return first
        if all(answers.columns == first.columns and answers.first is None for answers in pieces):
            paths = tuple(path for answers in pieces for path in answers.paths)
            return replace(first, paths=paths, rows=sum(answers.rows for answers in pieces))
        columns = tuple((answer_column(number), name) for number, (_, name) in enumerate(first.columns))
        given = []
        for answers in pieces:
            for table in answers.tables(self._shelf):
                table = table.select([name for name, _ in answers.columns]).rename_columns(
                    [name for name, _ in columns]
                )
                given.append(self._shelf.put("answers", table).path)
        return Answers(first.batch, tuple(given), columns, sum(answers.rows for answers in pieces))


def _replaced_columns(names: Sequence[str]) -> set[str]:
    """Columns in whose place another one is compared: a text with a collation by its key."""
    return {f"c{name.removeprefix('k')}" for name in names if name.startswith("k") and name[1:].isdigit()}
