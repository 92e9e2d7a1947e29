"""Checkpoints that replace the previous one only when they are whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from zo_lightning.checkpoint.files import LocalFiles, write_whole


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, syncs, renames and syncs the folder: a full disk leaves the old file as it was.

    Lightning's own writer stages in the system's temporary folder and copies from there, which is not atomic where that
    is another file system.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write a checkpoint.

        Raises:
            OSError: if it cannot be written; the file at ``path`` is then unchanged.
        """
        if "://" in str(path):  # object stores replace whole objects anyway
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()  # writing to a file, torch reports a full disk as a RuntimeError
        torch.save(checkpoint, buffer)
        write_whole(LocalFiles(), target, buffer.getvalue())
