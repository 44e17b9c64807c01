"""The hash tables of matching against sets of tuples."""

import numpy as np
import pytest

from watersmeet.program.finish.kernels import are_among, first_places, matched_now


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("spread", [1, 1 << 40])
@pytest.mark.parametrize("seed", range(5))
def test_lines_are_found_as_in_sets(width: int, spread: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = random.integers(0, 40, (60, width)) * spread
    rows = np.unique(drawn, axis=0)
    matches = random.integers(-10, 50, (80, width)) * spread
    known = {tuple(line) for line in rows.tolist()}
    is_matched, others = matched_now(rows, matches)
    assert is_matched.tolist() == [tuple(line) in {tuple(one) for one in matches.tolist()} for line in rows.tolist()]
    left = [tuple(line) for line in matches.tolist() if tuple(line) not in known]
    assert [tuple(matches[place].tolist()) for place in others] == list(dict.fromkeys(left))
    assert are_among(matches, rows).tolist() == [tuple(line) in known for line in matches.tolist()]
    assert [tuple(drawn[place].tolist()) for place in first_places(drawn)] == list(
        dict.fromkeys(tuple(line) for line in drawn.tolist())
    )


def test_nothing_is_among_no_rows() -> None:
    none, some = np.empty((0, 2), np.int64), np.array([[1, 2], [1, 2]])
    assert are_among(some, none).tolist() == [False, False]
    assert not len(are_among(none, some)) and not len(first_places(none))


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("rows", "matches"),
    [
        ([-MOST, 824_633_720_841], [-MOST, 5, 5]),
        ([-MOST - 1, MOST], [0, MOST, -MOST - 1]),
        ([MOST - 1, MOST], [-MOST - 1, MOST]),
        ([5, 6, 7], [-MOST - 1, MOST, 6, 4, 8, -MOST - 1]),
    ],
)
def test_numbers_may_be_as_far_apart_as_there_are(rows: list[int], matches: list[int]) -> None:
    is_matched, others = matched_now(np.array(rows).reshape(-1, 1), np.array(matches).reshape(-1, 1))
    assert is_matched.tolist() == [row in matches for row in rows]
    assert [matches[place] for place in others] == list(dict.fromkeys(one for one in matches if one not in rows))
    for some, known in ((rows, matches), (matches, rows)):
        found = are_among(np.array(some).reshape(-1, 1), np.array(known).reshape(-1, 1))
        assert found.tolist() == [one in known for one in some]
