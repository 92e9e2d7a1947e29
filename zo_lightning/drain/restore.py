"""From the store to an ordinary Lightning checkpoint, with which a stock ``Trainer.fit(ckpt_path=...)`` goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.host import LOCK
from zo_lightning.drain.messages import KEY, exactness
from zo_lightning.drain.tree import digest, tensors_of

log = logging.getLogger(__name__)

RESTORED = "restored.ckpt"


def settle(folder: Path, seconds: float = 60.0) -> None:
    """Let a host process that outlived its trainer save what it has.

    Args:
        folder: of the store.
        seconds: to wait at most.

    Raises:
        DrainError: if one holds the folder longer than that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=seconds):
            pass
    except Timeout:
        raise DrainError(f"another run is saving into {folder}: end it, or restore into another folder") from None


def restore(folder: Path, *, mirrors: Sequence[str] = (), seconds: float = 60.0) -> Path:
    """Write ``restored.ckpt`` beside the snapshots: the newest durable step.

    A host process that outlived its trainer still saves what it has; that is waited for.

    Args:
        folder: of the store.
        mirrors: further places that it was saved to.
        seconds: to wait for an earlier run's host process.

    Raises:
        DrainError: if a host process holds the folder longer than that.
        StoreError: if there is no sound snapshot, or the newest is not what was saved.
    """
    settle(folder, seconds)
    loaded = Store([folder, *mirrors]).load()
    for complaint in loaded.complaints:
        log.warning("%s", complaint)
    if digest(tensors_of(loaded.tree)) != loaded.digest:
        raise StoreError(f"the snapshot of step {loaded.step} in {folder} is not what was saved")
    path, beside = folder / RESTORED, folder / f".{RESTORED}.new"
    with beside.open("wb") as file:
        torch.save(loaded.tree, file)
        os.fsync(file.fileno())
    beside.replace(path)
    bound = max(loaded.tree[KEY].get("bound", {}).values(), default=0.0)  # none with a plain snapshot
    log.info("restored step %d, %s", loaded.step, exactness(bound))
    return path
