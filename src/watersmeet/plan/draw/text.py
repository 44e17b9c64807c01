"""Figures and parts of a plan as words."""

from collections.abc import Iterator

from watersmeet.cost.costs import Cost
from watersmeet.plan.nodes import (
    HashParts,
    HeadPlan,
    Input,
    JoinPlan,
    Method,
    Partition,
    Reduction,
)

_BYTE_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_COUNT_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
_ROUNDS_UP = 0.9995  # 999.5 is shown as 1.0 k


def bytes_text(bytes_s: float, measured: float | None = None) -> str:
    """Bytes a second as people read them, with what was measured in the same unit.

    >>> bytes_text(12_100, 11_800)
    '12.1 kB/s (measured 11.8)'
    """
    scale, unit = next(
        (scale_unit for scale_unit in _BYTE_UNITS if max(bytes_s, 1.0) >= scale_unit[0] * _ROUNDS_UP), _BYTE_UNITS[-1]
    )
    shown = f"{number_text(bytes_s / scale)} {unit}"
    return shown if measured is None else f"{shown} (measured {number_text(measured / scale)})"


def count_text(count: float) -> str:
    """A number of things as people read it.

    >>> count_text(15_234)
    '15.2 k'
    """
    for scale, unit in _COUNT_UNITS:
        if count >= scale * _ROUNDS_UP:
            return f"{number_text(count / scale)}{unit}"
    return f"{count:.0f}"


def number_text(value: float) -> str:
    """A number with as many digits as matter.

    >>> number_text(0), number_text(0.012), number_text(12.34), number_text(123.4)
    ('0', '0.012', '12.3', '123')
    """
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 0.05 else f"{value:.2g}"


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "site"), plural(2, "site")
    ('1 site', '2 sites')
    """
    return f"{count} {noun}{'s' if count != 1 else ''}"


def summary_text(join: JoinPlan, cost: Cost | None) -> str:
    """The plan in one line: streams, sites, and what all of it costs."""
    place = f"answers at {join.site}" if join.site is not None else "answers at the sites that find them"
    sites = len({*join.homes, join.site} - {None})
    text = f"{len(join.scans)} streams at {plural(sites, 'site')}, {place}"
    if cost is None:
        return text
    traffic = f"{bytes_text(cost.bytes_s)} in {number_text(cost.messages_s)} messages/s on all links"
    return f"{text}; {traffic}; latency {number_text(cost.delay_s)} s"


def hop_texts(join: JoinPlan, plan: HeadPlan) -> Iterator[str]:
    """Each one-way join with its method and the site where it ends; `from` where the rows move first."""
    site = join.home(plan.head)
    for hop in plan.hops:
        start, home = hop.at or site, join.home(hop.alias)
        stays = hop.method in (Method.SP_S, Method.SM_S1, Method.SM_S2)
        end = start if stays else home
        bloom = " with Bloom filters" if hop.bloom else ""
        moved = f" from {start}" if start != site and end != start else ""
        yield f"{hop.alias} by {hop.method.value}{bloom}{moved} at {end}"
        site = end


def reduction_text(child: Input) -> str:
    """How an input of a join node is reduced before it is shipped."""
    kind = "Bloom semijoin" if child.bloom else "semijoin"
    steps = {Reduction.ONE_STEP: f"1-step {kind}", Reduction.TWO_STEP: f"2-step {kind}"}.get(child.reduction, "")
    first = f"by keys of {', '.join(one.alias for one in child.reducers)}" if child.reducers else ""
    return ", ".join(filter(None, [first, steps]))


def partition_text(partition: Partition, sub_plans: int) -> str:
    """What decides which sub-plan a row takes.

    >>> partition_text(Partition(0, HashParts((0, 1, 0))), 2)
    '2 sub-plans, chosen by the hash of key K1'
    """
    what = "hash" if isinstance(partition.parts, HashParts) else "value"
    return f"{plural(sub_plans, 'sub-plan')}, chosen by the {what} of key K{partition.key_class + 1}"
