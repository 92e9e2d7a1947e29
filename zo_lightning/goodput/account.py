"""The account of one life: every second between two steps goes to exactly one of the shares."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from zo_lightning.goodput.kept import Kept
from zo_lightning.goodput.lives import Stretch, failures_of, read_lives, shares_of, training_seconds
from zo_lightning.goodput.sheet import Sheet

_LINE_SECONDS = 60.0  # of a stretch: what a torn line may take


class Account:
    """Opened when training begins in a process, told of every step, closed when it ends.

    Args:
        folder: the run's.
        step: steps done.
        now: ``time.time()`` at this moment. Later times go on from it by a clock that nobody sets.
        born: when this process started; None for one that a supervisor started, which nobody had to wait for.
    """

    def __init__(self, folder: Path, *, step: int, now: float, born: float | None) -> None:
        earlier = read_lives(folder)
        before = earlier[-1] if earlier else None
        self._newest = max((stretch.step for stretch in earlier), default=step)
        self._stretch = Stretch(life=before.life + 1 if before else 1, at=now, step=step)
        if before is not None and before.failed:
            gap = max(now - before.at, 0.0)
            idle = 0.0 if born is None else min(max(born - before.at, 0.0), gap)
            self._stretch.wall, self._stretch.idle, self._stretch.restart = gap, idle, gap - idle
        self._failures = failures_of([*earlier, self._stretch])
        self._sum = Stretch(life=0, at=0.0, step=0)  # of the lines that stay as they are
        for stretch in earlier:
            self._sum.absorb(stretch)
        self._sheet = Sheet(folder)
        self._began = now
        self._ahead = 0.0  # seconds since the last step that signs of life have accounted for
        self._is_warm = self._replays = False  # a new step, or a recorded one, was made in this life
        self._sheet.write(self._stretch)

    def live(self, now: float) -> None:
        """A sign of life where no step has ended, as in a long validation: the time until now was training."""
        stretch = self._stretch
        self._ahead += now - stretch.at
        stretch.wall += now - stretch.at
        stretch.at = now
        self._write(now)

    def step(self, step: int, now: float, *, replayed: bool, aside: float, kept: Kept | None) -> None:
        """A step has ended.

        Args:
            step: steps done.
            now: the time.
            replayed: whether it came from the journal.
            aside: seconds since the last step that were no part of one, as validation is.
            kept: what keeping the run has cost so far.
        """
        stretch = self._stretch
        begins_to_be_kept = stretch.kept is None and kept is not None
        elapsed, tax, stall = self._until(now, kept)
        elapsed, self._ahead = elapsed + self._ahead, 0.0
        if replayed:
            stretch.restart += elapsed
            if self._replays:  # the first one also waits for what is made once in a process
                stretch.replayed.add(elapsed)
            self._replays = True
        elif step <= self._newest:
            stretch.stall += stall
            stretch.rework += elapsed - stall
            stretch.redone += step - stretch.step
        else:
            stretch.tax += tax
            stretch.stall += stall
            if self._is_warm and not begins_to_be_kept:  # what that costs was paid over several steps
                times = stretch.busy if kept is not None and kept.busy else stretch.free
                times.add(elapsed - tax - stall - aside)
            self._is_warm, self._newest = True, step
        stretch.step = step
        self._write(now)

    def close(self, now: float, *, end: str, lost: bool, kept: Kept | None) -> None:
        """The life ends.

        Args:
            now: the time.
            end: how, see ``Stretch``.
            lost: whether what was done since the last step is thrown away.
            kept: what keeping the run has cost.
        """
        elapsed, tax, stall = self._until(now, kept)
        if lost:
            self._stretch.rework += elapsed
        else:
            self._stretch.tax += tax
            self._stretch.stall += stall
        self._stretch.end = end
        self._sheet.write(self._stretch)
        self._sheet.close()

    def figures(self) -> dict[str, float]:
        """Shares of the run's time so far, and the mean time between failures once there was one."""
        stretches = (self._sum, self._stretch)
        shares = shares_of(stretches)
        figures = asdict(shares) if shares else {}
        if self._failures:
            figures["mtbf_seconds"] = training_seconds(stretches) / self._failures
        return figures

    def _until(self, now: float, kept: Kept | None) -> tuple[float, float, float]:
        """Seconds since the last sign of life, and the parts of them that are tax and stall."""
        stretch, before = self._stretch, self._stretch.kept
        elapsed = now - stretch.at
        tax = kept.tax - (before.tax if before else 0.0) if kept else 0.0
        stall = kept.stall - (before.stall if before else 0.0) if kept else 0.0
        stretch.at, stretch.wall, stretch.kept = now, stretch.wall + elapsed, kept
        return elapsed, tax, stall

    def _write(self, now: float) -> None:
        self._sheet.write(self._stretch)
        if now - self._began >= _LINE_SECONDS:
            self._began = now
            self._sheet.begin_line()
            self._sum.absorb(self._stretch)
            last = self._stretch
            self._stretch = Stretch(life=last.life, at=last.at, step=last.step, kept=last.kept)
