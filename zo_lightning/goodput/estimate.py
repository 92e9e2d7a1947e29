"""Shares of the wall clock from the rounds of a simulation, and how certain they are.

Legend: F failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.portable import Floats

BATCHES = 30  # of rounds, where one bears on the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a simulation found.

    Attributes:
        shares: of the wall clock; ``math.fsum`` of them is exactly 1.
        errors: the standard error of each.
        failures: how many there were; 0: the cluster never fails.
        steps_lost: whole steps that a failure took, on average.
        seconds: of simulated wall clock.
    """

    shares: Shares
    errors: Shares
    failures: int
    steps_lost: float
    seconds: float


def ratio(part_F: Floats, round_F: Floats, *, independent: bool, distinct: int) -> tuple[float, float]:
    """A share of the rounds' time, and its standard error by the delta method.

    Args:
        part_F: float64 [F], seconds of each round that count.
        round_F: float64 [F], all of its seconds.
        independent: whether no round bears on another; otherwise batches of consecutive rounds stand for them.
        distinct: rounds that are not repetitions.
    """
    total = math.fsum(round_F.tolist())
    share = math.fsum(part_F.tolist()) / total
    off = (part_F - share * round_F).tolist()
    if not independent:
        size = max(len(off) // BATCHES, 1)
        off = [math.fsum(off[start : start + size]) for start in range(0, len(off), size)]
    variance = math.fsum(value * value for value in off) * len(off) / (len(off) - 1)
    return share, math.sqrt(variance * len(part_F) / distinct) / total
