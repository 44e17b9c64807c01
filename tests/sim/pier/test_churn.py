"""PIER while nodes crash and others join: answers may be missing, but none is wrong, and none comes twice."""

import pytest

from watersmeet.reproduce.pier.churn import REMEDIES, churn_scenario
from watersmeet.sim.scenario.pier.outcome import PierSummary
from watersmeet.sim.scenario.pier.simulate import simulate_pier


def run(seed: int, remedy: str, session_s: int = 40) -> PierSummary:
    return simulate_pier(churn_scenario(seed, 12, session_s, REMEDIES[remedy])).summary


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_is_wrong_or_doubled(seed: int) -> None:
    summary = run(seed, "both")
    assert summary.failures > 5
    for query in summary.queries.values():
        assert query.checked is not None
        assert query.checked.surplus == 0
        assert query.checked.right > 0.5 * query.checked.expected


def test_renewal_brings_back_what_was_lost_with_its_owner() -> None:
    """Over some seeds together: with renewal more answers come, since lost tuples are put again at the new owners."""
    right = dict.fromkeys(("nothing", "renewal"), 0)
    for name in right:
        for seed in (1, 2):
            checked = run(seed, name, session_s=25).queries["q0"].checked
            assert checked is not None
            assert checked.surplus == 0
            right[name] += checked.right
    assert right["renewal"] > right["nothing"]
