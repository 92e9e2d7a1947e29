"""Failures on purpose while a run trains: ``failure=kill`` and its like."""

from __future__ import annotations

import threading
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from zo_lightning.failure import Failures, Poisson
from zo_lightning.failure.process import ProcessFault
from zo_lightning.modules import ZOModule


class FailureInjection(Callback):
    """Strikes at the start of a step, or from a timer at any moment. Each strike is in ``failures.jsonl`` first.

    Args:
        failures: the run's; its failures of disks strike through its files.
    """

    def __init__(self, failures: Failures) -> None:
        self.failures = failures
        self._timers: list[threading.Timer] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.failures.start(trainer.global_step)
        for fault in self.failures.of_process:
            self._set_timer(fault, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Strike what is due."""
        self.failures.step = trainer.global_step
        for fault in self.failures.of_process:
            if self.failures.strikes(fault):
                _strike(fault, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop the timers."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _set_timer(self, fault: ProcessFault, pl_module: LightningModule) -> None:
        delay = self.failures.delay(fault)
        if delay is not None:
            timer = threading.Timer(delay, self._strike_from_timer, (fault, pl_module))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def _strike_from_timer(self, fault: ProcessFault, pl_module: LightningModule) -> None:
        if self.failures.strikes_from_timer(fault):
            _strike(fault, pl_module)
        elif isinstance(fault, Poisson):  # it has struck at this step before
            self._set_timer(fault, pl_module)


def _strike(fault: ProcessFault, module: LightningModule) -> None:
    fault.strike(module.backend if isinstance(module, ZOModule) else None)
