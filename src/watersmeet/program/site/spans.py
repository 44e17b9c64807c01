"""Stretches of event time: of the heads that are a join's own, and of the rows that these can reach."""

from dataclasses import dataclass

from watersmeet.query.windows import Range, Tumble, Window


@dataclass(frozen=True, slots=True)
class Span:
    """Event times from an instant to before another; None is no bound."""

    from_us: int | None = None
    until_us: int | None = None

    @property
    def is_all(self) -> bool:
        return self.from_us is None and self.until_us is None

    @property
    def bounds(self) -> tuple[int, ...]:
        return tuple(one for one in (self.from_us, self.until_us) if one is not None)

    def __or__(self, other: "Span") -> "Span":
        """The shortest span that contains both."""
        firsts, ends = (self.from_us, other.from_us), (self.until_us, other.until_us)
        return Span(
            min((first for first in firsts if first is not None), default=None) if None not in firsts else None,
            max((end for end in ends if end is not None), default=None) if None not in ends else None,
        )


ALL_TIMES = Span()


def first_visible(window: Window, instant_us: int) -> int | None:
    """From when on rows are that heads at an instant or later can reach; None where time does not say."""
    match window:
        case Range(window_us):
            return instant_us - window_us
        case Tumble(window_us):
            return instant_us // window_us * window_us
        case _:
            return None
