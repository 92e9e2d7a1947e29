"""What runs inside every vLLM worker: it keeps the bank and makes all factors itself.

The trainer sends keys and scalars as plain tuples; tensors never cross the process border, except
the left factors of a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import signal
from typing import Any

import torch

from zo_lightning.backends.digest import digest_weights
from zo_lightning.backends.vllm import cpu_lora, internals
from zo_lightning.backends.vllm.wire import Packed, pack, read_point, read_record, unpack
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Recipe, from_recipe
from zo_lightning.core.shards import cut, shard_layout
from zo_lightning.core.types import BankSpec, Layout, MatrixSpec, Point
from zo_lightning.errors import ConfigError, ZOError

# Before the model is loaded: vLLM imports this module when it builds the worker.
internals.install_cpu_replacements()


class ZOWorker:
    """Mixed into vLLM's worker class; reached through ``collective_rpc``."""

    zo_factors: EngineFactors

    def zo_call(self, method: str, *args: Any) -> tuple[Any, str | None, str]:
        """Run one of the methods below: its value, or the class and text of an error that a user can act on.

        vLLM turns whatever is raised in a child process into a bare ``Exception``.
        """
        try:
            return getattr(self, method)(*args), None, ""
        except ZOError as error:
            return None, type(error).__name__, str(error)

    def zo_open(self, layout: tuple[Any, ...], direction: Recipe, update: Recipe, bank: Recipe, points: int) -> int:
        """Build the bank and register one pinned adapter a point. Returns the number of matrices found."""
        if multiprocessing.parent_process() is not None:
            # Ctrl-C reaches every process of the terminal; the trainer decides when the engine ends.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        model, num_parameters, matrices = layout
        specs = tuple(MatrixSpec(name=name, rows=rows, cols=cols) for name, rows, cols in matrices)
        self.zo_factors = EngineFactors(
            self,
            Layout(model=model, matrices=specs, num_parameters=num_parameters),
            from_recipe(direction),
            from_recipe(update),
            from_recipe(bank),
            points,
        )
        return len(specs)

    def zo_program(self, points: tuple[Any, ...]) -> None:
        """Write the factors of each point into its adapter, in order."""
        self.zo_factors.program([read_point(point) for point in points])

    def zo_commit(self, record: tuple[Any, ...]) -> None:
        """Apply one step record."""
        self.zo_factors.commit(read_record(record))

    def zo_snapshot(self) -> Packed:
        """The bank's snapshot, and the merged weights if any were folded."""
        return pack(self.zo_factors.snapshot())

    def zo_load(self, snapshot: Packed) -> None:
        """Restore a snapshot."""
        self.zo_factors.load(unpack(snapshot))

    def zo_digest(self) -> tuple[str, int]:
        """Digest of this worker's base weights and how many parameters are counted here."""
        parameters = list(internals.base_parameters(self))
        return digest_weights((name, tensor) for name, tensor, _ in parameters), sum(n for *_, n in parameters)


class EngineFactors:
    """The bank on this worker's shards of the matrices, beside the engine's stacked adapter tensors.

    Args:
        worker: vLLM's worker.
        layout: whole matrices by Hugging Face name.
        direction: makes factors.
        update: changes left factors.
        spec: the bank's size.
        num_points: adapters to register.
    """

    def __init__(
        self, worker: Any, layout: Layout, direction: Any, update: Any, spec: BankSpec, num_points: int
    ) -> None:
        internals.pack_cpu_adapters(worker)
        slices = internals.adapter_slices(worker)
        for matrix in layout.matrices:
            if matrix.name not in slices:
                raise internals.version_error(f"adapter for {matrix.name}")
        self._slices = [slices[matrix.name] for matrix in layout.matrices]
        rank, size = internals.tensor_parallel(worker)
        shapes = [(weight.shape[0], weight.shape[1]) for *_, weight in self._slices]
        self._whole, layout = layout, shard_layout(layout, shapes, rank=rank, size=size)
        self._slots = internals.register_adapters(worker, num_points)
        self.bank = LowRankBank(spec, layout, direction, update, fold=self._fold, device=self._slices[0][1].device)
        # Half-precision sums of P and eps*U would lose P: probes get their own columns.
        self._separate = self._slices[0][1].dtype != torch.float32
        self._generation = [-1] * num_points
        self._stale: list[set[int]] = [set() for _ in self._slots]

    def program(self, points: list[Point]) -> None:
        """Write the factors of each point; only columns that differ from what its adapter holds."""
        # All probes first: a new stage may fold full slots into the base, which changes what every adapter must hold.
        for adapter, probes in enumerate([self.bank.probes(point) for point in points]):
            if self._generation[adapter] != self.bank.generation:
                self._write_all(adapter)
            for slot in self._stale[adapter] | (set() if self._separate else set(probes)):
                left_OR = self.bank.left_OC[:, self.bank.columns(slot)]
                if not self._separate and slot in probes:
                    left_OR = left_OR + probes[slot]
                self._write_left(adapter, self.bank.columns(slot), left_OR)
            self._stale[adapter] = set() if self._separate else set(probes)
            if self._separate:
                self._write_probes(adapter, probes)
        cpu_lora.set_columns(self.bank.num_columns + (self.bank.spec.rank if self._separate else 0))

    def commit(self, record: Any) -> None:
        """Apply a record; the slots it changed are rewritten when next needed."""
        changed = self.bank.commit(record)
        for stale in self._stale:
            stale |= changed

    def snapshot(self) -> dict[str, Any]:
        """The bank's snapshot on this worker's shards; with merged weights, those too."""
        snapshot = self.bank.snapshot()
        if self.bank.num_merged:
            snapshot["merged"] = [weight.cpu().clone() for *_, weight in self._slices]
        return snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore this worker's shards of a whole bank and of merged weights."""
        snapshot = cut(snapshot, self._whole, self.bank.layout)
        self.bank.load(snapshot)
        for (*_, weight), merged in zip(self._slices, snapshot.get("merged", ()), strict=False):
            weight.copy_(merged)
        self._generation = [-1] * len(self._slots)

    def _write_all(self, adapter: int) -> None:
        everything = slice(0, self.bank.num_columns)
        for _, left, _ in self._slices:  # a merge or a smaller snapshot leaves columns behind, and GPU kernels read all
            left[self._slots[adapter]] = 0.0
        self._write_right(adapter, everything, self.bank.right_IC)
        self._write_left(adapter, everything, self.bank.left_OC)
        self._generation[adapter], self._stale[adapter] = self.bank.generation, set()

    def _write_probes(self, adapter: int, probes: dict[int, torch.Tensor]) -> None:
        # One step's probes share a stage; the columns right behind the bank's are theirs.
        if len(probes) > 1:
            raise ConfigError(
                "half-precision probes have rank columns for one stage, and a point of this method has directions of "
                f"{len(probes)}: set `backend.dtype=float32`"
            )
        columns = slice(self.bank.num_columns, self.bank.num_columns + self.bank.spec.rank)
        zero_OR = torch.zeros(self.bank.layout.num_rows, self.bank.spec.rank, device=self.bank.device)
        self._write_left(adapter, columns, next(iter(probes.values()), zero_OR))
        for slot in probes:
            self._write_right(adapter, columns, self.bank.right_IC[:, self.bank.columns(slot)])

    def _write_left(self, adapter: int, columns: slice, left_OX: torch.Tensor) -> None:
        for (_, left, _), rows in zip(self._slices, self.bank.row_spans, strict=True):
            left[self._slots[adapter], 0, :, columns] = left_OX[rows]

    def _write_right(self, adapter: int, columns: slice, right_IX: torch.Tensor) -> None:
        for (right, _, _), cols in zip(self._slices, self.bank.col_spans, strict=True):
            right[self._slots[adapter], 0, columns] = right_IX[cols].T

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        for (*_, weight), rows, cols in zip(self._slices, self.bank.row_spans, self.bank.col_spans, strict=True):
            weight.copy_(weight.float() + left_OC[rows] @ right_IC[cols].T)
