"""Schemas of ``zo-goodput``'s configuration; ``schemas.register`` makes them known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING


class Target(Enum):
    """Version that a drain is brought to."""

    newest = "newest"
    median = "median"
    oldest = "oldest"
    none = "none"
    blocking = "blocking"


class Law(Enum):
    """Of the times between failures."""

    exponential = "exponential"
    weibull = "weibull"
    lognormal = "lognormal"
    trace = "trace"


class Trace(Enum):
    """What a trace file holds."""

    gaps = "gaps"
    times = "times"


@dataclass
class TierConf:
    """A place for checkpoints; what is left out it has from the job."""

    name: str = MISSING
    every: int | None = None
    drain_steps: int | None = None
    tax: float | None = None
    save_seconds: float | None = None
    load_seconds: float = 0.0
    survives_device: float = 1.0
    survives_rack: float = 1.0
    survives_switch: float = 1.0


@dataclass
class ScenarioConf:
    """A job, its checkpoints and what fails."""

    devices: int = MISSING
    step_seconds: float = MISSING
    drain_steps: int = MISSING
    tax: float = MISSING
    save_seconds: float = MISSING
    detection_seconds: float = MISSING
    relaunch_seconds: float = MISSING
    mtbf_hours: float = MISSING
    law: Law = Law.exponential
    shape: float = 1.0
    trace: str | None = None
    trace_holds: Trace = Trace.gaps
    rack_devices: int = 64
    rack_mtbf_hours: float = math.inf
    switch_devices: int = 512
    switch_mtbf_hours: float = math.inf
    tiers: list[TierConf] = field(default_factory=list)
    survives_in_flight: bool = False
    spares: int | None = None
    repair_seconds: float = 14400.0
    straggler_share: float = 0.0
    straggler_slowdown: float = 1.0


@dataclass
class GoodputConf:
    """The root of a question about goodput."""

    command: str = MISSING
    devices: list[int] | None = None
    targets: list[Target] | None = None
    k: Any = None  # a number, or a mapping from targets to numbers or lists of them
    ks: list[int] = field(default_factory=list)
    legacy_credit: bool = False
    failures: int = 1000
    days: float | None = None
    seed: int = 0
    out: str | None = None
    goodput: Any = MISSING
    paths: Any = MISSING


@dataclass
class AdviseConf:
    """The root of a question about one run."""

    run_dir: str | None = None
    k: int | None = None
    target: Target | None = None
    rto_seconds: float | None = None
    step_seconds: float | None = None
    mtbf_hours: float | None = None
    devices: int | None = None
    drain_steps: int | None = None
    tax: float | None = None
    save_seconds: float | None = None
    state_bytes: float | None = None
    bandwidth: float | None = None
    detection_seconds: float | None = None
    relaunch_seconds: float | None = None
    replay_seconds: float | None = None
    snapshot_seconds: float | None = None
    paths: Any = MISSING
