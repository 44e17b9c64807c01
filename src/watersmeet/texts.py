"""Figures as texts for people."""


def cost_text(value: float) -> str:
    """A cost with three digits that count, and without an exponent.

    >>> cost_text(453_912.4), cost_text(1409.2), cost_text(0.02461), cost_text(0)
    ('454,000', '1,410', '0.0246', '0')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def size_text(count: float) -> str:
    """A number of bytes with three digits that count.

    >>> size_text(0), size_text(812), size_text(40_512), size_text(2_345_678), size_text(999_600)
    ('0 B', '812 B', '40.5 kB', '2.35 MB', '1 MB')
    """
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if abs(count) < 999.5 or unit == units[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"
