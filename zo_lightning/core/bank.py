"""The factor bank: everything a run has learned, and the only mutable thing in it.

Shape suffixes: O rows and I columns stacked over all matrices, C all rank columns, R one slot's.

A slot holds one stage's pair (left, right): the change of matrix ``W`` is ``left_OC @ right_IC.T``
on its rows. Right factors are rebuilt from keys; left factors and the update's state are what a
checkpoint keeps. Source: LoZO (Chen et al. 2024), factor form ``P -= lr * c * U``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch

from zo_lightning.core.roles import Direction, Update
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, Point, StepRecord, Term
from zo_lightning.errors import ConfigError, StaleVersionError

Fold = Callable[[torch.Tensor, torch.Tensor], None]
Stage = tuple[int, int]  # (seed, stage): what a right factor is made from


def spans(counts: Iterable[int]) -> list[slice]:
    """Consecutive slices of the given lengths.

    Examples:
        >>> spans([2, 3])
        [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = list(accumulate(counts))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def check_version(asked: int, held: int) -> None:
    """Raise ``StaleVersionError`` unless the version asked for is the one that is held."""
    if asked != held:
        raise StaleVersionError(f"version {asked} was asked for, but the backend holds version {held}")


def check_matrices(snapshot: dict[str, Any], layout: Layout) -> None:
    """Raise ``ConfigError`` unless a snapshot is of the matrices of a layout."""
    if snapshot["matrices"] != [[m.name, m.rows, m.cols] for m in layout.matrices]:
        raise ConfigError(
            "the checkpoint is of a model with other matrices: set `model`, and `model.trainable`, as it was trained"
        )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


class LowRankBank:
    """Left and right factors of all stages on one device, float32.

    Args:
        spec: rank of a slot, capacity in columns and the policy when it is full.
        layout: the matrices, stacked in this order.
        direction: makes the factors of a key.
        update: changes a left factor.
        fold: writes ``left_OC @ right_IC.T`` into the base weights; only the ``merge`` policy calls it.
        device: where the factors live.
    """

    def __init__(
        self,
        spec: BankSpec,
        layout: Layout,
        direction: Direction,
        update: Update,
        *,
        fold: Fold | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec, self.layout = spec, layout
        self.device = torch.device(device)
        self.row_spans = spans(matrix.rows for matrix in layout.matrices)
        self.col_spans = spans(matrix.cols for matrix in layout.matrices)
        self.version = 0
        self.generation = 0  # changes whenever columns other than the running slot's may have changed
        self.num_merged = 0
        self.latest: int | None = None  # the slot that a commit changed last
        self._direction, self._update, self._fold = direction, update, fold
        # Column after column, so that a slot's factors are one block of memory.
        self._left_CO = torch.zeros(spec.capacity, layout.num_rows, device=self.device)
        self._right_CI = torch.zeros(spec.capacity, layout.num_cols, device=self.device)
        self._slots: list[Stage] = []
        self._state: list[dict[str, torch.Tensor]] = []
        self._drawn: tuple[DirectionKey, torch.Tensor] | None = None

    @property
    def num_columns(self) -> int:
        """Columns in use."""
        return len(self._slots) * self.spec.rank

    @property
    def left_OC(self) -> torch.Tensor:
        """Left factors in use."""
        return self._left_CO[: self.num_columns].T

    @property
    def right_IC(self) -> torch.Tensor:
        """Right factors in use."""
        return self._right_CI[: self.num_columns].T

    def columns(self, slot: int) -> slice:
        """Columns of a slot."""
        return slice(slot * self.spec.rank, (slot + 1) * self.spec.rank)

    def check_version(self, version: int) -> None:
        """Raise ``StaleVersionError`` unless ``version`` is the bank's."""
        check_version(version, self.version)

    def probes(self, point: Point) -> dict[int, torch.Tensor]:
        """What a point adds to the left factors: ``{slot: sum(coefficient * U_OR)}``; empty at the centre."""
        self.check_version(point.version)
        added: dict[int, torch.Tensor] = {}
        for key, coefficient in point.terms:
            slot = self._slot(key)
            probe_OR = self._left(key) * coefficient
            added[slot] = added[slot] + probe_OR if slot in added else probe_OR
        return added

    def point_left(self, point: Point) -> torch.Tensor:
        """Left factors in use at a point, a new tensor [O, num_columns]."""
        probes = self.probes(point)
        left_OC = self.left_OC.clone()
        for slot, probe_OR in probes.items():
            left_OC[:, self.columns(slot)] += probe_OR
        return left_OC

    def commit(self, record: StepRecord) -> set[int]:
        """Apply a record to the left factors. Unfused multiply, then add: the same bits everywhere.

        Returns:
            The slots that changed.
        """
        self.check_version(record.version)
        by_slot = self._by_slot(record.terms)
        for slot, terms in by_slot.items():
            columns = self.columns(slot)
            left_OR, self._state[slot] = self._update.apply(
                self._left_CO[columns].T, terms, record.lr, self._state[slot]
            )
            self._left_CO[columns] = left_OR.T
            self.latest = slot
        self.version += 1
        return set(by_slot)

    def snapshot(self) -> dict[str, Any]:
        """Plain containers and tensors only, so that ``torch.load(weights_only=True)`` reads them."""
        return {
            "version": self.version,
            "rank": self.spec.rank,
            "matrices": [[m.name, m.rows, m.cols] for m in self.layout.matrices],
            "num_merged": self.num_merged,
            "latest": self.latest,
            "slots": [list(stage) for stage in self._slots],
            "left": self.left_OC.cpu().clone(),  # column after column as here: a store keeps those that do not change
            "state": [{name: _copied(value) for name, value in state.items()} for state in self._state],
        }

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot; right factors are made anew from their stages.

        Raises:
            ConfigError: if the snapshot is of another layout or rank, fills more slots than there are, or needs base
                weights that a merge has overwritten.
        """
        check_matrices(snapshot, self.layout)
        if snapshot["rank"] != self.spec.rank:
            raise ConfigError(
                f"the checkpoint has rank {snapshot['rank']}, this run {self.spec.rank}: set `direction.rank` as it was"
            )
        if len(snapshot["slots"]) > self.spec.num_slots:
            raise ConfigError(
                f"the checkpoint fills {len(snapshot['slots'])} slots, this bank has {self.spec.num_slots}: set "
                f"`bank.capacity` to at least {len(snapshot['slots']) * self.spec.rank}"
            )
        if self.num_merged and not snapshot["num_merged"]:
            raise ConfigError(
                "`bank.policy=merge` has written into the base weights, which a checkpoint from before the first merge "
                "does not hold: load it into a backend that was opened anew"
            )
        self.version, self.num_merged = snapshot["version"], snapshot["num_merged"]
        self._slots, self._state, self._drawn, self.latest = [], [], None, snapshot["latest"]
        self._left_CO.zero_()
        for stage in snapshot["slots"]:
            self._take_slot((stage[0], stage[1]))
        self.left_OC.copy_(snapshot["left"])
        self._state = [{name: value.to(self.device) for name, value in state.items()} for state in snapshot["state"]]

    def _by_slot(self, terms: Sequence[Term]) -> dict[int, list[tuple[float, torch.Tensor]]]:
        grouped: dict[int, list[tuple[float, torch.Tensor]]] = defaultdict(list)
        for key, coefficient in terms:
            grouped[self._slot(key)].append((coefficient, self._left(key)))
        return grouped

    def _left(self, key: DirectionKey) -> torch.Tensor:
        # The probes of a step and its commit use the same U: draw it once.
        if self._drawn is None or self._drawn[0] != key:
            left_RO = self._direction.left(key, self.layout, self.device).T.contiguous()  # as the bank's columns
            self._drawn = (key, left_RO.T)
        return self._drawn[1]

    def _slot(self, key: DirectionKey) -> int:
        stage = (key.seed, key.stage)
        if stage not in self._slots:
            if len(self._slots) == self.spec.num_slots:
                self._make_room()
            self._take_slot(stage)
        return self._slots.index(stage)

    def _take_slot(self, stage: Stage) -> None:
        columns = self.columns(len(self._slots))
        seed, number = stage
        key = DirectionKey(seed=seed, step=0, stage=number)
        self._right_CI[columns] = self._direction.right(key, self.layout, self.device).T
        self._left_CO[columns] = 0.0
        self._state.append(self._update.init(self._left_CO[columns].T))
        self._slots.append(stage)
        self.generation += 1

    def _make_room(self) -> None:
        if self.spec.policy != "merge" or self._fold is None:
            raise ConfigError(
                f"the bank's {self.spec.num_slots} slots are full: raise `bank.capacity` or set `bank.policy=cyclic`"
            )
        self._fold(self.left_OC, self.right_IC)
        self._slots, self._state, self.latest = [], [], None
        self.num_merged += 1
