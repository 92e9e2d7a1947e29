"""``zo-bench chain``: from released LoZO to ragged requests, one change at a time, on the same batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch

from zo_lightning.bench.holders import OnCpu, adapter_rank
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.stages import DeferredMerge, LowRankPerturbation
from zo_lightning.bench.state import count, count_ours, meta_model
from zo_lightning.bench.timing import Case, measure, ratio_of_medians, use_all_cores
from zo_lightning.bench.training import Training, released
from zo_lightning.bench.workbench import Workbench
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.types import BankSpec
from zo_lightning.errors import ConfigError
from zo_lightning.models import load_model

_LABELS = {
    "dense": "released LoZO, dense",
    "low_rank": "low-rank probes",
    "deferred": "deferred merge",
    "requests": "requests, padded",
    "ragged": "ragged, our step",
    "packed": "ragged, packed backend",
}
_MERGE = "merge"  # timed by itself: a stage has one
# Each stage's way in the accounting of `zo-bench traffic`.
_TRAFFIC = {"dense": "dense", "low_rank": "low_rank", "deferred": "merged", "requests": "merged"}


def run(bench: Workbench) -> Report:
    """Measure every stage in turn; all of them train the matrices inside the layers.

    Raises:
        ConfigError: for a backend without a model, other trained parameters, or a bank larger than adapters can be.
    """
    _check(bench)
    with ExitStack() as stack:
        backend = stack.enter_context(bench.opened("backend"))
        cases: dict[str, Case] = {**_in_process(bench, backend.dtype), "ragged": Training(bench, backend)}
        if bench.has("packed"):
            cases["packed"] = Training(bench, stack.enter_context(bench.opened("packed")))
        use_all_cores()
        seconds = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up)
    nu = bench.method.direction.refresh_every
    merges = seconds.pop(_MERGE)
    for name in ("deferred", "requests"):
        seconds[name] = [step + merge / nu for step, merge in zip(seconds[name], merges, strict=True)]
    return _report(bench, seconds, _gigabytes(bench, backend.dtype, seconds))


def _check(bench: Workbench) -> None:
    backend: Any = bench.make_backend("backend")
    if not hasattr(backend, "dtype"):
        raise ConfigError("`zo-bench chain` compares stages of one model: choose `backend=vllm`, `packed` or `dense`")
    adapter_rank(bench.bank, getattr(torch, backend.dtype))
    if bench.model.layout.has_vectors:
        raise ConfigError("every stage of `zo-bench chain` trains linear layers alone: leave `model.trainable=linear`")


def _in_process(bench: Workbench, dtype: str) -> dict[str, Case]:
    """The stages that run on a transformers model in this process, and the merge that two of them share."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dense = released(bench, dtype=dtype, device=device, linear=True)
    low_rank = released(bench, dtype=dtype, device=device, linear=True, kind=LowRankPerturbation)
    model = load_model(bench.model.folder, dtype=dtype, device=device)  # their own: hooks add to it
    rank = bench.method.direction.rank
    spec = BankSpec(rank=rank, capacity=rank, policy="merge")
    factored = {
        name: DeferredMerge(model, _bank(bench, spec, device), requests=name == "requests")
        for name in ("deferred", "requests")
    }
    return {
        "dense": lambda number: dense.step(bench.batch(number), number),
        "low_rank": lambda number: low_rank.step(bench.batch(number), number),
        **{name: Training(bench, stage) for name, stage in factored.items()},
        _MERGE: lambda number: factored["deferred"].merge(),
    }


def _bank(bench: Workbench, spec: BankSpec, device: torch.device) -> LowRankBank:
    method = bench.method
    return LowRankBank(spec, bench.model.layout, method.direction, method.update, fold=_no_fold, device=device)


def _no_fold(*_: torch.Tensor) -> None:
    """The merge is timed by itself; at a stage's end the bank only starts anew."""


def _gigabytes(bench: Workbench, dtype: str, stages: Mapping[str, Any]) -> dict[str, float]:
    parameters, layout = meta_model(bench.model.folder, dtype)
    trained = {matrix.parameter: parameters[matrix.parameter] for matrix in layout.matrices}
    counted = count(bench.method, trained, layout, bench.bank)
    if not torch.cuda.is_available():
        counted |= {"read_only": count_ours(bench.method, trained, layout, bench.bank, OnCpu)["read_only"]}
    return {name: sum(counted[_TRAFFIC.get(name, "read_only")].values()) / 1e9 for name in stages}


def _report(bench: Workbench, seconds: Mapping[str, Sequence[float]], gigabytes: Mapping[str, float]) -> Report:
    stages = [name for name in _LABELS if name in seconds]
    medians = {name: median(seconds[name]) for name in stages}
    over = {name: ratio_of_medians(seconds["dense"], seconds[name]) for name in stages[1:]}
    rows = [
        (_LABELS[name], f"{medians[name]:.3f}", str(over.get(name, "")), f"{gigabytes[name]:.4g}") for name in stages
    ]
    facts: dict[str, Any] = {"seconds": medians, "gb": dict(gigabytes)}
    for name, ratio in over.items():
        facts |= ratio.facts(f"dense_over_{name}")
    facts |= {"rounds": bench.rounds, "batch_size": bench.batch_size, "rank": bench.method.direction.rank}
    nu = bench.method.direction.refresh_every
    return Report(
        title=f"from dense to ragged: {bench.model_name}, {bench.task_name}, batch {bench.batch_size}",
        columns=("", "seconds", "dense / this", "state, GB"),
        rows=rows,
        facts=facts,
        draw=lambda axes: bars(axes, {_LABELS[name]: medians[name] for name in stages}, "seconds a step (median)"),
        notes=(
            f"medians of {bench.rounds} rounds; every stage trains the linear layers alone; a merge is spread over the "
            f"{nu} steps of a stage; the ragged stages leave the base alone",
        ),
    )
