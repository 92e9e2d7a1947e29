"""``zo-bench traffic``: bytes of parameter state that a step moves, from the model's config alone.

Parameter state is weights, directions and factors. Only what a step reads and writes of them beside the forward pass's
own reading of the weights counts. The steps themselves run, on tensors without memory, and every operation's bytes are
counted; a stage's first step is weighed as one of ``refresh_every``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from zo_lightning.backends.vllm.internals import ADAPTER_RANKS
from zo_lightning.backends.vllm.stacked import StackedAdapters
from zo_lightning.bench.counting import ByteCounter
from zo_lightning.bench.released import ReleasedWeights
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.stages import merge
from zo_lightning.bench.workbench import Workbench
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, DirectionKey, Layout, Point, StepRecord

Moved = Mapping[tuple[str, str], float]  # section and kind to bytes of a step
Step = Callable[[ByteCounter, int], None]  # takes the step of a number, under a counter
_PUBLISHED_GB = {"dense": "1,092.9", "low_rank": "384.0", "merged": "2.47, 1.35", "read_only": "0.65"}  # of Qwen3-14B
_LABELS = {
    "dense": "released LoZO, dense",
    "low_rank": "low-rank probes, dense update",
    "merged": "ours, merged at each stage's end",
    "read_only": "ours, base left alone",
}
META = torch.device("meta")


def run(bench: Workbench) -> Report:
    """Count the released dense step, the low-rank-perturbation step and ours, which merges or leaves the base alone."""
    dtype = "bfloat16" if bench.dtype == "auto" else bench.dtype
    parameters, layout = meta_model(bench.config_folder, dtype)
    counted = count(bench.method, parameters, layout, bench.bank, getattr(torch, dtype))
    return _report(bench, dtype, counted, sum(p.numel() * p.element_size() for p in parameters.values()))


def count(
    method: Method, parameters: Mapping[str, torch.Tensor], layout: Layout, bank: BankSpec, dtype: torch.dtype
) -> dict[str, Moved]:
    """Bytes of the average step of every way."""
    rank, nu, points = method.direction.rank, method.direction.refresh_every, method.query.max_points
    settings = {"rank": rank, "refresh_every": nu, "eps": 1e-3, "lr": 1e-6}
    merging = BankSpec(rank=rank, capacity=rank, policy="merge")
    steps: dict[str, Step] = {
        "dense": dense_step(parameters, **settings),
        "low_rank": low_rank_step(parameters, points=points, **settings),
        "merged": OurStep(method, parameters, layout, merging, dtype),
        "read_only": OurStep(method, parameters, layout, bank, dtype),
    }
    return {name: per_step(step, nu) for name, step in steps.items()}


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
    """Directions and update in a bank, probes in an engine's adapters; the weights are not written but by merges.

    Bank and adapters are the real ones, as on a GPU, whose kernels read every column that an adapter has.

    Args:
        method: direction, query and update.
        parameters: the model's, by name.
        layout: the matrices.
        spec: the bank's size and policy; every slot is in use.
        dtype: of weights and adapters.
    """

    def __init__(
        self, method: Method, parameters: Mapping[str, torch.Tensor], layout: Layout, spec: BankSpec, dtype: torch.dtype
    ) -> None:
        self._refresh_every, self._points = method.direction.refresh_every, method.query.max_points
        self._weights = [parameters[matrix.parameter] for matrix in layout.matrices]
        self._counter, device = ByteCounter(), self._weights[0].device
        drawn: Any = _Drawn(spec.rank)
        self._bank = LowRankBank(spec, layout, drawn, method.update, fold=self._merge, device=device)
        columns = spec.capacity + (0 if dtype == torch.float32 else spec.rank)  # probes have columns of their own
        rank = next(rank for rank in ADAPTER_RANKS if rank >= columns)
        self._slices = [
            (
                torch.zeros(self._points, 1, rank, matrix.cols, dtype=dtype, device=device),
                torch.zeros(self._points, 1, matrix.rows, rank, dtype=dtype, device=device),
            )
            for matrix in layout.matrices
        ]
        self._adapters = StackedAdapters(self._bank, self._slices, range(self._points))
        self._cycle = spec.num_slots if spec.policy == "cyclic" else None
        for stage in range(spec.num_slots):
            self(self._counter, stage * self._refresh_every)

    def __call__(self, counter: ByteCounter, number: int) -> None:
        """Step ``number``."""
        self._counter, stage = counter, number // self._refresh_every
        key = DirectionKey(seed=0, step=number, stage=stage % self._cycle if self._cycle else stage)
        point = Point(version=self._bank.version, terms=((key, 1e-3),))
        with counter.section("probes"):
            probes = [self._bank.probes(point) for _ in range(self._points)]
        with counter.section("adapters"):
            self._adapters.program(probes)
        with counter.section("forward"):
            for right, left in self._slices:
                counter.read(right)
                counter.read(left)
        record = StepRecord(step=number, version=self._bank.version, lr=1e-6, terms=((key, 1.0),))
        with counter.section("commit"):
            self._adapters.changed(self._bank.commit(record))

    def _merge(self, *_: torch.Tensor) -> None:
        with self._counter.section("merge"):
            merge(self._weights, self._bank)


class _Drawn:
    """A direction whose draws are one write each, on any device."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def left(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        return torch.randn(layout.num_rows, self.rank, device=device)

    def right(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        return torch.randn(layout.num_cols, self.rank, device=device)


def _report(bench: Workbench, dtype: str, counted: Mapping[str, Moved], weight_bytes: int) -> Report:
    totals = {name: sum(moved.values()) for name, moved in counted.items()}
    is_published = bench.model_name == "qwen3-14b"
    rows = []
    for name, moved in counted.items():
        published = _PUBLISHED_GB[name] if is_published else ""
        passes = f"{totals[name] / weight_bytes:.4g}"
        rows.append((f"[bold]{_LABELS[name]}[/bold]", f"[bold]{_gb(totals[name])}[/bold]", passes, published))
        rows += [(f"  {section}: {kind}", _gb(size), "", "") for (section, kind), size in moved.items() if size]
    facts = {
        "gb": {name: size / 1e9 for name, size in totals.items()},
        "passes": {name: size / weight_bytes for name, size in totals.items()},
        "where": {name: {": ".join(k): size / 1e9 for k, size in moved.items()} for name, moved in counted.items()},
        "weights_gb": weight_bytes / 1e9,
        "model": bench.model_name,
        "dtype": dtype,
        "rank": bench.method.direction.rank,
        "refresh_every": bench.method.direction.refresh_every,
        "columns": bench.bank.capacity,
    }
    return Report(
        title=f"parameter state moved by a step of {bench.model_name}, {dtype}",
        columns=("", "GB", "passes", "published GB" if is_published else ""),
        rows=rows,
        facts=facts,
        draw=lambda axes: _draw(axes, {_LABELS[name]: size / 1e9 for name, size in totals.items()}),
        notes=(
            f"a pass is one reading or writing of all weights, {weight_bytes / 1e9:,.1f} GB; the forward passes' own "
            f"reading of the weights is left out. The bank holds {bench.bank.capacity} columns where the base is left "
            "alone",
        ),
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size >= 1e10 else f"{size / 1e9:.3g}"


def _draw(axes: Any, gigabytes: dict[str, float]) -> None:
    bars(axes, gigabytes, "GB of parameter state a step (logarithmic)")
    axes.set_xscale("log")
    axes.set_xlim(right=4 * max(gigabytes.values()))
