"""Every change that a run makes to a folder, in order: what a loss of power can interrupt."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from zo_lightning.checkpoint.files import Files, LocalFiles, OpenFile


@dataclass(frozen=True, slots=True)
class Created:
    """A new, empty file under a name. Files have numbers, since names change."""

    path: Path
    file: int


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes at a file's end."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """A file's content is durable as it was when operation ``since`` was next."""

    file: int
    since: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file took another name in the same folder, in place of what had it."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Removed:
    """A name is gone."""

    path: Path


@dataclass(frozen=True, slots=True)
class FolderMade:
    """A new folder in one that was there."""

    path: Path


@dataclass(frozen=True, slots=True)
class FolderSynced:
    """A folder's names are durable as they were when operation ``since`` was next."""

    path: Path
    since: int


@dataclass(frozen=True, slots=True)
class Promised:
    """Somebody was told that a thing is done; from here on it must survive."""

    label: str


Operation = Created | Written | Synced | Replaced | Removed | FolderMade | FolderSynced | Promised


@dataclass(frozen=True, slots=True)
class Trace:
    """What was there, durably, and what was done then.

    Attributes:
        before: content of the files by path under the root, and none for folders.
        operations: in order; paths are under the root.
        files: numbers of the files of ``before``.
    """

    before: dict[Path, bytes | None]
    operations: tuple[Operation, ...]
    files: dict[Path, int]


class RecordingFiles:
    """Files whose changes are recorded as they are made, from any thread.

    Args:
        root: what is recorded; operations elsewhere are errors.
        files: make the changes.
    """

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root, self._files = root, files or LocalFiles()
        self._operations: list[Operation] = []
        self._lock = threading.Lock()
        found = {path.relative_to(root): path for path in sorted(root.rglob("*"))}
        self._before = {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}
        self._numbers = {name: number for number, name in enumerate(self._before)}
        self._first_numbers = dict(self._numbers)

    def trace(self) -> Trace:
        """What was recorded so far."""
        with self._lock:
            return Trace(self._before, tuple(self._operations), self._first_numbers)

    def promise(self, label: str) -> None:
        """Note that somebody was told that something is done."""
        self._record(Promised(label))

    def create(self, path: Path) -> OpenFile:
        """See ``Files``."""
        file = self._files.create(path)
        name = path.relative_to(self._root)
        with self._lock:
            number = len(self._operations) + len(self._before)
            self._numbers[name] = number
            self._operations.append(Created(name, number))
        return _RecordingFile(self, file, number)

    def append(self, path: Path) -> OpenFile:
        """See ``Files``."""
        return _RecordingFile(self, self._files.append(path), self._numbers[path.relative_to(self._root)])

    def read(self, path: Path) -> bytes:
        """See ``Files``."""
        return self._files.read(path)

    def replace(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        self._files.replace(source, target)
        old, new = source.relative_to(self._root), target.relative_to(self._root)
        assert old.parent == new.parent, "a rename between folders is not one change"
        self._numbers[new] = self._numbers.pop(old)
        self._record(Replaced(old, new))

    def remove(self, path: Path) -> None:
        """See ``Files``."""
        self._files.remove(path)
        name = path.relative_to(self._root)
        del self._numbers[name]
        self._record(Removed(name))

    def make_folder(self, path: Path) -> None:
        """See ``Files``."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        self._files.make_folder(path)
        for folder in reversed(missing):
            self._record(FolderMade(folder.relative_to(self._root)))

    def sync_folder(self, path: Path) -> None:
        """See ``Files``."""
        since = len(self._operations)  # what another thread does meanwhile is not covered
        self._files.sync_folder(path)
        if path.is_relative_to(self._root):
            self._record(FolderSynced(path.relative_to(self._root), since))

    def names(self, path: Path) -> tuple[str, ...]:
        """See ``Files``."""
        return self._files.names(path)

    def _record(self, operation: Operation) -> None:
        with self._lock:
            self._operations.append(operation)


class _RecordingFile:
    def __init__(self, recorder: RecordingFiles, file: OpenFile, number: int) -> None:
        self._recorder, self._file, self._number = recorder, file, number

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._recorder._record(Written(self._number, bytes(data)))

    def sync(self) -> None:
        since = len(self._recorder._operations)
        self._file.sync()
        self._recorder._record(Synced(self._number, since))

    def close(self) -> None:
        self._file.close()
