"""What a run's lives have cost: its steps, its checkpoints, and its restarts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_lightning.goodput.intervals import Interval, exactly, mean_of, ratio_of
from zo_lightning.goodput.lives import Stretch, read_lines
from zo_lightning.goodput.times import Times

FEWEST_STEPS = 10  # from which a mean is worth something
_INCIDENTS = "incidents.jsonl"  # of the supervisor
_NO_SLOWDOWN = exactly(0.0)


def step_time(stretches: Sequence[Stretch]) -> tuple[Interval | None, Interval | None]:
    """Time of a step, and the share by which it is longer while a snapshot is on its way.

    Either is None if too few steps were timed. The share is 0 with an upper end alone unless it is beyond doubt.

    Args:
        stretches: of all lives.
    """
    free, busy = (sum((getattr(stretch, name) for stretch in stretches), Times()) for name in ("free", "busy"))
    both = mean_of(free + busy) if free.count + busy.count >= FEWEST_STEPS else None
    if min(free.count, busy.count) < FEWEST_STEPS:
        return both, None
    alone, beside = mean_of(free), mean_of(busy)
    most = max(beside.high / alone.low - 1, 0.0) if alone.low else math.inf
    if beside.low > alone.high:
        return alone, Interval(beside.value / alone.value - 1, beside.low / alone.high - 1, most)
    return both, Interval(0.0, 0.0, most)


def checkpoint_costs(lives: Sequence[Sequence[Stretch]], step: float, slowdown: Interval | None) -> dict[str, Any]:
    """How long checkpoints take, what they cost while they do, and what a save would that training waits for.

    Args:
        lives: with a checkpoint that was completed, by their stretches.
        step: seconds of a step.
        slowdown: see ``step_time``.

    Returns:
        Values of ``Measured`` by their names.
    """
    kept = [stretch.kept for *_, stretch in lives if stretch.kept is not None]
    last, slower, snapshots = kept[-1], slowdown or _NO_SLOWDOWN, sum(k.snapshots for k in kept)
    if last.way == "journal":
        made = [sum(s.free.count + s.busy.count for s in life) * step for life in lives]
        beside = sum(stretch.busy.count for life in lives for stretch in life) * step
        taken = sum(k.stall + k.snapshot_seconds for k in kept)
        return {
            "tax": ratio_of([k.tax - k.snapshot_seconds for k in kept], made) if any(made) else None,
            "snapshot": (taken + slower.value * beside) / snapshots,
        }
    written = sum(k.save_seconds for k in kept) / sum(k.saves for k in kept)
    late = math.ceil(written / step)
    steps = max(last.drain_steps, late)
    paid = ratio_of([k.stall - k.start + k.tax for k in kept], [k.snapshots * steps * step for k in kept])
    return {
        "drain_steps": steps,
        "late": late if last.way == "drain" else 0,
        "tax": paid + slower,
        "save": last.state_bytes / last.bandwidth + written if last.bandwidth else None,
        "state_bytes": last.state_bytes or None,
        "bandwidth": last.bandwidth or None,
    }


def restarts_of(folder: Path, lives: Sequence[Sequence[Stretch]]) -> dict[str, Any]:
    """Times to know of a failure and to train again: the supervisor's, or all of it from the lives.

    Args:
        folder: the run's.
        lives: all of them, by their stretches.

    Returns:
        Values of ``Measured`` by their names.
    """
    heard = list(read_lines(folder / _INCIDENTS, _incident))
    firsts = [life[0] for life in lives[1:]]
    gaps = [first.restart - first.replayed.total for first in firsts if first.restart > first.replayed.total]
    detections, relaunches = zip(*heard, strict=True) if heard else ((), gaps)
    detection = mean_of(Times.of(detections)) if detections else None
    relaunch = mean_of(Times.of(relaunches)) if relaunches else None
    if relaunch is not None:
        starts = [stretch.kept.start for *_, stretch in lives if stretch.kept is not None]
        relaunch += exactly(sum(starts) / len(starts) if starts else 0.0)
    return {"detection": detection, "relaunch": relaunch, "restarts": len(relaunches)}


def _incident(line: bytes) -> tuple[float, float]:
    """Detection and relaunch; ``ValueError`` where the line is torn, or the run did not go on after it."""
    match json.loads(line):
        case {"detection": int() | float() as detection, "relaunch": int() | float() as relaunch}:
            return detection, relaunch
    raise ValueError("no whole incident")
