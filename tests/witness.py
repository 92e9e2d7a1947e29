"""A run on the command line whose steps are timed by somebody else, too: ``python -m tests.witness FILE SETTINGS``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer

from zo_lightning.cli import train, trainer


class Seen(NamedTuple):
    """The begin of training or the end of a step, on the clock of the wall."""

    at: float
    step: int
    replayed: bool


class Witness(Callback):
    """Writes a line at once, which outlives the process."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._replayed = False

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self._write(trainer)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._replayed = getattr(trainer.optimizers[0], "recorded", None) is not None

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        self._file.write(json.dumps(Seen(time.time(), trainer.global_step, self._replayed)) + "\n")


def seen(file: Path) -> list[Seen]:
    """What a witness wrote."""
    return [Seen(*json.loads(line)) for line in file.read_text().splitlines()]


def main() -> None:
    """Train as ``zo-train`` does, with a witness."""
    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    unwatched = trainer.new_trainer

    def watched(config: Any, *callbacks: Callback, **settings: Any) -> Trainer:
        return unwatched(config, Witness(file), *callbacks, **settings)

    trainer.new_trainer = watched
    torch.set_num_threads(1)
    train.main()


if __name__ == "__main__":
    main()
