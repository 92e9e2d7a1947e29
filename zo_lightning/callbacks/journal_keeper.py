"""How a zeroth-order run is kept: a journal of its steps, and snapshots from which a restart begins."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, cast

from lightning.pytorch import LightningModule, Trainer

import zo_lightning
from zo_lightning.backends.digest import digest_factors
from zo_lightning.checkpoint.background import BackgroundSaver
from zo_lightning.checkpoint.journal import Identity, Journal
from zo_lightning.checkpoint.places import JOURNAL, rank_folder
from zo_lightning.checkpoint.restore_drill import RestoreDrill
from zo_lightning.checkpoint.store import Loaded, Store
from zo_lightning.errors import ConfigError, JournalError, RankError
from zo_lightning.goodput.kept import Kept
from zo_lightning.kernels.team import one_thread
from zo_lightning.modules import ZOModule
from zo_lightning.modules.checkpoint import KEY, lasting_digest
from zo_lightning.optim.zo_optimizer import ZOOptimizer
from zo_lightning.replay import FactorHolder
from zo_lightning.strategies.checkpoint_io import SNAPSHOT, RunCheckpointIO

if TYPE_CHECKING:
    from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds for the last snapshot, at the end of a run


class JournalKeeper:
    """Journals a ``ZOModule``'s steps and takes its snapshots; see ``ResilientCheckpoint``."""

    def __init__(self, settings: ResilientCheckpoint) -> None:
        self._settings = settings
        self._journal: Journal | None = None
        self._saver: BackgroundSaver | None = None
        self._ended = -1  # version at the end of the last step
        self._logged: dict[str, float] = {}
        self._every = 0
        self._seconds, self._stalled, self._snapshot_seconds, self._snapshots = 0.0, 0.0, 0.0, 0

    def setup(self, trainer: Trainer) -> None:
        """Have checkpoints restored from the store with all its places."""
        settings = self._settings
        self._store = Store(settings.places, keep=settings.keep, files=settings.files)
        cast(RunCheckpointIO, trainer.strategy.checkpoint_io).stores[settings.folder] = self._store

    def start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open the journal, which the module's steps then follow and lengthen, and the store.

        Raises:
            JournalError: if the journal is another run's, is damaged or is being written by another process.
        """
        assert isinstance(module, ZOModule)
        settings = self._settings
        self._every = settings.every_n_steps or module.method.direction.refresh_every
        optimizer, step = cast(ZOOptimizer, module.optimizers(use_pl_optimizer=False)), trainer.global_step
        if module.backend.version != step:
            raise ConfigError(
                f"the factors have made {module.backend.version} steps before this run, which counts {step}: begin it "
                "with new ones or with `ckpt_path`, or set `checkpoint=lightning`"
            )
        folders = [rank_folder(settings.dirpath / JOURNAL.name, rank) for rank in range(trainer.world_size)]
        own = folders.pop(trainer.global_rank)
        self._journal = optimizer.journal = Journal(
            own, _identity(module), fsync=settings.fsync, files=settings.files, peers=folders, snapshot=step
        )
        if self._journal.last_step >= step:
            log.info("the journal holds every step up to %d: none of them is made again", self._journal.last_step + 1)
        drill = RestoreDrill(self._store, partial(_restored_digest, module, self._store, self._journal))
        self._saver = BackgroundSaver(self._store, drill=drill, patience=settings.max_stall)
        cast(RunCheckpointIO, trainer.strategy.checkpoint_io).saver = self._saver
        is_fork = bool(step) and not self._journal.entries and step not in self._store.steps()
        if trainer.strategy.reduce_boolean_decision(is_fork, all=False):
            self._begin_fork(trainer, step)

    def _begin_fork(self, trainer: Trainer, step: int) -> None:
        """Take a snapshot and wait for it: the steps before are another run's, and this journal lacks them."""
        assert self._saver is not None
        self._snapshot(trainer, step)
        if trainer.is_global_zero and not (self._saver.drain(_PATIENCE) and self._saver.status().saves):
            raise JournalError(
                f"{self._settings.folder}: the snapshot that a fork begins with could not be written, see above: make "
                "room, or set another `hydra.run.dir`"
            )

    def step_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Take a snapshot where one is due, and log what changed."""
        assert isinstance(module, ZOModule) and self._journal is not None and self._saver is not None
        version = module.backend.version
        if version == self._ended:  # the window is still open
            return
        self._ended = version
        started, stalled = time.perf_counter(), 0.0
        if version % self._every == 0:
            before = self._saver.waited
            self._compare_ranks(trainer)
            self._snapshot(trainer, version)
            stalled = self._saver.waited - before
            self._snapshot_seconds += time.perf_counter() - started - stalled
        if (status := self.status()) != self._logged:
            self._logged = status
            module.log_dict({f"checkpoint/{name}": value for name, value in status.items()}, batch_size=1)
        self._stalled += stalled
        self._seconds += time.perf_counter() - started - stalled

    def finish(self, trainer: Trainer, module: LightningModule) -> None:
        """Take the last snapshot, and wait until it is written or time is up."""
        assert isinstance(module, ZOModule) and self._saver is not None
        if module.backend.version:
            self._snapshot(trainer, module.backend.version)
        self._saver.close(_PATIENCE)
        if (verified := self._saver.status().last_verified_step) is not None:
            log.info("last verified restore: step %d", verified)

    def close(self) -> None:
        """Close journal and store."""
        if self._saver is not None:
            self._saver.close(_PATIENCE)
        if self._journal is not None:
            self._journal.close()

    def status(self) -> dict[str, float]:
        """Counts of the saver, and the last step whose snapshot was read back."""
        status = asdict(self._saver.status()) if self._saver is not None else {}
        return {name: float(value) for name, value in status.items() if value is not None}

    def kept(self) -> Kept | None:
        """See ``Keeper``."""
        if self._saver is None or self._journal is None:
            return None
        status = self._saver.status()
        return Kept(
            way="journal",
            tax=self._seconds + self._journal.spent,
            stall=self._stalled,
            busy=self._saver.busy,
            snapshots=self._snapshots,
            snapshot_seconds=self._snapshot_seconds,
            saves=status.saves,
            save_seconds=status.seconds,
        )

    def _snapshot(self, trainer: Trainer, version: int) -> None:
        assert self._journal is not None
        self._journal.wait_durable()  # else a loss of power might leave the snapshot ahead of its journal
        # On every rank: Lightning's rule, though one alone writes.
        self._snapshots += 1
        trainer.save_checkpoint(self._settings.dirpath / f"step{version:08d}{SNAPSHOT}", weights_only=False)

    def _compare_ranks(self, trainer: Trainer) -> None:
        """Ranks whose journals part would end with different factors; the chain tells it in four bytes."""
        assert self._journal is not None
        if trainer.world_size == 1:
            return
        chains = trainer.strategy.ranks.gather("journal", self._journal.chain)  # type: ignore[attr-defined]
        if len(set(chains)) > 1:
            raise RankError(
                f"the ranks' journals differ at step {trainer.global_step}: their steps are not the same any more. "
                "`ckpt_path=<run folder>` goes on from the steps that they share"
            )


def _identity(module: ZOModule) -> Identity:
    matrices = [(m.name, m.rows, m.cols, m.vector) for m in module.layout.matrices]
    return Identity(
        method=lasting_digest(module.method),
        base=module.model_digest,
        layout=hashlib.sha256(repr(matrices).encode()).hexdigest()[:16],
        seed=module.seed,
        code=zo_lightning.__version__,
    )


def _restored_digest(module: ZOModule, store: Store, journal: Journal, loaded: Loaded) -> str:
    """Digest of a snapshot that was read back, made anew from the one before it and the journal where they lead to it.

    A merge writes the base, which only the engine holds: its snapshots are read back alone.
    """
    read_back = digest_factors(loaded.tree[KEY]["bank"])
    older = max((step for step in store.steps() if step < loaded.step), default=loaded.step)
    steps = [step for step in range(older, loaded.step) if step in journal.entries]
    if read_back != loaded.digest or not steps or len(steps) < loaded.step - older or module.bank.policy == "merge":
        return read_back
    entries = {step: journal.entries[step] for step in steps}
    with one_thread():
        holder = FactorHolder(module.layout, module.method, entries, module.seed)
        holder.load(store.load(older).tree[KEY]["bank"])
        for entry in entries.values():
            holder.commit(entry.record)
        return digest_factors(holder.snapshot())
