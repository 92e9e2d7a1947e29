"""Refuses numbers that are out of their range, by the name of their config key."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from zo_lightning.errors import ConfigError

MOST = 1e30  # of seconds and the like: products of several are still numbers
LEAST = 1 / MOST  # above 0
COUNTABLE = 2**40  # of steps or devices


def refuse(key: str, value: Any, wanted: str) -> NoReturn:
    """Say what a key should be.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"`{key}`={value}: {wanted}")


def refuse_outside(key: str, value: float, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Refuse a number that is none, or not between two limits.

    Args:
        key: of the configuration, whole.
        value: what it is.
        low: the least allowed number.
        high: the greatest.
        above: ``low`` itself is refused too.

    Raises:
        ConfigError: if so.
    """
    if not low <= value <= high or (above and value == low):
        bounds = f"above {low}" if above else f"{low} or more" if high == math.inf else f"from {low} to {high}"
        refuse(key, value, f"a number, {bounds}")
