"""Sees to it that there is a host process: a lost one is counted, said and replaced after a pause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import fields, replace

from zo_lightning.drain.messages import Report, exactness
from zo_lightning.drain.process import Host

log = logging.getLogger(__name__)

_HUNG_SECONDS = 60.0
_PAUSES = (1.0, 60.0)  # seconds before a lost host process is replaced: at first, and at most


class Attendant:
    """Holds a run's host process.

    Attributes:
        host: the process; none before ``start`` and while a lost one is not replaced.
        report: what it has said last.
        num_lost: processes lost so far.
    """

    def __init__(self) -> None:
        self.host: Host | None = None
        self.report, self._earlier = Report(), Report()
        self.num_lost = 0
        self._start_at, self._pause = 0.0, _PAUSES[0]

    @property
    def total(self) -> Report:
        """What this and earlier processes have said: counts added up, the newest of the rest."""
        return _sum(self._earlier, self.report)

    def start(self) -> bool:
        """Start a process unless it is too early after the last loss; whether there is one now."""
        if self.host is None and time.monotonic() >= self._start_at:
            try:
                self.host = Host()
            except OSError as error:
                self.lose(f"it cannot start: {error}")
        return self.host is not None

    def poll(self) -> None:
        """Hear what it has to say."""
        if self.host is not None:
            self._hear(self.host.poll())

    def trouble(self) -> str | None:
        """Why the process is of no use any more, if it is not."""
        assert self.host is not None
        if not self.host.alive:
            return "it ended"
        return f"it said nothing for {_HUNG_SECONDS:.0f} s" if self.host.silence > _HUNG_SECONDS else None

    def lose(self, reason: str) -> None:
        """Give the process up."""
        if self.host is not None:
            self.host.kill()
        self.host = None
        self._earlier, self.report = self.total, Report()
        self.num_lost += 1
        log.error("the drain's host process is lost (%s): another one starts in %.0f s", reason, self._pause)
        self._start_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _PAUSES[1])

    def wait_ready(self, seconds: float, meanwhile: Callable[[], None]) -> bool:
        """Whether the process can take a window, waiting at most so long for it."""
        deadline = time.monotonic() + seconds
        while self.host is not None and not self.host.ready and self.host.alive and time.monotonic() < deadline:
            self._hear(self.host.poll(0.05))
            meanwhile()
        return self.host is not None and self.host.ready

    def finish(self, seconds: float) -> None:
        """Let the process finish what it has, within so many seconds, and end it. Idempotent."""
        if self.host is not None:
            self._hear(self.host.finish(seconds))
            self.host = None

    def _hear(self, report: Report | None) -> None:
        if report is None:
            return
        if report.refused > self.report.refused:
            log.error("a snapshot was refused, older ones are as they were: %s", report.problem)
        if report.saved_step != self.report.saved_step:
            self._pause = _PAUSES[0]
            level = logging.INFO if report.bound else logging.DEBUG
            log.log(level, "step %s is durable, %s", report.saved_step, exactness(report.bound))
        self.report = report


def _sum(earlier: Report, later: Report) -> Report:
    counts = {f.name: getattr(earlier, f.name) + getattr(later, f.name) for f in fields(Report) if f.type == "int"}
    saved = later if later.saved_step is not None else earlier
    return replace(
        later,
        **counts,
        saved_step=saved.saved_step,
        verified_step=saved.verified_step,
        bound=saved.bound,
        seconds=earlier.seconds + later.seconds,
    )
