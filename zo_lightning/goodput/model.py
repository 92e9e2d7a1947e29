"""The quantities of the model: a job on a cluster, what fails there, and where the time goes.

Times are seconds, intervals are steps, shares are of the wall clock and lie between 0 and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from zo_lightning.errors import ConfigError

Target = Literal["newest", "median", "oldest", "none", "blocking"]
"""Version that a drain's shards are brought to; ``none``: that of its first step, and the drain in flight is lost;
``blocking``: training stands still while a checkpoint is saved."""

TARGETS: tuple[Target, ...] = get_args(Target)


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
            value = getattr(self, field.name)
            lowest = 1 if field.name in ("devices", "drain_steps") else 0
            positive = field.name in ("step_seconds", "mtbf_hours")
            if math.isnan(value) or value < lowest or (positive and value == 0):
                kind = "above 0" if positive else f"{lowest} or more"
                raise ConfigError(f"`goodput.{field.name}`={value}: a number, {kind}")

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
