"""Costs in sentences for people."""


def cost_text(value: float) -> str:
    """A cost with three digits that count, and without an exponent.

    >>> cost_text(453_912.4), cost_text(1409.2), cost_text(0.02461), cost_text(0)
    ('454,000', '1,410', '0.0246', '0')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
