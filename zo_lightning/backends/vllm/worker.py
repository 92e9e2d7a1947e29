"""What runs inside every vLLM worker: it keeps the bank and makes all factors itself.

The trainer sends keys and scalars as plain tuples; tensors never cross the process border, except
the left factors of a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from zo_lightning.backends.digest import digest_weights
from zo_lightning.backends.merging import add_product
from zo_lightning.backends.vllm import internals
from zo_lightning.backends.vllm.cpu_lora import CpuAdapters
from zo_lightning.backends.vllm.stacked import StackedAdapters
from zo_lightning.backends.vllm.wire import Packed, pack, read_point, read_record, unpack
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Recipe, from_recipe
from zo_lightning.core.shards import cut, shard_layout
from zo_lightning.core.types import BankSpec, Layout, MatrixSpec, Point
from zo_lightning.errors import ZOError

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

    def zo_open(
        self, layout: tuple[Any, ...], direction: Recipe, update: Recipe, bank: Recipe, points: int, fold: bool
    ) -> int:
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
            fold=fold,
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


class Adapters(Protocol):
    """Where the engine keeps the factors of parameter points."""

    def program(self, points: Sequence[dict[int, torch.Tensor]]) -> None:
        """Make adapter ``i`` stand for the bank and the probes ``points[i]``."""
        ...

    def changed(self, slots: set[int]) -> None:
        """Note that slots of the bank are no longer what the adapters hold."""
        ...

    def forget(self) -> None:
        """Note that nothing of what the adapters hold is the bank's."""
        ...

    def base_changed(self) -> None:
        """Note that the base weights have changed."""
        ...


class EngineFactors:
    """The bank on this worker's shards of the matrices, and the adapters that stand for its points.

    Args:
        worker: vLLM's worker.
        layout: whole matrices by Hugging Face name.
        direction: makes factors.
        update: changes left factors.
        spec: the bank's size.
        num_points: adapters to register.
        fold: on CPU, whether slots that are not probed go into a working copy of the weights.
    """

    def __init__(
        self, worker: Any, layout: Layout, direction: Any, update: Any, spec: BankSpec, num_points: int, *, fold: bool
    ) -> None:
        slices = internals.adapter_slices(worker)
        for matrix in layout.matrices:
            if matrix.name not in slices:
                raise internals.version_error(f"adapter for {matrix.name}")
        tensors = [slices[matrix.name] for matrix in layout.matrices]
        self._weights = [weight for *_, weight in tensors]
        rank, size = internals.tensor_parallel(worker)
        shapes = [(weight.shape[0], weight.shape[1]) for weight in self._weights]
        self._whole, layout = layout, shard_layout(layout, shapes, rank=rank, size=size)
        places = internals.register_adapters(worker, num_points)
        self.bank = LowRankBank(spec, layout, direction, update, fold=self._fold, device=self._weights[0].device)
        self._adapters: Adapters = (
            CpuAdapters(self.bank, internals.adapter_layers(worker), places, fold=fold)
            if internals.on_cpu()
            else StackedAdapters(self.bank, [(right, left) for right, left, _ in tensors], places)
        )

    def program(self, points: list[Point]) -> None:
        """Write the factors of each point."""
        # All probes first: a new stage may fold full slots into the base, which changes what every adapter must hold.
        self._adapters.program([self.bank.probes(point) for point in points])

    def commit(self, record: Any) -> None:
        """Apply a record; the slots it changed are rewritten when next needed."""
        self._adapters.changed(self.bank.commit(record))

    def snapshot(self) -> dict[str, Any]:
        """The bank's snapshot on this worker's shards; with merged weights, those too."""
        snapshot = self.bank.snapshot()
        if self.bank.num_merged:
            snapshot["merged"] = [weight.cpu().clone() for weight in self._weights]
        return snapshot

    def load(self, snapshot: dict[str, Any]) -> None:
        """Restore this worker's shards of a whole bank and of merged weights."""
        snapshot = cut(snapshot, self._whole, self.bank.layout)
        self.bank.load(snapshot)
        if "merged" in snapshot:
            for weight, merged in zip(self._weights, snapshot["merged"], strict=True):
                weight.copy_(merged)
            self._adapters.base_changed()
        self._adapters.forget()

    def _fold(self, left_OC: torch.Tensor, right_IC: torch.Tensor) -> None:
        for weight, rows, cols in zip(self._weights, self.bank.row_spans, self.bank.col_spans, strict=True):
            add_product(weight, left_OC[rows], right_IC[cols])
        self._adapters.base_changed()
