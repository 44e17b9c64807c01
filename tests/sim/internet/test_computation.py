"""Computation events: when results come, on one core and several, slow hosts and crashed ones."""

import pytest

from watersmeet.sim.internet.computation import Processor
from watersmeet.sim.kernel import Kernel


def ends(cores: int | None, costs: list[float], factor: float = 1.0) -> list[tuple[str, int]]:
    kernel = Kernel(1)
    processor = Processor(kernel, factor, cores=cores)
    done: list[tuple[str, int]] = []
    for number, cost_us in enumerate(costs):
        processor.compute(
            lambda number=number: f"w{number}",  # type: ignore[misc]
            lambda result: done.append((result, kernel.now_us)),
            cost_us=cost_us,
        )
    assert done == []
    kernel.run()
    assert processor.busy_us == sum(round(cost * factor) for cost in costs)
    return done


def test_without_a_number_of_cores_computations_do_not_wait_for_each_other() -> None:
    assert ends(None, [30, 10, 20]) == [("w1", 10), ("w2", 20), ("w0", 30)]


def test_cores_take_computations_in_order() -> None:
    assert ends(1, [30, 10, 20]) == [("w0", 30), ("w1", 40), ("w2", 60)]
    assert ends(2, [30, 10, 20, 5]) == [("w1", 10), ("w0", 30), ("w2", 30), ("w3", 35)]


def test_the_factor_multiplies_what_the_clock_has_measured() -> None:
    kernel, readings = Kernel(1), iter([100.0, 350.0])
    processor = Processor(kernel, 4.0, clock_us=lambda: next(readings))
    done: list[tuple[int, int]] = []
    processor.compute(lambda: 7, lambda result: done.append((result, kernel.now_us)))
    kernel.run()
    assert done == [(7, 1_000)]


def test_real_work_takes_real_time() -> None:
    kernel = Kernel(1)
    done: list[int] = []
    Processor(kernel, 2.0).compute(lambda: sum(range(200_000)), done.append)
    kernel.run()
    assert done == [sum(range(200_000))]
    assert kernel.now_us > 500  # a quarter of a millisecond is far less than it takes anywhere


def test_a_crash_ends_what_is_under_way() -> None:
    kernel = Kernel(1)
    done: list[object] = []
    processor = Processor(kernel, cores=1)
    processor.compute(lambda: 1, done.append, cost_us=50)
    kernel.run(until_us=10)
    processor.stop()
    processor.compute(lambda: 2, lambda result: done.append((result, kernel.now_us)), cost_us=50)
    kernel.run()
    assert done == [(2, 60)]


def test_what_cannot_be_is_refused() -> None:
    for wrong, message in (({"cpu_factor": -1}, "cpu_factor"), ({"cores": 0}, "cores")):
        with pytest.raises(ValueError, match=message):
            Processor(Kernel(1), **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cost_us must not be negative"):
        Processor(Kernel(1)).compute(lambda: 1, lambda result: None, cost_us=-1)
