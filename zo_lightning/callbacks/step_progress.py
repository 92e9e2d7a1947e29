"""A progress bar over the steps of a run, whatever the number of epochs; log lines where there is no terminal."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

log = logging.getLogger(__name__)


class StepProgress(ProgressBar):
    """One bar for training, by optimizer steps, and one for each validation or test.

    Args:
        log_every: steps between log lines where the output is no terminal.
    """

    def __init__(self, log_every: int = 50) -> None:
        super().__init__()
        self._log_every = log_every
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._train: TaskID | None = None
        self._eval: TaskID | None = None
        self._enabled = True
        self._logged = 0

    def disable(self) -> None:
        """Show nothing; Lightning calls this on ranks other than 0."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bars again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the training bar."""
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self._logged = trainer.global_step
        self._train = self._open().add_task("training", total=total, completed=trainer.global_step, shown="")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move the training bar; without a terminal, write a line now and then."""
        shown = _shown(trainer)
        if self._progress is not None and self._train is not None:
            self._progress.update(self._train, completed=trainer.global_step, shown=shown)
        if self._enabled and not self._console.is_terminal and trainer.global_step >= self._logged + self._log_every:
            self._logged = trainer.global_step
            log.info("step %d: %s", trainer.global_step, shown)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bars."""
        self._close()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open a bar for one validation."""
        self._open_eval("validation", sum(int(n) for n in trainer.num_val_batches))

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move the validation bar."""
        self._advance_eval()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the validation bar."""
        self._close_eval()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open a bar for one test."""
        self._open_eval("test", sum(int(n) for n in trainer.num_test_batches))

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move the test bar."""
        self._advance_eval()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the test bar."""
        self._close_eval()
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self._close()

    def _open(self) -> Progress:
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
                console=self._console,
                disable=not (self._enabled and self._console.is_terminal),
            )
            self._progress.start()
        return self._progress

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._train, self._eval = None, None, None

    def _open_eval(self, name: str, total: int) -> None:
        self._eval = self._open().add_task(name, total=total, shown="")

    def _advance_eval(self) -> None:
        if self._progress is not None and self._eval is not None:
            self._progress.advance(self._eval)

    def _close_eval(self) -> None:
        if self._progress is not None and self._eval is not None:
            self._progress.remove_task(self._eval)
        self._eval = None


def _shown(trainer: Trainer) -> str:
    wanted = ("train/loss", "val/loss", "val/accuracy")
    found = [(name, trainer.callback_metrics.get(name)) for name in wanted]
    return "  ".join(f"{name} {float(value):.3f}" for name, value in found if value is not None)
