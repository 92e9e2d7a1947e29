"""Files on a disk that fails: what a journal and a store must survive."""

from __future__ import annotations

from dataclasses import dataclass
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
        span = _Span()
        for fault in self._failures.of_files:
            file = _FaultyFile(file, fault, self._failures, span)
        return _CountedFile(file, self._failures, span)


@dataclass
class _Span:
    """The bytes of a file's newest write among those of the whole process; a file has one writer at a time."""

    start: int = 0
    end: int = 0


class _CountedFile:
    """Comes before the faults: they strike at bytes of the whole run."""

    def __init__(self, file: OpenFile, failures: Failures, span: _Span) -> None:
        self._file, self._failures, self._span = file, failures, span
        self.sync, self.close = file.sync, file.close

    def write(self, data: bytes) -> None:
        self._span.start = self._failures.count(len(data))
        self._span.end = self._span.start + len(data)
        self._file.write(data)


class _FaultyFile:
    def __init__(self, file: OpenFile, fault: StorageFault, failures: Failures, span: _Span) -> None:
        self._file, self._fault, self._failures, self._span = file, fault, failures, span
        self.close = file.close

    def write(self, data: bytes) -> None:
        if self._fault.at_write and self._failures.strikes(self._fault, byte=self._span.end):
            self._fault.write(self._file, data, self._span.start)
        else:
            self._file.write(data)

    def sync(self) -> None:
        if self._fault.at_sync and self._failures.strikes(self._fault):
            self._fault.sync(self._file)
        else:
            self._file.sync()
