"""Journals made by hand, and files in memory that fail when told to."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from zo_lightning.checkpoint.files import LocalFiles, OpenFile
from zo_lightning.checkpoint.journal import Entry, Identity, Journal
from zo_lightning.core.types import DirectionKey, StepRecord

IDENTITY = Identity(method="5f0c" * 4, base="ab" * 32, layout="cd" * 32, seed=42, code="1.0")


def entry(step: int, *, loss: float = 0.5, shift: int = 0) -> Entry:
    """A two-sided step; every fifth is skipped."""
    skipped = step % 5 == 4
    key = DirectionKey(seed=42, step=step, stage=step // 3)
    record = StepRecord(
        step=step,
        version=step + shift,
        lr=0.1 / (step + 1),
        terms=() if skipped else ((key, 0.1 * (-1) ** step / 3),),
        skipped=skipped,
    )
    return Entry(record=record, loss=math.nan if skipped else loss, cursor=(step + 1) * 16)


def written(folder: Path, steps: Sequence[int], **settings: object) -> Path:
    """A journal that one process has written and closed."""
    journal = Journal(folder, IDENTITY, **settings)  # type: ignore[arg-type]
    for step in steps:
        journal.append(entry(step))
    journal.close()
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wal"))


class HeldFiles(LocalFiles):
    """The content of a folder, to be read with a change."""

    def __init__(self, folder: Path) -> None:
        self.content = {path: path.read_bytes() for path in segments(folder)}

    def read(self, path: Path) -> bytes:
        return self.content[path]


class FaultyFiles(LocalFiles):
    """Files with a say before each write and sync: what they raise happens after part of the bytes are written."""

    def __init__(
        self,
        write: Callable[[Path, bytes], int | None] = lambda path, data: None,
        sync: Callable[[Path], None] = lambda path: None,
    ) -> None:
        self.on_write, self.on_sync = write, sync
        self.synced: list[Path] = []

    def create(self, path: Path) -> OpenFile:
        return _Faulty(super().create(path), path, self)

    def append(self, path: Path) -> OpenFile:
        return _Faulty(super().append(path), path, self)


class _Faulty:
    def __init__(self, file: OpenFile, path: Path, files: FaultyFiles) -> None:
        self._file, self._path, self._files = file, path, files

    def write(self, data: bytes) -> None:
        room = self._files.on_write(self._path, data)
        if room is None:
            return self._file.write(data)
        self._file.write(data[:room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def sync(self) -> None:
        self._files.on_sync(self._path)
        self._file.sync()
        self._files.synced.append(self._path)

    def close(self) -> None:
        self._file.close()
