"""From the store to an ordinary Lightning checkpoint, with which a stock ``Trainer.fit(ckpt_path=...)`` goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from zo_lightning.checkpoint.store import Store
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.host import LOCK
from zo_lightning.drain.tree import digest, tensors_of

log = logging.getLogger(__name__)

RESTORED = "restored.ckpt"


def restore(folder: Path, *, mirrors: Sequence[str] = (), step: int | None = None, seconds: float = 60.0) -> Path:
    """Write ``restored.ckpt`` beside the snapshots: the newest durable step, or one of them.

    A host process that outlived its trainer still saves what it has; that is waited for.

    Args:
        folder: of the store.
        mirrors: further places that it was saved to.
        step: the step wanted.
        seconds: to wait for an earlier run's host process.

    Raises:
        DrainError: if a host process holds the folder longer than that, or the snapshot is not what was saved.
        StoreError: if there is no sound snapshot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=seconds):
            loaded = Store([folder, *mirrors]).load(step)
    except Timeout:
        raise DrainError(f"another run is saving into {folder}: end it, or restore into another folder") from None
    for complaint in loaded.complaints:
        log.warning("%s", complaint)
    if digest(tensors_of(loaded.tree)) != loaded.digest:
        raise DrainError(f"the snapshot of step {loaded.step} in {folder} is not what was saved: name an older step")
    path, beside = folder / RESTORED, folder / f".{RESTORED}.new"
    with beside.open("wb") as file:
        torch.save(loaded.tree, file)
        os.fsync(file.fileno())
    beside.replace(path)
    log.info("restored step %d", loaded.step)
    return path
