"""Figures of which none is missing: what plans rest on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.costs import FEWEST_STEPS
from zo_lightning.goodput.intervals import Interval, exactly
from zo_lightning.goodput.measured import Measured
from zo_lightning.goodput.model import Job
from zo_lightning.goodput.words import seconds

_NO_CHECKPOINT = "no checkpoint was completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What every plan needs. All times are seconds.

    Attributes:
        found: where it is from.
        step: see ``Measured``.
        mtbf: see ``Measured``.
        detection: see ``Measured``; None where only the whole restart is known.
        relaunch: see ``Measured``.
    """

    found: Measured
    step: Interval
    mtbf: Interval
    detection: Interval | None
    relaunch: Interval

    @property
    def restart(self) -> Interval:
        """From a failure to training."""
        return self.relaunch + (self.detection or exactly(0.0))

    @property
    def job(self) -> Job:
        """The estimates, without what checkpoints cost."""
        return Job(
            devices=1,
            step_seconds=self.step.value,
            drain_steps=1,
            tax=0.0,
            save_seconds=0.0,
            detection_seconds=self.detection.value if self.detection else 0.0,
            relaunch_seconds=self.relaunch.value,
            mtbf_hours=self.mtbf.value / 3600,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What a drain costs; see ``Measured``."""

    steps: int
    tax: Interval
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What a plain snapshot copies to the host; see ``Measured``."""

    state_bytes: float
    bandwidth: float

    @property
    def seconds(self) -> float:
        """That it takes."""
        return self.state_bytes / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOrder(Known):
    """A run whose optimizer's state has to be saved; None for what it cannot do or has not measured.

    Attributes:
        save: see ``Measured``.
        drain: what it costs.
        copy: what a plain snapshot costs.
    """

    save: float
    drain: Drain | None
    copy: Copy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journalled(Known):
    """A run whose steps are in a journal; see ``Measured``."""

    tax: Interval
    replay: float
    snapshot: float


def complete(found: Measured) -> FirstOrder | Journalled:
    """Figures that suffice.

    Args:
        found: what is known.

    Raises:
        ConfigError: with all that has to be given.
    """
    missing = _missing(found)
    match found:
        case Measured(step=Interval() as step, mtbf=Interval() as mtbf, relaunch=Interval() as relaunch) if not missing:
            common = {"found": found, "step": step, "mtbf": mtbf, "detection": found.detection, "relaunch": relaunch}
            match found:
                case Measured(
                    way="journal",
                    tax=Interval() as tax,
                    replay=int() | float() as replay,
                    snapshot=int() | float() as cost,
                ):
                    return Journalled(**common, tax=tax, replay=replay, snapshot=cost)  # type: ignore[arg-type]
                case Measured(save=int() | float() as save):
                    return FirstOrder(**common, save=save, drain=_drain(found), copy=_copy(found))  # type: ignore[arg-type]
    lines = "; ".join(f"{reason}: give {', '.join(keys)}" for reason, keys in missing.items())
    raise ConfigError(f"{found.source or 'advise'}: too little is known. {lines[:1].upper()}{lines[1:]}")


def _drain(found: Measured) -> Drain | None:
    if found.way == "snapshot" or found.drain_steps is None or found.tax is None:
        return None
    return Drain(steps=found.drain_steps, tax=found.tax, late=found.late)


def _copy(found: Measured) -> Copy | None:
    if found.state_bytes is None or found.bandwidth is None:
        return None
    return Copy(state_bytes=found.state_bytes, bandwidth=found.bandwidth)


def _missing(found: Measured) -> dict[str, list[str]]:
    """Flags by the reason why nothing is known without them."""
    reasons: dict[str, list[str]] = {}
    for key, is_known, reason in _wanted(found):
        if not is_known:
            reasons.setdefault(reason if found.source else "no run has measured the rest", []).append(f"`{key}`")
    return reasons


def _wanted(found: Measured) -> list[tuple[str, bool, str]]:
    """Flag, whether its figure is known, and why it is not."""
    unseen = "nothing says how often it fails"
    if found.mtbf is not None:
        unseen = (
            f"no failure was seen in {seconds(found.training)} of training, so that with 95 % confidence one "
            f"comes less often than every {seconds(found.mtbf.low)}"
        )
    wanted = [
        ("step_seconds", found.step is not None, f"{found.steps} steps were timed, of {FEWEST_STEPS} that make a mean"),
        ("mtbf_hours", found.mtbf is not None and math.isfinite(found.mtbf.value), unseen),
        ("detection_seconds", found.detection is not None or found.restarts > 0, "no restart was seen"),
        ("relaunch_seconds", found.relaunch is not None, "no restart was seen"),
    ]
    if found.way != "snapshot":
        wanted.append(("tax", found.tax is not None, _NO_CHECKPOINT))
    if found.way == "journal":
        replayed = f"fewer than {FEWEST_STEPS} steps were taken from the journal"
        return [
            *wanted,
            ("snapshot_seconds", found.snapshot is not None, _NO_CHECKPOINT),
            ("replay_seconds", found.replay is not None, replayed),
        ]
    if found.way != "snapshot":
        wanted.append(("drain_steps", found.drain_steps is not None, _NO_CHECKPOINT))
    return [*wanted, ("save_seconds", found.save is not None, _NO_CHECKPOINT)]
