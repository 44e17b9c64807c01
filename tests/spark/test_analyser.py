"""Expressions of many queries are analysed together, with the same types and refusals as one by one."""

from typing import Any

import pytest
from pyspark.sql.types import StructType

from watersmeet.errors import InputError
from watersmeet.spark.analyser import Analyser

SCHEMA = "`a.k` string, `a.v` bigint, `a.ts` timestamp"
PLAIN = ["`a.v` > 3", "`a.k` = 'x'", "`a.v` * 1.5", "upper(`a.k`)", "`a.ts` > '2024-01-01'"]


def _schema() -> StructType:
    schema = StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    return schema


def test_types_are_the_same_together_and_alone(spark: Any) -> None:
    schema = _schema()
    together, alone = Analyser(spark).rows(schema), Analyser(spark).rows(schema)
    together.expect(PLAIN)
    assert together.types(PLAIN) == {text: alone.types([text])[text] for text in PLAIN}
    together.check_functions(dict.fromkeys(PLAIN, "WHERE"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`a.v` > rand()", "rand"),
        ("`a.ts` > current_timestamp()", "current_timestamp"),
        ("`a.ts` > CAST('now' AS timestamp)", "now"),
        ("spark_partition_id() = 0", "SPARK_PARTITION_ID"),
        ("count(1) > 0", "aggregates"),
        ("`a.none` > 0", "a.none"),
    ],
)
def test_what_is_wrong_with_one_is_said_of_that_one(spark: Any, text: str, said: str) -> None:
    rows = Analyser(spark).rows(_schema())
    rows.expect([*PLAIN, text])
    rows.types(PLAIN)
    rows.check_functions(dict.fromkeys(PLAIN, "WHERE"))

    def ask() -> None:
        rows.types([text])
        rows.check_functions({text: "WHERE"})

    with pytest.raises(InputError, match=said):
        ask()
