"""``zo-bench traffic``: bytes of parameter state that a step moves, from the model's config alone.

Parameter state is weights, directions and factors. Only what a step reads and writes of them beside the forward pass's
own reading of the weights counts. The steps themselves run, on tensors without memory, and every operation's bytes are
counted; a stage's first step is weighed as one of ``refresh_every``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zo_lightning.bench.holders import OnCpu, adapter_rank
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.state import Moved, count, count_ours, meta_model
from zo_lightning.bench.workbench import Workbench

_PUBLISHED_GB: dict[str, str] = {
    "dense": "1,092.9",
    "low_rank": "384.0",
    "merged": "2.47, 1.35",
    "read_only": "0.65",
}  # of Qwen3-14B
_LABELS = {
    "dense": "released LoZO, dense",
    "low_rank": "low-rank probes, dense update",
    "merged": "ours, merged at each stage's end",
    "read_only": "ours, base left alone",
    "cpu_merged": "ours on a CPU, merged",
    "cpu_read_only": "ours on a CPU, base left alone",
}


def run(bench: Workbench) -> Report:
    """Count the released dense step, the low-rank-perturbation step and ours, which merges or leaves the base alone.

    Raises:
        ConfigError: for a bank that is larger than adapters can be.
    """
    dtype = "bfloat16" if bench.dtype == "auto" else bench.dtype
    adapter_rank(bench.bank, getattr(torch, dtype))
    parameters, layout = meta_model(bench.config_folder, dtype)
    counted = count(bench.method, parameters, layout, bench.bank)
    passes = dict.fromkeys(counted, sum(p.nbytes for p in parameters.values()))
    cpu_dtype = "float32" if bench.dtype == "auto" else bench.dtype
    parameters, layout = meta_model(bench.config_folder, cpu_dtype)
    for name, moved in count_ours(bench.method, parameters, layout, bench.bank, OnCpu).items():
        counted[f"cpu_{name}"], passes[f"cpu_{name}"] = moved, sum(p.nbytes for p in parameters.values())
    return _report(bench, dtype, cpu_dtype, counted, passes)


def _report(
    bench: Workbench, dtype: str, cpu_dtype: str, counted: Mapping[str, Moved], passes: Mapping[str, int]
) -> Report:
    totals = {name: sum(moved.values()) for name, moved in counted.items()}
    weight_bytes = passes["dense"]
    is_published = bench.model_name == "qwen3-14b"
    rows = []
    for name, moved in counted.items():
        published = _PUBLISHED_GB.get(name, "") if is_published else ""
        share = f"{totals[name] / passes[name]:.4g}"
        rows.append((f"[bold]{_LABELS[name]}[/bold]", f"[bold]{_gb(totals[name])}[/bold]", share, published))
        rows += [(f"  {section}: {kind}", _gb(size), "", "") for (section, kind), size in moved.items() if size]
    facts = {
        "gb": {name: size / 1e9 for name, size in totals.items()},
        "passes": {name: size / passes[name] for name, size in totals.items()},
        "where": {name: {": ".join(k): size / 1e9 for k, size in moved.items()} for name, moved in counted.items()},
        "weights_gb": weight_bytes / 1e9,
        "model": bench.model_name,
        "dtype": dtype,
        "cpu_dtype": cpu_dtype,
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
            f"a pass is one reading or writing of all weights, {weight_bytes / 1e9:,.1f} GB (on a CPU, in {cpu_dtype}, "
            f"{passes['cpu_merged'] / 1e9:,.1f} GB); the forward passes' own reading of the weights is left out. The "
            f"bank holds {bench.bank.capacity} columns where the base is left alone",
        ),
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size >= 1e10 else f"{size / 1e9:.3g}"


def _draw(axes: Any, gigabytes: dict[str, float]) -> None:
    bars(axes, gigabytes, "GB of parameter state a step (logarithmic)")
    axes.set_xscale("log")
    axes.set_xlim(right=4 * max(gigabytes.values()))
