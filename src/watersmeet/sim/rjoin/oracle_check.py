"""Compares the answers of a simulation with those of the oracle: how many came, and what came besides."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.program.rjoin.arrays import FOREVER
from watersmeet.program.rjoin.tables import Known
from watersmeet.query.bags import bag_of
from watersmeet.query.oracle import answer
from watersmeet.sim.rjoin.answers import ROW, ReceivedAnswers


@dataclass(frozen=True, slots=True)
class JudgedAnswers:
    """Answers of some queries: those of the oracle, those of them that came, each as often as it should, and others."""

    expected: int
    right: int
    surplus: int

    @property
    def recall(self) -> float:
        return self.right / self.expected if self.expected else 1.0


def verdict_on(known: Known, answers: ReceivedAnswers, queries: Iterable[int]) -> JudgedAnswers:
    """Ask the oracle about queries by number, over all tuples that were published."""
    tables = published(known)
    expected = right = surplus = 0
    for number in queries:
        start_us, until_us = (
            int(times[number]) for times in (known.query_arrays.start_us, known.query_arrays.until_us)
        )
        wanted = bag_of(
            answer(
                known.queries[number],
                tables,
                known.catalog.event_times,
                start_us=None if start_us == -FOREVER else start_us,  # a one-time query: all that there is
                heads_before_us=None if until_us == FOREVER else until_us + 1,
            )
        )
        came = bag_of(answers.table(number))
        expected += wanted.total()
        right += (wanted & came).total()
        surplus += (came - wanted).total()
    return JudgedAnswers(expected, right, surplus)


def published(known: Known) -> dict[str, pa.Table]:
    """All tuples of each stream in the order in which they came; their time is that of their publication."""
    parts: dict[str, list[pa.Table]] = {stream: [] for stream in known.catalog.streams}
    first = 0
    for table in known.tables:
        if not table.num_rows:
            continue
        stream = known.catalog.streams[known.tuple_arrays.stream[first]]
        schema = known.catalog.schemas[stream]
        event_time = known.catalog.event_times[stream]
        stamps = pa.array(known.tuple_arrays.ts_us[first : first + table.num_rows])
        kept = table.drop_columns([name for name in (ROW, event_time) if name in table.column_names])
        timed = kept.append_column(event_time, stamps.cast(pa.timestamp("us")).cast(schema.field(event_time).type))
        parts[stream].append(timed.select(schema.names))
        first += table.num_rows
    return {
        stream: pa.concat_tables(rows) if rows else known.catalog.schemas[stream].empty_table()
        for stream, rows in parts.items()
    }
