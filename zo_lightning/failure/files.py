"""Files on a disk that fails: what a journal and a store must survive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zo_lightning.checkpoint.files import LocalFiles, OpenFile

if TYPE_CHECKING:
    from zo_lightning.failure.failures import Failures
    from zo_lightning.failure.storage import StorageFault


class FaultyFiles(LocalFiles):
    """The operating system's files, whose writes and syncs fail as a run's failures say.

    Args:
        failures: the run's.
    """

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    def create(self, path: Path) -> OpenFile:
        """See ``Files``."""
        return self._faulty(super().create(path))

    def append(self, path: Path) -> OpenFile:
        """See ``Files``."""
        return self._faulty(super().append(path))

    def _faulty(self, file: OpenFile) -> OpenFile:
        for fault in self._failures.of_files:
            file = _FaultyFile(file, fault, self._failures)
        return _CountedFile(file, self._failures)


class _CountedFile:
    """Comes before the faults: they strike at bytes of the whole run."""

    def __init__(self, file: OpenFile, failures: Failures) -> None:
        self._file, self._failures = file, failures
        self.sync, self.close = file.sync, file.close

    def write(self, data: bytes) -> None:
        self._failures.num_bytes += len(data)
        self._file.write(data)


class _FaultyFile:
    def __init__(self, file: OpenFile, fault: StorageFault, failures: Failures) -> None:
        self._file, self._fault, self._failures = file, fault, failures
        self.close = file.close

    def write(self, data: bytes) -> None:
        if self._fault.at_write and self._failures.strikes(self._fault):
            self._fault.write(self._file, data, self._failures.num_bytes - len(data))
        else:
            self._file.write(data)

    def sync(self) -> None:
        if self._fault.at_sync and self._failures.strikes(self._fault):
            self._fault.sync(self._file)
        else:
            self._file.sync()
