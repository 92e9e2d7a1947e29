"""Tells a supervisor where the run is."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from zo_lightning.supervisor.heartbeat import ENDING, RESTORING, TESTING, TRAINING, VALIDATING, Heartbeat


class Heartbeats(Callback):
    """Beats at every batch, and where a phase begins. It comes first, so that others' work falls behind its beat.

    Args:
        heartbeat: the process's line to its supervisor.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The state is restored."""
        self._heartbeat.beat(TRAINING, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """A step, or a part of one; from the journal or new."""
        new = "train/tokens_per_second" in trainer.callback_metrics
        self._heartbeat.beat(TRAINING if new else RESTORING, trainer.global_step, done=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins."""
        self._heartbeat.beat(VALIDATING, trainer.global_step)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """A batch is scored."""
        self._heartbeat.beat(VALIDATING, trainer.global_step, done=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on."""
        self._heartbeat.beat(TRAINING, trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last checkpoint is to be written."""
        self._heartbeat.beat(ENDING, trainer.global_step)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A test begins."""
        self._heartbeat.beat(TESTING, trainer.global_step)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """A batch is scored."""
        self._heartbeat.beat(TESTING, trainer.global_step, done=True)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The report is to be written."""
        self._heartbeat.beat(ENDING, trainer.global_step)
