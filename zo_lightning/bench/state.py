"""Steps whose bytes are counted: released LoZO's, one with low-rank probes and a dense update, and ours.

They run the real operations on parameter state and nothing else; tensors may be without memory (the meta device).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from zo_lightning.bench.counting import ByteCounter
from zo_lightning.bench.holders import Holder, OnGpu
from zo_lightning.bench.released import ReleasedWeights
from zo_lightning.bench.stages import merge
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.roles import Direction
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, Point, StepRecord

Moved = Mapping[tuple[str, str], float]  # section and kind to bytes of a step
Step = Callable[[ByteCounter, int], None]  # takes the step of a number, under a counter
META = torch.device("meta")


def count(method: Method, parameters: Mapping[str, torch.Tensor], layout: Layout, bank: BankSpec) -> dict[str, Moved]:
    """Bytes of the average step of every way, ours on a GPU."""
    rank, nu, points = method.direction.rank, method.direction.refresh_every, method.query.max_points
    settings = {"rank": rank, "refresh_every": nu, "eps": 1e-3, "lr": 1e-6}
    dense = {
        "dense": per_step(dense_step(parameters, **settings), nu),
        "low_rank": per_step(low_rank_step(parameters, points=points, **settings), nu),
    }
    return dense | count_ours(method, parameters, layout, bank, OnGpu)


def count_ours(
    method: Method, parameters: Mapping[str, torch.Tensor], layout: Layout, bank: BankSpec, holder: type[Holder]
) -> dict[str, Moved]:
    """Bytes of our average step: with merges, and with the base left alone."""
    rank = method.direction.rank
    merging = BankSpec(rank=rank, capacity=rank, policy="merge")
    steps = {
        name: OurStep(method, parameters, layout, spec, holder)
        for name, spec in (("merged", merging), ("read_only", bank))
    }
    return {name: per_step(step, method.direction.refresh_every) for name, step in steps.items()}


def meta_model(folder: Path, dtype: str) -> tuple[dict[str, torch.nn.Parameter], Layout]:
    """All parameters of a model by name, without memory, and the layout of its matrices."""
    from transformers import AutoModelForCausalLM

    from zo_lightning.models import layout_of
    from zo_lightning.models.layout import load_config

    with META:
        model: Any = AutoModelForCausalLM.from_config(load_config(folder), dtype=getattr(torch, dtype))
    return dict(model.requires_grad_(False).named_parameters()), layout_of(model, str(folder))


def per_step(step: Step, refresh_every: int) -> Moved:
    """Bytes of the average step of a stage: its first one once, any other for the rest."""
    counts: list[Counter[tuple[str, str]]] = []
    for number in range(refresh_every, refresh_every + 2):  # of a stage that is not the run's first
        with torch.no_grad(), ByteCounter() as counter:
            step(counter, number)
        counts.append(counter.bytes)
    first, other = counts
    return {kind: (first[kind] + (refresh_every - 1) * other[kind]) / refresh_every for kind in first | other}


def dense_step(parameters: Mapping[str, torch.Tensor], **settings: Any) -> Step:
    """Released LoZO: three perturbing writes and the update."""
    weights = ReleasedWeights(parameters, **settings)

    def step(counter: ByteCounter, number: int) -> None:
        weights.begin(number, seed=number)
        for name, scale in (("plus", 1.0), ("minus", -2.0), ("restore", 1.0)):
            with counter.section(name):
                weights.perturb(scale)
        with counter.section("update"):
            weights.update(1.0)

    return step


def low_rank_step(parameters: Mapping[str, torch.Tensor], *, points: int, **settings: Any) -> Step:
    """Factors in the forward passes, and a dense update."""
    weights = ReleasedWeights(parameters, **settings)

    def step(counter: ByteCounter, number: int) -> None:
        weights.begin(number, seed=number)
        with counter.section("factors"):
            lefts, rights = weights.factors()
            for factor in [*lefts.values(), *rights.values()] * points:
                counter.read(factor)
        with counter.section("update"):
            weights.update(1.0)

    return step


class OurStep:
    """Directions and update in a bank, probes beside the weights, which are not written but by merges.

    Bank and holder are the real ones.

    Args:
        method: direction, query and update.
        parameters: the model's, by name.
        layout: the matrices.
        spec: the bank's size and policy; every slot is in use.
        holder: of the points' factors.
    """

    def __init__(
        self,
        method: Method,
        parameters: Mapping[str, torch.Tensor],
        layout: Layout,
        spec: BankSpec,
        holder: type[Holder],
    ) -> None:
        self._refresh_every, self._points = method.direction.refresh_every, method.query.max_points
        self._weights = [parameters[matrix.parameter] for matrix in layout.matrices]
        self.counter, device = ByteCounter(), self._weights[0].device
        drawn: Any = _Generated(self, method.direction) if holder is OnGpu else _Drawn(spec.rank)
        self._bank = LowRankBank(spec, layout, drawn, method.update, fold=self._merge, device=device)
        self._holder = holder(self._bank, self._weights, self._points)
        self._cycle = spec.num_slots if spec.policy == "cyclic" else None
        for stage in range(spec.num_slots):
            self(self.counter, stage * self._refresh_every)

    def __call__(self, counter: ByteCounter, number: int) -> None:
        """Step ``number``."""
        self.counter, stage = counter, number // self._refresh_every
        key = DirectionKey(seed=0, step=number, stage=stage % self._cycle if self._cycle else stage)
        point = Point(version=self._bank.version, terms=((key, 1e-3),))
        with counter.section("probes"):
            probes = [self._bank.probes(point) for _ in range(self._points)]
        self._holder.program(probes, counter)
        with counter.section("forward"):
            self._holder.read(counter)
        record = StepRecord(step=number, version=self._bank.version, lr=1e-6, terms=((key, 1.0),))
        with counter.section("commit"):
            self._holder.changed(self._bank.commit(record))

    def _merge(self, *_: torch.Tensor) -> None:
        with self.counter.section("merge"):
            merge(self._weights, self._bank)
            self._holder.base_changed()


class _Generated:
    """A direction as it is: away from a CPU its draws are operations on 64-bit integers."""

    def __init__(self, step: OurStep, direction: Direction) -> None:
        self._step, self._direction = step, direction

    def left(self, *drawn: Any) -> torch.Tensor:
        with self._section():
            return self._direction.left(*drawn)

    def right(self, *drawn: Any) -> torch.Tensor:
        with self._section():
            return self._direction.right(*drawn)

    def _section(self) -> AbstractContextManager[None]:
        return self._step.counter.section("draws", kind="the generator's integers")


class _Drawn:
    """A direction whose draws are one write each, as a CPU's compiled loop makes them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def left(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        return torch.randn(layout.num_rows, self.rank, device=device)

    def right(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        return torch.randn(layout.num_cols, self.rank, device=device)
