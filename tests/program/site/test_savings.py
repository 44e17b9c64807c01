"""What `explain --running` says of the savings of changes, from counts of two sites computed by hand."""

from typing import Any

from watersmeet.program.site.agreement import Takeover
from watersmeet.program.site.changes import Change, Expected, QueryPlan
from watersmeet.program.site.savings import SiteCounts, savings

SECOND = 1_000_000
NO_PLAN: Any = None  # plans are not looked at


def change(*expected: Expected | None) -> Change:
    return Change(tuple(QueryPlan(f"q{number}", NO_PLAN, expected=one) for number, one in enumerate(expected)))


def test_expected_and_real_savings() -> None:
    first = Takeover(2, change(None), 100 * SECOND)
    refused = Takeover(3, change(None), 0, "no")
    second = change(Expected(5_000.0, 1_000.0, 20_000.0, "bytes"))
    ams = SiteCounts((first, refused, Takeover(4, second, 200 * SECOND, "", 400_000, 0)), 450_000, 10_000, 250 * SECOND)
    fra = SiteCounts((first, refused, Takeover(4, second, 200 * SECOND, "", 0, 0)), 30_000, 0, 300 * SECOND)
    assert list(savings(ams.log[2], [ams, fra])) == [
        "expected for q0: 1 kB a second instead of 5 kB, and 20 kB to go over",
        "shipped 700 B a second in 100 s of event time (before: 4 kB), and 10 kB to go over",
        "saved 420 kB in all, if the plan before had cost as expected",
    ]
    assert list(savings(first, [ams, fra])) == ["shipped 4 kB a second in 100 s of event time, and 0 B to go over"]
    assert list(savings(refused, [ams, fra])) == []


def test_what_is_not_known_is_left_out() -> None:
    work = change(Expected(0.5, 0.25, 3.0, "seconds of work"))
    entry = Takeover(2, work, 10 * SECOND, "", 100, 0)
    sites = [SiteCounts((entry,), 100, 0, 9 * SECOND), SiteCounts((), 50, 0, None)]
    expected = ["expected for q0: 0.25 seconds of work a second instead of 0.5 seconds of work, and 3 seconds of work"]
    assert [line.removesuffix(" to go over") for line in savings(entry, sites)] == expected  # one has not gone over
    assert len(list(savings(entry, sites[:1]))) == 1  # no row yet that the new plan joins
