"""``goodput.jsonl`` as it is written."""

from __future__ import annotations

import os
from pathlib import Path

from zo_lightning.goodput.lives import LIVES, Stretch


class Sheet:
    """The file as it is written, by one process at a time.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / LIVES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._at = os.lseek(self._file, 0, os.SEEK_END)
        if self._at and os.pread(self._file, 1, self._at - 1) != b"\n":  # torn
            self._at += os.pwrite(self._file, b"\n", self._at)
        self._length = 0

    def write(self, stretch: Stretch) -> None:
        """Write the last line, in place of what it was."""
        line = stretch.to_json().ljust(self._length).encode()
        self._length = len(line)
        os.pwrite(self._file, line + b"\n", self._at)

    def begin_line(self) -> None:
        """Leave the last line as it is."""
        self._at, self._length = self._at + self._length + 1, 0

    def close(self) -> None:
        """Give the file back. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
