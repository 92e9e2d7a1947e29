"""The quantities of the model: a job on a cluster, what fails there, and where the time goes.

Times are seconds, intervals are steps, shares are of the wall clock and lie between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from zo_lightning.goodput.checks import COUNTABLE, LEAST, MOST, refuse_outside

Target = Literal["newest", "median", "oldest", "none", "blocking"]
"""Version that a drain's shards are brought to; ``none``: that of its first step, and the drain in flight is lost;
``blocking``: training stands still while a checkpoint is saved."""

TARGETS: tuple[Target, ...] = get_args(Target)

_RANGES = {
    "devices": (1, COUNTABLE),
    "drain_steps": (1, COUNTABLE),
    "step_seconds": (LEAST, MOST),
    "mtbf_hours": (LEAST, MOST),
}  # the others: from 0 to MOST
_ENDLESS = ("mtbf_hours", "detection_seconds", "relaunch_seconds")  # may be infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job and what its checkpoints cost. The defaults are those of the table in ``docs/goodput.md``.

    Attributes:
        devices: of the cluster, N.
        step_seconds: of a step without a checkpoint on its way, t.
        drain_steps: steps that a drain takes, D: the time of an asynchronous save.
        tax: share that a step takes longer while a drain is on its way, alpha.
        save_seconds: that training stands still for a blocking save, C.
        detection_seconds: from a failure until it is noticed.
        relaunch_seconds: from there to the first new step.
        mtbf_hours: of one device; a cluster of N fails N times as often.

    Raises:
        ConfigError: for a number that is none or out of its range.
    """

    devices: int = 16_384
    step_seconds: float = 7.0
    drain_steps: int = 30
    tax: float = 0.03
    save_seconds: float = 210.0
    detection_seconds: float = 30.0
    relaunch_seconds: float = 360.0
    mtbf_hours: float = 50_000.0

    def __post_init__(self) -> None:
        for field in fields(self):
            low, high = _RANGES.get(field.name, (0, MOST))
            value = getattr(self, field.name)
            if value != math.inf or field.name not in _ENDLESS:
                refuse_outside(f"goodput.{field.name}", value, low, high)

    @property
    def mtbf(self) -> float:
        """Mean seconds of training between two failures of the cluster, M."""
        return self.mtbf_hours * 3600 / self.devices

    @property
    def restart_seconds(self) -> float:
        """From a failure to the first new step, R."""
        return self.detection_seconds + self.relaunch_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Where the wall clock goes; all of them add up to 1.

    Attributes:
        goodput: steps that count, at the time they take undisturbed.
        rework: steps that are done again, and the half-done ones.
        restart: detection and relaunch.
        tax: what drains slow steps by.
        stall: training waits for a blocking save or a slow device.
        idle: the job waits for a device that replaces a failed one.
    """

    goodput: float
    rework: float
    restart: float
    tax: float
    stall: float = 0.0
    idle: float = 0.0

    @classmethod
    def of(cls, parts: Mapping[str, float]) -> Shares:
        """Shares whose ``math.fsum`` is exactly 1: the largest one takes up the rounding.

        Args:
            parts: shares by name, those that are missing 0; goodput below 0 means that failures took more than was
                done, as early credit lets them.

        Examples:
            >>> from dataclasses import astuple
            >>> math.fsum(astuple(Shares.of({"goodput": 0.1, "rework": 0.2, "restart": 0.7000001, "tax": 0.0})))
            1.0
        """
        known = {field.name: max(parts.get(field.name, 0.0), 0.0) for field in fields(cls)}
        known["rework"] = max(parts["rework"] + min(parts["goodput"], 0.0), 0.0)
        largest = max(known, key=lambda name: known[name])
        known[largest] = math.fsum([1.0, *(-share for name, share in known.items() if name != largest)])
        return cls(**known)
