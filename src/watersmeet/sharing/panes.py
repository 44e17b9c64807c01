"""Windows of different lengths and slides over common panes (5.6.2): each row is aggregated once, in its pane."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from watersmeet.errors import InputError


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Windows that start at every multiple of slide_us and are size_us long; equal values make tumbling windows."""

    size_us: int
    slide_us: int

    def __post_init__(self) -> None:
        if not 0 < self.slide_us <= self.size_us:
            raise InputError(
                f"a window of {self.size_us} us that slides by {self.slide_us} us: the slide must be positive and not "
                "longer than the window"
            )


def tumbling(size_us: int) -> Window:
    """Windows without overlap."""
    return Window(size_us, size_us)


def pane_us(windows: Iterable[Window]) -> int:
    """The longest pane that divides all windows and slides.

    >>> pane_us([Window(60, 20), Window(50, 50)])
    10
    """
    found = 0
    for window in windows:
        found = gcd(found, window.size_us, window.slide_us)
    if not found:
        raise InputError("panes need at least one window")
    return found


def windows_closed(window: Window, before_us: int | None, until_us: int) -> range:
    """Starts of the windows that end after one watermark and not after the next; before_us None: there was none."""
    slide = window.slide_us
    last = (until_us - window.size_us) // slide * slide
    if before_us is None:
        return range(last + slide, last + slide, slide)
    first = ((before_us - window.size_us) // slide + 1) * slide
    return range(first, last + slide, slide)
