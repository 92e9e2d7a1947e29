"""Models that are made here once and kept: built beside their place, moved there when complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from zo_lightning.errors import DataError

CACHE_VARIABLE = "ZO_LIGHTNING_CACHE"


def cache_root(cache_dir: str | None) -> Path:
    """``cache_dir``, else the environment's ``ZO_LIGHTNING_CACHE``, else ``~/.cache/zo_lightning``.

    Examples:
        >>> str(cache_root("/data/models"))
        '/data/models'
    """
    chosen = cache_dir or os.environ.get(CACHE_VARIABLE) or "~/.cache/zo_lightning"
    return Path(chosen).expanduser().absolute()


def build_once(name: str, build: Callable[[Path], None], *, num_bytes: int, cache_dir: str | None) -> Path:
    """The cached folder ``name``; the first caller builds it, callers at the same time wait for it.

    Args:
        name: folder name inside the cache.
        build: writes the model into an empty folder.
        num_bytes: disk space that the build needs.
        cache_dir: see ``cache_root``.

    Raises:
        DataError: if the cache cannot be written, for one because the disk is full.
    """
    root = cache_root(cache_dir)
    folder = root / name
    if folder.is_dir():  # complete, since it only ever appears by a rename; a read-only cache needs no lock
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            if not folder.is_dir():
                _build(folder, build, num_bytes)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"cannot keep the model {name} ({num_bytes / 1e6:.0f} MB) in the cache folder {root}: {error}. Make room "
            f"there, or choose another folder with `model.cache_dir` or the environment variable {CACHE_VARIABLE}"
        ) from error
    return folder


def _build(folder: Path, build: Callable[[Path], None], num_bytes: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < num_bytes:
        raise OSError(f"only {free / 1e6:.0f} MB are free")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; its lock went with it
    try:
        partial.mkdir()
        build(partial)
        for file in partial.iterdir():
            _flush(file)  # else a power cut could leave the final name with empty files
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
