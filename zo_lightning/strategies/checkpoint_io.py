"""Where Lightning's checkpoints go: files that are replaced whole, and the store of a run that keeps snapshots."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from zo_lightning.backends.digest import digest_factors
from zo_lightning.checkpoint.background import BackgroundSaver, detached_copy
from zo_lightning.checkpoint.files import LocalFiles, write_whole
from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.modules.checkpoint import KEY

log = logging.getLogger(__name__)

SNAPSHOT = ".snapshot"  # a path that ends so is the store's


class RunCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes it to the disk and renames: a full disk leaves the old file as it was.

    Lightning's own writer stages in the system's temporary folder and copies from there, which is not atomic where that
    is another file system. A path that ends in ``.snapshot`` goes to ``saver`` instead, in the background, and a folder
    is a store, of which the newest whole snapshot is loaded.
    """

    saver: BackgroundSaver | None = None

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[Path, Store] = {}  # those that have further places, by their folder

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write a checkpoint, or hand a snapshot on.

        Raises:
            OSError: if it cannot be written; the file at ``path`` is then unchanged.
        """
        if Path(path).suffix == SNAPSHOT:
            assert self.saver is not None  # who names such a path has set it
            digest = digest_factors(checkpoint[KEY]["bank"])
            self.saver.submit(checkpoint["global_step"], detached_copy(checkpoint), digest)
            return
        if "://" in str(path):  # object stores replace whole objects anyway
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        if KEY in checkpoint:
            checkpoint[KEY]["digest"] = digest_factors(checkpoint[KEY]["bank"])
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()  # writing to a file, torch reports a full disk as a RuntimeError
        torch.save(checkpoint, buffer)
        write_whole(LocalFiles(), target, buffer.getvalue())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a file whose checksums hold, or the newest whole snapshot of a store's folder; tensors are on the CPU.

        Raises:
            StoreError: if it is damaged.
        """
        if Path(path).is_dir():
            loaded = (self.stores.get(Path(path)) or Store([path])).load()
            for complaint in loaded.complaints:
                log.warning("%s", complaint)
            log.info("snapshot of step %d", loaded.step)
            return loaded.tree
        if Path(path).is_file():
            check_file(path)
        loaded_file: dict[str, Any] = super().load_checkpoint(path, weights_only=weights_only)
        saved = loaded_file.get(KEY, {})
        if "digest" in saved and digest_factors(saved["bank"]) != saved["digest"]:
            raise StoreError(f"{path}: the factors are not those that the run held: name another in `ckpt_path`")
        return loaded_file


def check_file(path: str | Path) -> None:
    """Raise ``StoreError`` unless a checkpoint's file is whole: torch does not look at the checksums it writes."""
    if not zipfile.is_zipfile(path):
        raise StoreError(f"{path} is cut off or no checkpoint: name another checkpoint in `ckpt_path`")
    with zipfile.ZipFile(path) as file:
        if (damaged := file.testzip()) is not None:
            raise StoreError(f"{path} is damaged at {damaged}: name another checkpoint in `ckpt_path`")
