"""The few file operations that journal and store are made of, so that faults can be put in and writes recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class OpenFile(Protocol):
    """A file that is being written, from its start or its end on."""

    def write(self, data: bytes) -> None:
        """Append all of ``data``. Raises ``OSError``; then any part of it may have been written."""
        ...

    def sync(self) -> None:
        """Return when everything written is on the disk. Raises ``OSError``; then nothing is known of the content."""
        ...

    def close(self) -> None:
        """Give the file back, not synced. Idempotent."""
        ...


class Files(Protocol):
    """A file system's operations. All raise ``OSError``."""

    def create(self, path: Path) -> OpenFile:
        """A new, empty file; one that is there already is an error."""
        ...

    def append(self, path: Path) -> OpenFile:
        """A file that exists, to be written from its end on."""
        ...

    def read(self, path: Path) -> bytes:
        """All of a file."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name in one step, in place of what had it."""
        ...

    def remove(self, path: Path) -> None:
        """Take a file's name away."""
        ...

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents, unless they are there."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        ...

    def names(self, path: Path) -> tuple[str, ...]:
        """The names in a folder, sorted; none where there is no such folder."""
        ...


def make_folders(files: Files, path: Path) -> None:
    """Make a folder and the parents it lacks, and return when all their names are durable."""
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents[:-1]) if folder.name not in files.names(folder.parent)]
    files.make_folder(path)
    # Its own name in any case: the process that made it may have been killed before it was durable.
    for parent in dict.fromkeys([path.parent, *(folder.parent for folder in missing)]):
        files.sync_folder(parent)


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Put a file in place whole and durable, or leave what was there: write, sync, rename, sync the folder.

    Args:
        files: where.
        path: its final name; the folder exists.
        data: its content.
    """
    if _beside(path).name in files.names(path.parent):  # of a process that was killed
        files.remove(_beside(path))
    place(files, path, data)
    files.sync_folder(path.parent)


def place(files: Files, path: Path, data: bytes) -> None:
    """Put a file in place whole; its name is durable once its folder is synced.

    The file is written beside its target: a rename from another file system would be a copy, which a kill can tear.

    Raises:
        OSError: if it cannot be written. What was written is removed, since the disk may be full; what was there stays.
    """
    file = files.create(_beside(path))
    try:
        file.write(data)
        file.sync()
    except OSError:
        file.close()
        files.remove(_beside(path))
        raise
    file.close()
    files.replace(_beside(path), path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


class LocalFiles:
    """The operating system's files."""

    def create(self, path: Path) -> OpenFile:
        """See ``Files``."""
        return _LocalFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def append(self, path: Path) -> OpenFile:
        """See ``Files``."""
        return _LocalFile(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def read(self, path: Path) -> bytes:
        """See ``Files``."""
        return path.read_bytes()

    def replace(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See ``Files``."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """See ``Files``."""
        path.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        """See ``Files``."""
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def names(self, path: Path) -> tuple[str, ...]:
        """See ``Files``."""
        return tuple(sorted(os.listdir(path))) if path.is_dir() else ()


class _LocalFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # a full disk takes a part and refuses the rest
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        # Not fdatasync: macOS has none. The length is metadata that either of them makes durable.
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
