"""Commits what a journal has recorded, from the run's beginning or a snapshot on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from zo_lightning.backends.digest import digest_factors
from zo_lightning.checkpoint.journal import Entry
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, Point, StepRecord
from zo_lightning.errors import ConfigError, ZOError
from zo_lightning.modules.checkpoint import KEY
from zo_lightning.replay.run import Run, Saved

log = logging.getLogger(__name__)


class Holder(Protocol):
    """What records are committed to: a bank, or a backend whose base a merge writes."""

    @property
    def version(self) -> int:
        """Steps committed."""
        ...

    def commit(self, record: StepRecord) -> Any:
        """Apply a record."""
        ...

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The state, as a checkpoint keeps it."""
        ...


class FactorHolder:
    """A bank alone, on the CPU, as large as the run's stages: no model is loaded.

    Args:
        layout: the trainable matrices.
        method: of the run.
        entries: the steps that will be committed.
        seed: of the run.
    """

    def __init__(self, layout: Layout, method: Method, entries: Mapping[int, Entry], seed: int) -> None:
        self._layout, self._method, self._seed = layout, method, seed
        self._stages = {(key.seed, key.stage) for entry in entries.values() for key, _ in entry.record.terms}
        self.bank = self._new_bank()
        for draw in (method.direction.left, method.direction.right):  # loads compiled code, which is not a step's time
            draw(DirectionKey(seed=seed, step=0, stage=0), layout, self.bank.device)

    @property
    def version(self) -> int:
        """Steps committed."""
        return self.bank.version

    def commit(self, record: StepRecord) -> None:
        """Apply a record; a skipped one takes its stage's slot, as its evaluation did."""
        if not record.terms:
            keys = self._method.direction.keys(seed=self._seed, step=record.step)
            self.bank.probes(Point(version=self.version, terms=tuple((key, 0.0) for key in keys)))
        self.bank.commit(record)

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self._stages |= {(seed, stage) for seed, stage in snapshot["slots"]}
        self.bank = self._new_bank()
        self.bank.load(snapshot)

    def snapshot(self) -> dict[str, Any]:
        """The bank's."""
        return self.bank.snapshot()

    def _new_bank(self) -> LowRankBank:
        rank = self._method.direction.rank
        spec = BankSpec(rank=rank, capacity=rank * (len(self._stages) + 1))  # a stage may be all skipped
        return LowRankBank(spec, self._layout, self._method.direction, self._method.update)


class Replay:
    """Moves a holder through a run.

    Args:
        run: what was recorded.
        holder: at the run's beginning.
        without: steps whose terms are left out.
        advance: called after each step.
    """

    def __init__(
        self,
        run: Run,
        holder: Holder,
        *,
        without: Collection[int] = (),
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        self.holder, self.seconds, self.num_steps = holder, 0.0, 0
        self.begun_from: Saved | None = None
        self._kept: dict[str, Any] | None = None
        self.without = frozenset(without)
        self._run, self._advance = run, advance

    @property
    def rate(self) -> float:
        """Steps committed in a second."""
        return self.num_steps / self.seconds if self.seconds else 0.0

    @property
    def snapshot(self) -> dict[str, Any]:
        """The state, as a checkpoint keeps it."""
        return self._kept or self.holder.snapshot()

    def keep(self) -> None:
        """Keep the state beyond the holder's end."""
        self._kept = self.holder.snapshot()

    @property
    def digest(self) -> str:
        """Digest of the factors, to be compared with a running or saved one's."""
        return digest_factors(self.snapshot)

    def reach(self, step: int) -> None:
        """Have ``step`` steps done: from here, else from the nearest place before it.

        Raises:
            ConfigError: if there is no such place.
        """
        if not self._covers(self.holder.version, step):
            self._begin(step)
        start = time.perf_counter()
        for number in range(self.holder.version, step):
            record = self._run.entries[number].record
            self.holder.commit(replace(record, terms=(), skipped=True) if number in self.without else record)
            self.num_steps += 1
            self._advance()
        self.seconds += time.perf_counter() - start

    def begin_near(self, step: int) -> None:
        """Start at the newest snapshot of at most ``step`` steps from which it can be reached, if there is one."""
        for saved in reversed(self._run.saved):
            if saved.step <= step and self._covers(saved.step, step):
                try:
                    tree = saved.load()
                except ZOError as error:
                    log.warning("%s is left out: %s", saved.name, error)
                    continue
                self.begun_from = saved
                self.holder.load(tree[KEY]["bank"])
                return

    def _begin(self, step: int) -> None:
        self.begin_near(step)
        if not self._covers(self.holder.version, step):
            missing = next(number for number in range(step) if number not in self._run.entries)
            raise ConfigError(
                f"step {step} of {self._run.folder} cannot be rebuilt: its journal does not have step {missing}, and "
                "no snapshot lies between. Name the checkpoint that the run was forked from with `start=FILE`, or "
                "another `step`"
            )

    def _covers(self, start: int, stop: int) -> bool:
        return start <= stop and all(step in self._run.entries for step in range(start, stop))
