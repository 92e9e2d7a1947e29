"""Places for checkpoints: a folder, or a URL of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import fsspec
from filelock import FileLock

from zo_lightning.checkpoint.files import Files, LocalFiles, make_folders, place

BLOCKS, MANIFESTS = "blocks", "manifests"
LOCK_SECONDS = 60.0


class Tier(Protocol):
    """One place. It has files of two kinds, blocks and manifests. All operations raise ``OSError``."""

    name: str

    def writing(self) -> AbstractContextManager[None]:
        """Hold the place against other writers; its folders are there, and no remains of killed writers."""
        ...

    def put(self, kind: str, name: str, data: bytes) -> None:
        """Write a file whole; its name is durable after ``settle``."""
        ...

    def settle(self, kind: str) -> None:
        """Return when all names of a kind are durable."""
        ...

    def read(self, kind: str, name: str) -> bytes:
        """All of a file."""
        ...

    def remove(self, kind: str, name: str) -> None:
        """Remove a file."""
        ...

    def names(self, kind: str) -> tuple[str, ...]:
        """The files of a kind; none where nothing was saved yet."""
        ...


def open_tier(place: str | Path, files: Files | None = None) -> Tier:
    """A tier of a folder or of a URL that fsspec knows (``s3://bucket/folder``).

    Args:
        place: folder or URL.
        files: the file system's operations, for a folder.
    """
    text = str(place).removeprefix("file://")
    return ObjectTier(text) if "://" in text else FolderTier(Path(text), files or LocalFiles())


class FolderTier:
    """A folder of a local or mounted file system.

    Args:
        root: the folder; made when something is saved.
        files: the file system's operations.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self.name = str(root)
        self._root, self._files = root, files
        self._made = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See ``Tier``."""
        if not self._made or not {BLOCKS, MANIFESTS} <= set(self._files.names(self._root)):  # or removed since
            for kind in (BLOCKS, MANIFESTS):
                make_folders(self._files, self._root / kind)
            self._made = True
        with FileLock(self._root / ".lock", timeout=LOCK_SECONDS):
            for kind in (BLOCKS, MANIFESTS):
                for name in self._files.names(self._root / kind):
                    if name.startswith("."):
                        self.remove(kind, name)
            yield

    def put(self, kind: str, name: str, data: bytes) -> None:
        """See ``Tier``."""
        place(self._files, self._root / kind / name, data)

    def settle(self, kind: str) -> None:
        """See ``Tier``."""
        self._files.sync_folder(self._root / kind)

    def read(self, kind: str, name: str) -> bytes:
        """See ``Tier``."""
        return self._files.read(self._root / kind / name)

    def remove(self, kind: str, name: str) -> None:
        """See ``Tier``."""
        self._files.remove(self._root / kind / name)

    def names(self, kind: str) -> tuple[str, ...]:
        """See ``Tier``."""
        return tuple(name for name in self._files.names(self._root / kind) if not name.startswith("."))


class ObjectTier:
    """A folder of an object store: objects appear whole or not at all, under no lock. One run writes to it.

    Args:
        url: as fsspec knows it.
    """

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")

    def writing(self) -> AbstractContextManager[None]:
        """See ``Tier``."""
        return nullcontext()

    def put(self, kind: str, name: str, data: bytes) -> None:
        """See ``Tier``."""
        with self._reached() as (files, root):
            files.pipe_file(f"{root}/{kind}/{name}", data)

    def settle(self, kind: str) -> None:
        """See ``Tier``."""

    def read(self, kind: str, name: str) -> bytes:
        """See ``Tier``."""
        with self._reached() as (files, root):
            return files.cat_file(f"{root}/{kind}/{name}")

    def remove(self, kind: str, name: str) -> None:
        """See ``Tier``."""
        with self._reached() as (files, root):
            files.rm_file(f"{root}/{kind}/{name}")

    def names(self, kind: str) -> tuple[str, ...]:
        """See ``Tier``."""
        with self._reached() as (files, root):
            files.invalidate_cache(f"{root}/{kind}")
            found = files.ls(f"{root}/{kind}", detail=False) if files.isdir(f"{root}/{kind}") else []
        return tuple(sorted(path.rpartition("/")[2] for path in found))

    @contextmanager
    def _reached(self) -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
        try:
            yield fsspec.core.url_to_fs(self.name)
        except OSError:
            raise
        except Exception as error:  # each store's library has errors of its own
            raise OSError(f"{self.name}: {error}") from error
