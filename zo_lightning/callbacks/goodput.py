"""Goodput while a run trains, over all processes that have trained it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from zo_lightning.callbacks.interrupt_checkpoint import Preempted, goes_through_journal
from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
from zo_lightning.goodput.account import Account
from zo_lightning.goodput.kept import Kept
from zo_lightning.goodput.lives import FINISHED, INTERRUPTED
from zo_lightning.supervisor import heartbeat

log = logging.getLogger(__name__)

_SIGN_SECONDS = 1.0  # between two signs of life
_LOG_SECONDS = 1.0  # between two figures, which cost a tenth of a millisecond to log


class Goodput(Callback):
    """Logs ``goodput/...``: the share of useful time, each loss, and the mean time between failures.

    What it knows is in ``goodput.jsonl``, as of the last step whatever ends the process, and ``zo-goodput advise``
    reads it. Rank 0 alone keeps it.

    Args:
        dirpath: the run's folder.
    """

    def __init__(self, dirpath: str | Path) -> None:
        self.dirpath = Path(dirpath)
        self._account: Account | None = None
        self._replayed = False
        self._aside = self._validating = self._next_sign = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a life."""
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        found = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ResilientCheckpoint)]
        self._checkpoint = found[0] if found else None
        self._step, self._aside, self._next_log, self._next_sign = trainer.global_step, 0.0, 0.0, 0.0
        self._origin = time.time() - time.perf_counter()
        born = None if heartbeat().goes_on else _process_start()
        with self._harmless():
            self._account = Account(self.dirpath, step=self._step, now=self._now, born=born)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """See whether the journal has this step."""
        self._replayed = self._account is not None and goes_through_journal(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Account for a step, if one has ended, and log now and then."""
        if self._count_step(trainer) and time.perf_counter() >= self._next_log:
            self._next_log = time.perf_counter() + _LOG_SECONDS
            self._log(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No part of a step."""
        self._validating = time.perf_counter()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """A sign of life now and then."""
        if time.perf_counter() >= self._next_sign:
            self._show_life()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on."""
        self._aside += time.perf_counter() - self._validating
        self._show_life()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All steps are made."""
        self._log(trainer)
        self._close(FINISHED, lost=False)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A step that has ended counts, one that has not is lost."""
        self._count_step(trainer)
        asked = isinstance(exception, KeyboardInterrupt) and not isinstance(exception, Preempted)
        self._close(INTERRUPTED if asked else type(exception).__name__, lost=True)

    @property
    def _now(self) -> float:
        return self._origin + time.perf_counter()

    def _kept(self) -> Kept | None:
        keeper = self._checkpoint.keeper if self._checkpoint is not None else None
        return keeper.kept() if keeper is not None else None

    def _show_life(self) -> None:
        self._next_sign = time.perf_counter() + _SIGN_SECONDS
        if self._account is not None:
            with self._harmless():
                self._account.live(self._now)

    def _count_step(self, trainer: Trainer) -> bool:
        if self._account is None or trainer.global_step == self._step:
            return False
        self._step, aside, self._aside = trainer.global_step, self._aside, 0.0
        with self._harmless():
            self._account.step(self._step, self._now, replayed=self._replayed, aside=aside, kept=self._kept())
        return True

    def _log(self, trainer: Trainer) -> None:
        """Past Lightning's own collection, which would log a figure again and again until there is a new one."""
        if self._account is None:
            return
        with self._harmless():
            figures = {f"goodput/{name}": value for name, value in self._account.figures().items()}
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step - 1)  # Lightning counts from 0

    def _close(self, end: str, *, lost: bool) -> None:
        account, self._account = self._account, None
        if account is not None:
            with self._harmless():
                account.close(self._now, end=end, lost=lost, kept=self._kept())

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Training goes on whatever the disk does, and whatever another hand has written there."""
        try:
            yield
        except Exception:
            log.exception("goodput is not measured from here on")
            self._account = None


def _process_start() -> float:
    """``time.time()`` when this process started, to some hundredths: when Python's own logging was loaded."""
    record = logging.makeLogRecord({})
    return record.created - record.relativeCreated / 1e3
