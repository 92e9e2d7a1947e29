"""What a run has measured of itself, read from its folder, or given by hand."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.intervals import Interval, exactly, mean_of, mean_time_between
from zo_lightning.goodput.kept import Kept
from zo_lightning.goodput.lives import (
    LIVES,
    Stretch,
    by_life,
    failures_of,
    read_lines,
    read_lives,
    shares_of,
    training_seconds,
)
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.times import Times

FEWEST_STEPS = 10  # from which a mean is worth something
_INCIDENTS = "incidents.jsonl"  # of the supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's figures; None for what is not known. All times are seconds.

    Attributes:
        source: where they are from.
        way: how the run is kept: ``journal``, ``drain``, ``snapshot``, or None.
        steps: whose time is known.
        step: time of a step that nothing disturbs.
        drain_steps: steps from the beginning of a drain or a snapshot until it is durable.
        tax: share that steps take longer while a drain is on its way.
        late: steps that pass until a drain that has ended is durable.
        state_bytes: of a snapshot.
        bandwidth: of copies to the host, bytes a second.
        save: time of a save that training would wait for: copying the state and writing it.
        detection: from the last sign of life to knowing of a failure.
        relaunch: from there to training that is kept.
        failures: seen.
        training: time in which they could be seen.
        mtbf: of the whole job.
        replay: of a step that is taken from a journal.
        snapshot: that training pays for one snapshot of a journalled run.
        shares: of the run's own time; see ``Shares``.
    """

    source: str = "flags"
    way: str | None = None
    steps: int = 0
    step: Interval | None = None
    drain_steps: int | None = None
    tax: float | None = None
    late: int = 0
    state_bytes: int | None = None
    bandwidth: float | None = None
    save: float | None = None
    detection: float | None = None
    relaunch: float | None = None
    failures: int = 0
    training: float = 0.0
    mtbf: Interval | None = None
    replay: float | None = None
    snapshot: float | None = None
    shares: Shares | None = None

    def given(
        self,
        *,
        step_seconds: float | None = None,
        mtbf_hours: float | None = None,
        devices: int | None = None,
        drain_steps: int | None = None,
        tax: float | None = None,
        save_seconds: float | None = None,
        detection_seconds: float | None = None,
        relaunch_seconds: float | None = None,
        replay_seconds: float | None = None,
        snapshot_seconds: float | None = None,
    ) -> Measured:
        """With what is known better than it was measured.

        Args:
            step_seconds: of a step.
            mtbf_hours: of one device, or of the job where ``devices`` is not given.
            devices: of the job.
            drain_steps: of a drain.
            tax: while a drain is on its way.
            save_seconds: of a blocking save.
            detection_seconds: of a failure.
            relaunch_seconds: from there to training.
            replay_seconds: of a step from the journal.
            snapshot_seconds: of a snapshot of a journalled run.

        Raises:
            ConfigError: for a number out of its range.
        """
        seconds = {
            "save": save_seconds,
            "detection": detection_seconds,
            "relaunch": relaunch_seconds,
            "replay": replay_seconds,
            "snapshot": snapshot_seconds,
        }
        for name, value in seconds.items():
            _check(f"{name}_seconds", value, lowest=0.0)
        _check("step_seconds", step_seconds, lowest=0.0, above=True)
        _check("mtbf_hours", mtbf_hours, lowest=0.0, above=True)
        _check("devices", devices, lowest=1)
        _check("drain_steps", drain_steps, lowest=1)
        _check("tax", tax, lowest=0.0)
        if devices is not None and mtbf_hours is None:
            raise ConfigError("`devices` says how many fail, and not how often: give `mtbf_hours` of one beside it")
        numbers: dict[str, Any] = {"drain_steps": drain_steps, "tax": tax, **seconds}
        if drain_steps is not None and self.way != "journal":
            numbers |= {"way": "drain", "late": 0}
        if step_seconds is not None:
            numbers["step"] = exactly(step_seconds)
        if mtbf_hours is not None:
            numbers["mtbf"] = exactly(mtbf_hours * 3600 / (devices or 1))
        return replace(self, **{name: value for name, value in numbers.items() if value is not None})


def measured(folder: Path | str) -> Measured:
    """Read a run's folder.

    Args:
        folder: of a run with the callback ``goodput``, which may go on.

    Raises:
        ConfigError: if it holds no account of its time.
    """
    folder = Path(folder)
    stretches = read_lives(folder)
    if not stretches:
        raise ConfigError(
            f"`run_dir={folder}`: there is no {LIVES}; the callback of `callbacks=default` writes it. Or give "
            "the figures as flags, without `run_dir`"
        )
    kept = [last.kept for *_, last in by_life(stretches) if last.kept is not None and last.kept.saves]
    replayed = sum((stretch.replayed for stretch in stretches), Times())
    step, slower = _step(stretches)
    failures, training = failures_of(stretches), training_seconds(stretches)
    detection, relaunch = _restarts(folder, stretches)
    if relaunch is not None and kept:
        relaunch += statistics.fmean(k.start for k in kept)
    return Measured(
        source=str(folder),
        way=kept[-1].way if kept else None,
        steps=sum(s.free.count + s.busy.count for s in stretches),
        step=step,
        state_bytes=kept[-1].state_bytes or None if kept else None,
        bandwidth=kept[-1].bandwidth or None if kept else None,
        **(_cost(kept, stretches, step.value, slower) if kept and step else {}),
        detection=detection,
        relaunch=relaunch,
        failures=failures,
        training=training,
        mtbf=mean_time_between(failures, training),
        replay=replayed.mean if replayed.count >= FEWEST_STEPS else None,
        shares=shares_of(stretches),
    )


def _step(stretches: Sequence[Stretch]) -> tuple[Interval | None, float]:
    """Time of a step, and the share by which it is longer while a snapshot is on its way, if that is beyond doubt."""
    free, busy = (sum((getattr(stretch, name) for stretch in stretches), Times()) for name in ("free", "busy"))
    if min(free.count, busy.count) < FEWEST_STEPS:
        return (mean_of(free + busy) if free.count + busy.count >= FEWEST_STEPS else None), 0.0
    alone, beside = mean_of(free), mean_of(busy)
    return (alone, beside.value / alone.value - 1) if beside.low > alone.high else (mean_of(free + busy), 0.0)


def _cost(kept: Sequence[Kept], stretches: Sequence[Stretch], step: float, slower: float) -> dict[str, Any]:
    """How long drains take, what they cost while they do, and what a save would that training waits for."""
    saves, snapshots, last = sum(k.saves for k in kept), sum(k.snapshots for k in kept), kept[-1]
    if not (saves and snapshots):
        return {}
    stall, beside = sum(k.stall - k.start for k in kept), sum(stretch.busy.count for stretch in stretches)
    paid = stall + sum(k.tax for k in kept)
    written = sum(k.save_seconds for k in kept) / saves
    if last.way == "journal":
        taken = stall + sum(k.snapshot_seconds for k in kept)
        made = sum(stretch.free.count + stretch.busy.count for stretch in stretches)
        return {"tax": (paid - taken) / (made * step), "snapshot": (taken + slower * beside * step) / snapshots}
    late = math.ceil(written / step)
    steps = max(last.drain_steps, late)
    return {
        "drain_steps": steps,
        "late": late if last.way == "drain" else 0,
        "tax": paid / (snapshots * steps * step) + slower,
        "save": last.state_bytes / last.bandwidth + written,
    }


def _restarts(folder: Path, stretches: Sequence[Stretch]) -> tuple[float | None, float | None]:
    """Median times to know of a failure and to train again: the supervisor's, or all of it from the lives."""
    whole = list(read_lines(folder / _INCIDENTS, _incident))
    if whole:
        return statistics.median(detection for detection, _ in whole), statistics.median(
            relaunch for _, relaunch in whole
        )
    firsts = [life[0] for life in by_life(stretches)[1:]]
    gaps = [s.restart - s.replayed.total for s in firsts if s.restart > s.replayed.total]
    return (0.0, statistics.median(gaps)) if gaps else (None, None)


def _incident(line: bytes) -> tuple[float, float]:
    """Detection and relaunch; ``ValueError`` where the line is torn, or the run did not go on after it."""
    match json.loads(line):
        case {"detection": int() | float() as detection, "relaunch": int() | float() as relaunch}:
            return detection, relaunch
    raise ValueError("no whole incident")


def _check(key: str, value: float | None, *, lowest: float, above: bool = False) -> None:
    if value is None or ((lowest < value if above else lowest <= value) and math.isfinite(value)):
        return
    raise ConfigError(f"`{key}`={value}: a number, {'above' if above else 'at least'} {lowest:g}")
