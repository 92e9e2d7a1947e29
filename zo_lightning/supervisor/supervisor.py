"""Keeps a run going: notices deaths and hangs, starts the run again, and knows when that is of no use."""

from __future__ import annotations

import logging
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zo_lightning.supervisor.child import Child, Heard
from zo_lightning.supervisor.heartbeat import AGAIN, FIRST, RESTORING, SPARE, STANDING_BY, TRAINING, Beat
from zo_lightning.supervisor.incidents import Incident, Report
from zo_lightning.supervisor.patience import Patience

log = logging.getLogger(__name__)

FINAL = frozenset({0, 2})  # the end, and an error that a new start would meet again
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """When to act.

    Args:
        spare: whether a second process waits, ready to take over.
        max_restarts: after so many the supervisor gives up.
        max_without_progress: and after so many in a row without a new step.
        pause: seconds before a restart that follows one without progress; doubled each time.
        start_timeout: seconds of silence before a process's first piece of work in a phase, as in an engine's start.
        hang_floor: seconds of silence at least.
        hang_factor: times the 95th percentile of the step time.
    """

    spare: bool = False
    max_restarts: int = 20
    max_without_progress: int = 3
    pause: float = 1.0
    start_timeout: float = 900.0
    hang_floor: float = 10.0
    hang_factor: float = 10.0


class Supervisor:
    """Runs one command until it has ended for good.

    Args:
        command: makes the process's arguments for a role.
        folder: the run's.
        settings: when to act.
    """

    def __init__(self, command: Callable[[str], Sequence[str]], folder: Path, settings: Settings) -> None:
        self._command, self._folder, self._settings = command, folder, settings
        self._heard: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()
        self._patience = Patience(start=settings.start_timeout, floor=settings.hang_floor, factor=settings.hang_factor)
        self._report = Report()
        self._asked: int | None = None  # to end, by this signal
        self._step = 0  # the newest that any process has done
        self._without_progress = 0
        self._primary: Child | None = None
        self._spare: Child | None = None
        self._spares_lost = 0
        self._open: Incident | None = None  # until a new step
        self._detected = 0.0

    def run(self) -> Report:
        """Until the run has ended, was asked to end, or cannot be mended."""
        with self._signals_handed_on():
            try:
                primary = self._lead(self._start(FIRST))
                while not self._is_over(child := self._watched(primary)):
                    primary = self._lead(self._successor(child))
            finally:
                for process in (self._primary, self._spare):
                    if process is not None:
                        process.end()
        self._close_incident()
        self._report.exit_code = child.exit_code
        return self._report

    def _lead(self, child: Child) -> Child:
        self._primary = child
        if self._asked:  # while it was started, when there was nobody to hand it to
            child.send(self._asked)
        return child

    def _watched(self, child: Child) -> Child:
        """The primary, once it has ended: by itself, or killed for its silence."""
        began_at = self._step
        while (heard := self._take(self._time_left(child))) is None or heard.child is not child or heard.beat:
            if child.killed_in is None and self._time_left(child) <= 0:
                self._detected, child.killed_in = time.monotonic(), child.phase
                child.kill()
        self._without_progress = 0 if self._step > began_at else self._without_progress + 1
        if child.killed_in is None:
            self._detected = heard.at
        return child

    def _time_left(self, child: Child) -> float:
        if child.killed_in is not None:
            return self._settings.start_timeout  # only its end is still to come
        bound = self._patience.bound(child.phase) if child.phase in child.warm else self._settings.start_timeout
        return max(child.last_heard + bound - time.monotonic(), 0.0)

    def _take(self, seconds: float) -> Heard | None:
        """The next thing heard, taken note of; None if there is none in time, or a signal came."""
        try:
            heard = self._heard.get(timeout=seconds)
        except queue.Empty:
            return None
        if heard is not None and heard.beat is not None:
            self._note(heard.child, heard.at, heard.beat)
        elif heard is not None and heard.child is self._spare:
            self._spare, self._spares_lost = None, self._spares_lost + 1
            log.warning("the spare ended with exit code %d", heard.child.exit_code)
        return heard

    def _note(self, child: Child, at: float, beat: Beat) -> None:
        if beat.done and beat.phase in child.warm and beat.phase == child.phase:
            self._patience.learn(beat.phase, at - child.last_heard)
        if beat.done:
            child.warm.add(beat.phase)
        restored, child.step = child.step, beat.step
        child.phase, child.last_heard = beat.phase, at
        if beat.phase == STANDING_BY:
            log.info("a spare stands by")
        if child is not self._primary or beat.phase not in (RESTORING, TRAINING):
            return
        if self._open is not None and self._open.relaunch is None:
            self._open.relaunch = at - self._detected
        if beat.phase == TRAINING and beat.done:
            self._note_step(at, restored, beat.step)

    def _note_step(self, at: float, restored: int, step: int) -> None:
        """A step, or a part of one, that was not in the journal; the first one goes on from what was restored."""
        incident = self._open
        if incident is not None and incident.steps_lost is None:
            incident.steps_lost = max(incident.step - restored, 0)
        if step <= self._step:
            return
        self._step = step
        if incident is not None:
            incident.first_step = at - self._detected
            self._close_incident()
            log.info(
                "the run goes on: step %d, %.2f s later, %s steps lost", step, incident.first_step, incident.steps_lost
            )
        if self._settings.spare and self._spare is None and self._spares_lost < self._settings.max_without_progress:
            self._spare = self._start(SPARE)

    def _is_over(self, child: Child) -> bool:
        if self._asked or child.exit_code in FINAL:
            return True
        if len(self._report.incidents) >= self._settings.max_restarts:
            self._report.reason = f"{self._settings.max_restarts} restarts, see `supervise.max_restarts`"
        elif self._without_progress >= self._settings.max_without_progress:
            self._report.reason = f"no new step in {self._without_progress} starts, the last with the error above"
        if self._report.reason:
            log.error("giving up: %s", self._report.reason)
        return bool(self._report.reason)

    def _successor(self, child: Child) -> Child:
        cause = f"hang in {child.killed_in}" if child.killed_in else f"exit code {child.exit_code}"
        now = datetime.now(UTC).isoformat()
        incident = Incident(cause=cause, step=self._step, detection=self._detected - child.last_heard, time=now)
        self._report.incidents.append(incident)
        self._close_incident()  # an earlier one, after which there was no new step
        self._open = incident
        log.warning("the run has ended: %s after step %d", cause, self._step)
        if self._spare is not None:
            incident.by_spare, successor, self._spare = True, self._spare, None
            successor.take_over()
            return successor
        self._pause()
        return self._start(AGAIN)

    def _close_incident(self) -> None:
        if self._open is not None:
            self._report.note(self._open, self._folder)
            self._open = None

    def _pause(self) -> None:
        if not self._without_progress:
            return
        longest = min(self._settings.pause * 2 ** (self._without_progress - 1), _LONGEST_PAUSE)
        until = time.monotonic() + longest
        while not self._asked and (left := until - time.monotonic()) > 0:
            self._take(left)

    def _start(self, role: str) -> Child:
        return Child(self._command(role), role, self._heard.put)

    @contextmanager
    def _signals_handed_on(self) -> Iterator[None]:
        def hand_on(number: int, _: Any) -> None:
            self._asked = number
            if self._primary is not None:
                self._primary.send(number)
            self._heard.put(None)  # wakes a pause

        before = {number: signal.signal(number, hand_on) for number in _HANDED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
