"""What a run has measured of itself, read from its folder, or given by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zo_lightning.errors import ConfigError
from zo_lightning.goodput.checks import COUNTABLE, LEAST, MOST, refuse_outside
from zo_lightning.goodput.costs import FEWEST_STEPS, checkpoint_costs, restarts_of, step_time
from zo_lightning.goodput.intervals import Interval, exactly, mean_time_between
from zo_lightning.goodput.lives import LIVES, by_life, failures_of, read_lives, shares_of, training_seconds
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.times import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's figures; None for what is not known. All times are seconds.

    Attributes:
        source: the run's folder; None without a run.
        way: how the run is kept: ``journal``, ``drain``, ``snapshot``, or None.
        steps: whose time is known.
        redone: steps made again.
        step: time of a step that nothing disturbs.
        drain_steps: steps from the beginning of a drain or a snapshot until it is durable.
        tax: share that steps take longer while a drain is on its way; of a journal, all steps.
        tells_slowdown: whether ``tax``, or of a journal ``snapshot``, has what a snapshot on its way slows steps by.
        late: steps that pass until a drain that has ended is durable.
        state_bytes: of a snapshot.
        bandwidth: of copies to the host, bytes a second.
        save: time of a save that training would wait for: copying the state and writing it.
        detection: from the last sign of life to knowing of a failure.
        relaunch: from there to training that is kept; all of a restart where ``detection`` is not known.
        restarts: seen.
        failures: seen.
        training: time in which they could be seen.
        mtbf: of the whole job.
        replay: of a step that is taken from a journal.
        snapshot: that training pays for one snapshot of a journalled run.
        shares: of the run's own time; see ``Shares``.
    """

    source: str | None = None
    way: str | None = None
    steps: int = 0
    redone: int = 0
    step: Interval | None = None
    drain_steps: int | None = None
    tax: Interval | None = None
    tells_slowdown: bool = True
    late: int = 0
    state_bytes: float | None = None
    bandwidth: float | None = None
    save: float | None = None
    detection: Interval | None = None
    relaunch: Interval | None = None
    restarts: int = 0
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
        state_bytes: float | None = None,
        bandwidth: float | None = None,
        detection_seconds: float | None = None,
        relaunch_seconds: float | None = None,
        replay_seconds: float | None = None,
        snapshot_seconds: float | None = None,
    ) -> Measured:
        """With what is known better than it was measured.

        What is given says how the run is kept, too: by a drain if its steps are, else by a journal if the time of a
        replayed step or of a snapshot of the factors is, else, where nothing is known of it, by plain snapshots if it
        is known how long the state takes to copy.

        Args:
            step_seconds: of a step.
            mtbf_hours: of one device, or of the job where ``devices`` is not given.
            devices: of the job.
            drain_steps: of a drain.
            tax: while a drain is on its way.
            save_seconds: of a blocking save.
            state_bytes: of a device's state.
            bandwidth: of a device's copies to the host, bytes a second.
            detection_seconds: of a failure.
            relaunch_seconds: from there to training.
            replay_seconds: of a step from the journal.
            snapshot_seconds: of a snapshot of a journalled run.

        Raises:
            ConfigError: for a number out of its range.
        """
        ranges: dict[str, tuple[float | None, float]] = {
            "step_seconds": (step_seconds, LEAST),
            "mtbf_hours": (mtbf_hours, LEAST),
            "devices": (devices, 1),
            "drain_steps": (drain_steps, 1),
            "tax": (tax, 0),
            "save_seconds": (save_seconds, 0),
            "state_bytes": (state_bytes, LEAST),
            "bandwidth": (bandwidth, LEAST),
            "detection_seconds": (detection_seconds, 0),
            "relaunch_seconds": (relaunch_seconds, 0),
            "replay_seconds": (replay_seconds, LEAST),
            "snapshot_seconds": (snapshot_seconds, 0),
        }
        for key, (value, least) in ranges.items():
            if value is not None:
                refuse_outside(key, value, least, COUNTABLE if least == 1 else MOST)
        if devices is not None and mtbf_hours is None:
            raise ConfigError("`devices` says how many fail, and not how often: give `mtbf_hours` of one beside it")
        mtbf = None if mtbf_hours is None else mtbf_hours * 3600 / (devices or 1)
        intervals = {
            "step": step_seconds,
            "mtbf": mtbf,
            "tax": tax,
            "detection": detection_seconds,
            "relaunch": relaunch_seconds,
        }
        numbers: dict[str, Any] = {
            "drain_steps": drain_steps,
            "save": save_seconds,
            "state_bytes": state_bytes,
            "bandwidth": bandwidth,
            "replay": replay_seconds,
            "snapshot": snapshot_seconds,
            **{name: exactly(value) for name, value in intervals.items() if value is not None},
        }
        found = replace(self, **{name: value for name, value in numbers.items() if value is not None})
        if tax is not None:
            found = replace(found, tells_slowdown=True)
        if drain_steps is not None:
            return found if self.way == "journal" else replace(found, way="drain", late=0)
        if replay_seconds is not None or snapshot_seconds is not None:
            return replace(found, way="journal")
        copies = found.state_bytes is not None and found.bandwidth is not None
        return replace(found, way="snapshot") if found.way is None and copies and tax is None else found


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
            f"`run_dir={folder}`: there is no {LIVES} of this version; the callback of `callbacks=default` writes it. "
            "Or give the figures as flags, without `run_dir`"
        )
    lives = by_life(stretches)
    saved = [life for life in lives if (kept := life[-1].kept) is not None and kept.saves and kept.snapshots]
    newest = [life[-1].kept for life in saved or lives if life[-1].kept is not None][-1:]
    replayed = sum((stretch.replayed for stretch in stretches), Times())
    step, slowdown = step_time(stretches)
    failures, training = failures_of(stretches), training_seconds(stretches)
    return Measured(
        source=str(folder),
        way=newest[0].way if newest else None,
        steps=sum(s.free.count + s.busy.count for s in stretches),
        redone=sum(stretch.redone for stretch in stretches),
        step=step,
        tells_slowdown=slowdown is not None,
        **(checkpoint_costs(saved, step.value, slowdown) if saved and step else {}),
        **restarts_of(folder, lives),
        failures=failures,
        training=training,
        mtbf=mean_time_between(failures, training),
        replay=replayed.mean if replayed.count >= FEWEST_STEPS else None,
        shares=shares_of(stretches),
    )
