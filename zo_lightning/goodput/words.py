"""Numbers for a person."""

from __future__ import annotations

from collections.abc import Callable

from zo_lightning.goodput.intervals import Interval

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(value: float) -> str:
    """With the largest unit that it reaches, three digits.

    Examples:
        >>> [seconds(value) for value in (0.0, 0.00012, 0.093, 7.0, 390.0, 10_986.3, 1e6)]
        ['0 s', '0.12 ms', '93 ms', '7 s', '6.5 min', '3.05 h', '11.6 d']
    """
    if not value:
        return "0 s"
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= size), _UNITS[-1])
    return f"{value / size:.3g} {unit}"


def size(num_bytes: float) -> str:
    """With the largest unit that it reaches, three digits.

    Examples:
        >>> [size(value) for value in (512, 5_908_992, 1.2e12)]
        ['512 B', '5.91 MB', '1.2 TB']
    """
    unit, name = next(((unit, name) for unit, name in _SIZES if num_bytes >= unit), (1.0, "B"))
    return f"{num_bytes / unit:.3g} {name}"


def per_cent(share: float) -> str:
    """A share.

    Examples:
        >>> per_cent(0.9333), per_cent(0.0004)
        ('93.33 %', '0.04 %')
    """
    return f"{100 * share:.2f} %"


def within(interval: Interval, shown: Callable[[float], str]) -> str:
    """An estimate with its interval, if it has one.

    Examples:
        >>> within(Interval(0.9, 0.8, 0.95), per_cent), within(Interval(7.0, 7.0, 7.0), seconds)
        ('90.00 % (80.00 % to 95.00 %)', '7 s')
    """
    if interval.low == interval.high:
        return shown(interval.value)
    return f"{shown(interval.value)} ({shown(interval.low)} to {shown(interval.high)})"
