"""A checkpoint when a run ends or is cut short, at the end of its last step."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from zo_lightning.errors import DivergedError, EngineError, JournalError

log = logging.getLogger(__name__)


class InterruptCheckpoint(Callback):
    """Writes ``<dirpath>/<filename>.ckpt`` when training ends, by Ctrl-C, SIGTERM, SIGUSR1 or an error too.

    SIGTERM, SIGUSR1 and the first Ctrl-C let the running step end, so that its commit is whole; the second Ctrl-C
    leaves at once and without a checkpoint. An earlier file stays as it is if the engine died or the run diverged (the
    state is gone or not worth keeping), if there is no step to save, while steps are taken from a journal that holds
    later ones, and if the disk is full.

    SIGUSR1 is left to a handler that is there already: Lightning's, which requeues a job of SLURM, or submitit's.

    Args:
        dirpath: where checkpoints go.
        filename: without its extension.
    """

    def __init__(self, dirpath: str | Path, filename: str = "last") -> None:
        self.path = Path(dirpath) / f"{filename}.ckpt"
        self._training = False
        self._asked = False
        self._preempted = False
        self._previous_handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take Ctrl-C and SIGUSR1 over; only the main thread may."""
        self._training, self._asked, self._preempted = True, False, False
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_ctrl_c)
            if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
                self._previous_handlers[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_preemption)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Stop here if asked: the step is complete."""
        self._stop_if_asked(trainer)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Stop here if asked: validation changes nothing."""
        self._stop_if_asked(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the end of the run and give Ctrl-C back.

        Lightning's own last checkpoint is that of the last periodic save, which may lie many steps back.
        """
        self._stop_if_asked(trainer)
        if not trainer.fast_dev_run and trainer.global_step:  # type: ignore[attr-defined]
            trainer.save_checkpoint(self.path)
        self._give_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save, unless that would replace a checkpoint by a worse one."""
        training, self._training = self._training, False
        if not isinstance(exception, KeyboardInterrupt):  # Lightning ignores further ones while it shuts down
            self._give_back()
        worse = isinstance(exception, _LeaveAtOnce | EngineError | DivergedError | JournalError)
        if not training or worse or trainer.global_step == 0 or goes_through_journal(trainer):
            return
        try:
            trainer.save_checkpoint(self.path)
            log.warning("saved %s at step %d", self.path, trainer.global_step)
        except (OSError, EngineError) as error:
            log.error("no checkpoint was written to %s, an earlier one is unchanged: %s", self.path, error)

    def _on_ctrl_c(self, *_: Any) -> None:
        if self._asked:
            raise _LeaveAtOnce
        self._asked = True
        # Not by logging or print: a signal may come in the middle of one.
        os.write(2, b"\nCtrl-C: the step will end and be saved; press it again to leave at once\n")

    def _on_preemption(self, *_: Any) -> None:
        self._asked = self._preempted = True

    def _stop_if_asked(self, trainer: Trainer) -> None:
        # Lightning looks for SIGTERM too, but not at the end of the last step. All ranks stop at the same one,
        # whichever of them was asked.
        terminated = trainer.received_sigterm
        if trainer.strategy.reduce_boolean_decision(self._asked or terminated, all=False):
            if terminated and not self._asked:
                raise SIGTERMException
            raise Preempted if self._preempted else KeyboardInterrupt

    def _give_back(self) -> None:
        self._training = False
        while self._previous_handlers:
            signal.signal(*self._previous_handlers.popitem())


def goes_through_journal(trainer: Trainer) -> bool:
    """Whether the step at hand is in the journal already."""
    return any(getattr(optimizer, "recorded", None) is not None for optimizer in trainer.optimizers)


class Preempted(KeyboardInterrupt):
    """SIGUSR1: a scheduler wants the machine back."""


class _LeaveAtOnce(KeyboardInterrupt):
    """The second Ctrl-C: the step that it cuts may be half committed."""
