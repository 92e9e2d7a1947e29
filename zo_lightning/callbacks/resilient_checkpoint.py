"""Checkpoints that a dead process cannot take with it, in the way that fits what is trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch.optim import Optimizer

from zo_lightning.checkpoint.files import Files, LocalFiles
from zo_lightning.checkpoint.journal import Fsync
from zo_lightning.checkpoint.places import STORE
from zo_lightning.checkpoint.store import Store, StoreError
from zo_lightning.drain.keeper import DrainKeeper
from zo_lightning.drain.options import DrainOptions
from zo_lightning.errors import ConfigError
from zo_lightning.goodput.kept import Kept
from zo_lightning.modules import ZOModule

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """How one kind of training is kept."""

    def setup(self, trainer: Trainer) -> None:
        """Prepare for a checkpoint to be restored."""
        ...

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Take over what an earlier process left; the checkpoint that training begins from is restored."""
        ...

    def step_end(self, trainer: Trainer, module: LightningModule) -> None:
        """A batch has ended, and a step with it or not."""
        ...

    def finish(self, trainer: Trainer, module: LightningModule) -> None:
        """Training has come to its end: keep that."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent."""
        ...

    def status(self) -> dict[str, float]:
        """What there is to log."""
        ...

    def kept(self) -> Kept | None:
        """What it has cost so far; None before that is known."""
        ...


class ResilientCheckpoint(Checkpoint):
    """Keeps a run through the death of its processes.

    A zeroth-order run gets a journal, which loses no acknowledged step, and snapshots of its factors, from which
    a restart begins. It logs ``checkpoint/...`` with every snapshot: saves that failed or were left out, and the step
    of the last snapshot that was read back and found equal to what the run held. Any other module gets snapshots of its
    parameters and optimizer, copied in parts while training goes on (``zo_lightning.drain``).

    Args:
        dirpath: where ``journal/`` and ``store/`` go.
        fsync: what a power loss may take: ``none`` (any step not yet on the disk), ``overlapped`` (the last one),
            ``sync`` (no step).
        every_n_steps: steps between two snapshots; by default one at the end of each of the direction's stages.
        keep: snapshots that stay.
        mirrors: further places for snapshots, paths or fsspec URLs.
        max_stall: seconds that a slow disk may hold training up for one snapshot, which is then left out.
        drain: ``mode``, ``target``, ``rollback``, ``tolerance``, ``tax`` and ``num_shards`` of
            ``zo_lightning.drain.options.DrainOptions``, for a module that is not zeroth-order.
        files: the file system of a zeroth-order run.

    Raises:
        ConfigError: for a setting that is not one of these.
    """

    def __init__(
        self,
        dirpath: str | Path,
        *,
        fsync: Fsync = "overlapped",
        every_n_steps: int | None = None,
        keep: int = 2,
        mirrors: Sequence[str] = (),
        max_stall: float = 1.0,
        drain: Mapping[str, Any] | None = None,
        files: Files | None = None,
    ) -> None:
        if fsync not in get_args(Fsync):
            raise ConfigError(f"`checkpoint.fsync`={fsync}: choose one of {', '.join(get_args(Fsync))}")
        for key, value in (("every_n_steps", every_n_steps), ("keep", keep)):
            if value is not None and value < 1:
                raise ConfigError(f"`checkpoint.{key}`={value}: it must be at least 1")
        if not max_stall > 0:
            raise ConfigError(f"`checkpoint.max_stall`={max_stall}: it must be more than 0 seconds")
        self.dirpath, self.fsync, self.every_n_steps = Path(dirpath), fsync, every_n_steps
        self.keep, self.mirrors, self.max_stall = keep, tuple(mirrors), max_stall
        self.files = files or LocalFiles()
        self.drain = DrainOptions(
            folder=self.folder, mirrors=self.mirrors, keep=keep, max_stall=max_stall, **(drain or {})
        )
        self._keeper: Keeper | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare for a checkpoint to be restored."""
        self._keeper = None
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._keeper = self._keeper_of(pl_module)
            self._keeper.setup(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over what an earlier process left."""
        if self._keeper is not None:
            self._keeper.start(trainer, pl_module)

    @property
    def keeper(self) -> Keeper | None:
        """Of the running or last training; none before it."""
        return self._keeper

    @property
    def folder(self) -> Path:
        """The run's own place for snapshots."""
        return self.dirpath / STORE.name

    @property
    def places(self) -> list[str | Path]:
        """Where snapshots go, the run's own folder first."""
        return [self.folder, *self.mirrors]

    def restorable(self, checkpoint: Path | None) -> Path | None:
        """A checkpoint to begin from; None for a store of which nothing is whole: the journal has all steps."""
        if checkpoint != self.folder:
            return checkpoint
        try:
            Store(self.places, files=self.files).load()
        except StoreError as error:
            log.warning("%s. The journal is gone through from the run's first step", error)
            return None
        return checkpoint

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remember what belongs to the first step."""
        if isinstance(self._keeper, DrainKeeper):
            self._keeper.load(checkpoint)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what belongs to the next step."""
        if isinstance(self._keeper, DrainKeeper):
            self._keeper.save(checkpoint)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Put the random state of the checkpoint back."""
        if isinstance(self._keeper, DrainKeeper):
            self._keeper.batch_start()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """See the gradients before they are clipped."""
        if isinstance(self._keeper, DrainKeeper):
            self._keeper.before_optimizer_step(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Keep the step, if one has ended."""
        if self._keeper is not None:
            self._keeper.step_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the end."""
        if self._keeper is not None:
            self._keeper.finish(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """What is written is enough: give everything back."""
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give everything back."""
        self._close()

    def status(self) -> dict[str, float]:
        """What the running or last training has kept."""
        return self._keeper.status() if self._keeper is not None else {}

    def _keeper_of(self, module: LightningModule) -> Keeper:
        if isinstance(module, ZOModule):
            from zo_lightning.callbacks.journal_keeper import JournalKeeper

            return JournalKeeper(self)
        return DrainKeeper(self.drain)

    def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
