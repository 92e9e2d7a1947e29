"""Seconds a step and tokens a second of a run, as medians that a slow first step does not move."""

from __future__ import annotations

import statistics
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Throughput(Callback):
    """Times every optimizer step that is measured: not validation, and not what a journal knows already."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._tokens_per_second: list[float] = []
        self._step_seconds = 0.0
        self._started = 0.0
        self._step = 0

    @property
    def seconds_per_step(self) -> float:
        """Median over the run; 0 before the first step."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Median over the run's batches; 0 before the first."""
        return statistics.median(self._tokens_per_second) if self._tokens_per_second else 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from where the run goes on."""
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Add a micro-batch to its step."""
        if "train/tokens_per_second" not in trainer.callback_metrics:  # from the journal, which comes first
            return
        self._step_seconds += time.perf_counter() - self._started
        self._tokens_per_second.append(float(trainer.callback_metrics["train/tokens_per_second"]))
        if trainer.global_step != self._step:  # the accumulation window closed
            self._step = trainer.global_step
            self._seconds.append(self._step_seconds)
            self._step_seconds = 0.0
