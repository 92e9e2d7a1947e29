"""All failures of a run: which are due, and that each strikes as often as it should."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from zo_lightning.checkpoint.files import Files, LocalFiles
from zo_lightning.failure.fault import Fault, Moment
from zo_lightning.failure.files import FaultyFiles
from zo_lightning.failure.ledger import Ledger
from zo_lightning.failure.process import CrossDeviceTmp, Poisson, ProcessFault
from zo_lightning.failure.storage import StorageFault

log = logging.getLogger(__name__)


class Failures:
    """The failures that a run is to meet.

    Args:
        faults: what ``failure`` names.
        folder: the run's, where the record of those that struck lies.

    Raises:
        ConfigError: for one that cannot be had on this machine.
    """

    def __init__(self, faults: Sequence[Fault], folder: Path) -> None:
        self.of_process = tuple(f for f in faults if isinstance(f, ProcessFault) and f.byte is None)
        self.of_files = tuple(f for f in faults if isinstance(f, StorageFault) and f not in self.of_process)
        self.ledger = Ledger(folder)
        self.step = 0
        self.num_bytes = 0
        self.began: float | None = None  # training, in this process
        self._left: dict[str, int] = {}  # by name: strikes that remain of a failure that has begun
        self._lock = threading.RLock()  # training, the journal and the saver ask
        for fault in faults:
            if isinstance(fault, CrossDeviceTmp):
                fault.check(folder)

    @property
    def now(self) -> Moment:
        """Where the run is."""
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        return Moment(self.step, seconds, self.num_bytes)

    def start(self, step: int) -> None:
        """Training begins in this process, after ``step`` steps of the run."""
        self.step, self.began = step, time.monotonic()

    def count(self, num_bytes: int) -> int:
        """Count the bytes of a write; returns how many there were before it."""
        with self._lock:
            before, self.num_bytes = self.num_bytes, self.num_bytes + num_bytes
        return before

    def strikes(self, fault: Fault, *, byte: int | None = None) -> bool:
        """Whether a failure strikes now. The first time, its record is on the disk when this returns.

        Args:
            fault: the failure.
            byte: the end of the write that asks; by default all that was written.
        """
        with self._lock:
            return self._strikes(fault, self.now if byte is None else self.now._replace(byte=byte))

    def _strikes(self, fault: Fault, now: Moment) -> bool:
        if isinstance(fault, Poisson):
            return fault.strikes_at(self.step) and self._claim(fault, step=self.step)
        if not fault.is_due(now):
            return False
        if fault.name not in self._left:
            claimed = self._claim(fault)
            self._left[fault.name] = fault.times if claimed or fault.lasts else 0
        self._left[fault.name] -= 1
        return fault.lasts or self._left[fault.name] >= 0

    def strikes_from_timer(self, fault: ProcessFault) -> bool:
        """The same for one whose timer has run out."""
        return self._claim(fault, step=self.step if isinstance(fault, Poisson) else None)

    def delay(self, fault: ProcessFault) -> float | None:
        """Seconds from the start of training after which a failure strikes from a timer; None if none does."""
        if isinstance(fault, Poisson):
            return fault.gap(sum(entry["failure"] == fault.name for entry in self.ledger.entries()))
        return fault.seconds if fault.from_timer else None

    def _claim(self, fault: Fault, *, step: int | None = None) -> bool:
        now = self.now
        if not self.ledger.claim(fault.name, now, step=step):
            return False
        log.warning("failure injected: %s at step %d, %.2f s, byte %d", fault.name, *now)
        return True


def files_for(failures: Failures | None) -> Files:
    """The files that a run's journal and store write through: with its failures of disks, or the system's own."""
    return FaultyFiles(failures) if failures is not None and failures.of_files else LocalFiles()
