"""Numbers as people read them."""

from __future__ import annotations


def amount(value: float) -> str:
    """Three significant digits and a unit.

    >>> amount(1_160_000_000), amount(45_230_000), amount(999_950), amount(12)
    ('1.16 G', '45.2 M', '1.00 M', '12')
    """
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale * 0.9995:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:.0f}"


def seconds(value: float) -> str:
    """Three significant digits and the unit that suits.

    >>> seconds(0.000123), seconds(0.0456), seconds(7.5)
    ('123 µs', '45.6 ms', '7.50 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale * 0.9995:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value * 1e6)} µs"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
