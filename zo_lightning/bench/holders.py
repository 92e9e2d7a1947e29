"""Who holds the factors of parameter points for the forward pass, as the accounting of bytes runs them.

Shape suffixes: O rows and I columns stacked over all matrices, C any columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from zo_lightning.backends.merging import add_product
from zo_lightning.backends.open_slots import OpenSlots
from zo_lightning.backends.vllm.internals import ADAPTER_RANKS
from zo_lightning.backends.vllm.stacked import StackedAdapters
from zo_lightning.bench.counting import ByteCounter
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec
from zo_lightning.errors import ConfigError

Probes = Sequence[dict[int, torch.Tensor]]


class Holder(Protocol):
    """Made of a bank, the weights of its matrices, and the number of points."""

    def __init__(self, bank: LowRankBank, weights: Sequence[torch.Tensor], points: int) -> None: ...

    def program(self, probes: Probes, counter: ByteCounter) -> None:
        """Make the factors of the points of a step."""
        ...

    def read(self, counter: ByteCounter) -> None:
        """Count what a forward pass reads of them."""
        ...

    def changed(self, slots: set[int]) -> None:
        """Note what a commit has changed."""
        ...

    def base_changed(self) -> None:
        """Note that a merge has changed the weights."""
        ...


class OnGpu:
    """The engine's stacked adapters, whose kernels read every column that an adapter has."""

    def __init__(self, bank: LowRankBank, weights: Sequence[torch.Tensor], points: int) -> None:
        dtype, device = weights[0].dtype, weights[0].device
        rank = adapter_rank(bank.spec, dtype)
        self._slices = [
            (
                torch.zeros(points, 1, rank, matrix.cols, dtype=dtype, device=device),
                torch.zeros(points, 1, matrix.rows, rank, dtype=dtype, device=device),
            )
            for matrix in bank.layout.matrices
        ]
        self._adapters = StackedAdapters(bank, self._slices, range(points))

    def program(self, probes: Probes, counter: ByteCounter) -> None:
        """Write what is new into the adapters."""
        with counter.section("adapters"):
            self._adapters.program(probes)

    def read(self, counter: ByteCounter) -> None:
        """All adapters, once."""
        for right, left in self._slices:
            counter.read(right)
            counter.read(left)

    def changed(self, slots: set[int]) -> None:
        """Note what a commit has changed."""
        self._adapters.changed(slots)

    def base_changed(self) -> None:
        """Nothing to do."""


def adapter_rank(spec: BankSpec, dtype: torch.dtype) -> int:
    """Columns of an engine's adapters that hold a bank.

    Raises:
        ConfigError: if the bank is larger than adapters can be.

    Examples:
        >>> spec = BankSpec(rank=2, capacity=8)
        >>> adapter_rank(spec, torch.float32), adapter_rank(spec, torch.float16)
        (8, 16)
    """
    columns = spec.capacity + (0 if dtype == torch.float32 else spec.rank)  # probes have their own
    if columns > ADAPTER_RANKS[-1]:
        raise ConfigError(
            f"a GPU's adapters, whose bytes are counted, have {ADAPTER_RANKS[-1]} columns at most, probes included: "
            f"lower `bank.capacity`={spec.capacity}"
        )
    return next(rank for rank in ADAPTER_RANKS if rank >= columns)


class OnCpu:
    """Factors of the open slots, and in float32 a working copy of the weights with all others.

    Copying and packing are a reading and a writing each, as in the engine and in the packed backend.
    """

    def __init__(self, bank: LowRankBank, weights: Sequence[torch.Tensor], points: int) -> None:
        self._bank, self._weights, self._counter = bank, weights, ByteCounter()
        self._slots = OpenSlots(bank, self._fold if weights[0].dtype == torch.float32 else None)
        self._points = points

    def program(self, probes: Probes, counter: ByteCounter) -> None:
        """Make the points' left factors; where a stage begins, the working copy too."""
        self._counter = counter
        with counter.section("open slots"):
            self._slots.program(probes)

    def read(self, counter: ByteCounter) -> None:
        """Each point's left factors, and with each the right ones."""
        counter.read(self._slots.left_ACO)
        for _ in range(self._points):
            counter.read(self._slots.right_CI)

    def changed(self, slots: set[int]) -> None:
        """Note what a commit has changed."""
        self._slots.changed(slots)

    def base_changed(self) -> None:
        """Pack the weights anew."""
        for weight in self._weights:
            weight.clone()

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        if not left_OC.shape[1]:
            return
        with self._counter.section("working copy"):
            for weight, rows, cols in zip(self._weights, self._bank.row_spans, self._bank.col_spans, strict=True):
                working = weight.clone()
                add_product(working, left_OC[rows], right_IC[cols])
                working.clone()
