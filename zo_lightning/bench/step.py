"""``zo-bench step``: what a step costs beside matched inference, what it replaces, and the machine's own product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from zo_lightning.bench.floor import Floor, analytic_overhead
from zo_lightning.bench.released import InPlaceWeights
from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.rows import Load, candidate_rows, padded_load, real_load
from zo_lightning.bench.timing import Case, Ratio, measure, ratio_of_medians, use_all_cores
from zo_lightning.bench.training import PARTS, Training, released, time_programming
from zo_lightning.bench.workbench import Examples, Workbench
from zo_lightning.errors import ConfigError

STEP, MATCHED, FLOOR = "step", "matched", "floor"
DENSE, IN_PLACE = "dense", "dense_in_place"
PACKED, PACKED_MATCHED = "packed", "packed_matched"
_LABELS = {
    STEP: "our step",
    MATCHED: "matched inference",
    DENSE: "released LoZO, dense",
    IN_PLACE: "the same, in place",
    PACKED: "our step, packed",
    PACKED_MATCHED: "packed, matched",
    FLOOR: "floor: bare products",
}


def run(bench: Workbench) -> Report:
    """Measure all cases in turn on the same batches.

    Raises:
        ConfigError: if the backend has no plain inference to compare with.
    """
    with ExitStack() as stack:
        backend = stack.enter_context(bench.opened("backend"))
        if not hasattr(backend, "infer"):
            raise ConfigError("`zo-bench step` compares with plain inference of an engine: choose `backend=vllm`")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        floor = Floor(bench.model.layout, dtype=backend.dtype, device=device)
        training, points = Training(bench, backend), bench.method.query.max_points
        time_programming(backend, lambda: training.timed("programming"))
        cases: dict[str, Case] = {
            STEP: training,
            MATCHED: lambda number: backend.infer(*[bench.batch(number)] * points),
            FLOOR: lambda number: floor.compute(_times(points, real_load(bench.batch(number)))),
        }
        if bench.has("dense"):
            dense = released(bench, dtype=backend.dtype, device=device)
            in_place = released(bench, dtype=backend.dtype, device=device, weights=InPlaceWeights)
            cases[DENSE] = lambda number: dense.step(bench.batch(number), number)
            cases[IN_PLACE] = lambda number: in_place.step(bench.batch(number), number)
        if bench.has("packed"):
            packed = stack.enter_context(bench.opened("packed"))
            cases[PACKED] = Training(bench, packed)
            cases[PACKED_MATCHED] = lambda number: packed.infer(*[bench.batch(number)] * points)
        use_all_cores()
        seconds = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up)
    batches = [bench.batch(number) for number in range(bench.warm_up, bench.warm_up + bench.rounds)]
    parts = training.seconds_of_parts[bench.warm_up :]
    return _report(bench, seconds, [_work(floor, points, batch) for batch in batches], parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens and floating-point operations of a round: ours, and the dense path's."""

    tokens: int
    flops: float
    dense_tokens: int
    dense_flops: float


def _work(floor: Floor, points: int, examples: Examples) -> Work:
    ours, dense = _times(points, real_load(examples)), _times(2, padded_load(candidate_rows(examples)))
    return Work(tokens=ours.tokens, flops=floor.flops(ours), dense_tokens=dense.tokens, dense_flops=floor.flops(dense))


def _times(count: int, load: Load) -> Load:
    return Load(count * load.tokens, count * load.scored)


def ratios(seconds: Mapping[str, Sequence[float]], work: Sequence[Work]) -> dict[str, Ratio]:
    """Every ratio that the measured cases allow, by its name in the JSON."""
    step, floor = seconds[STEP], seconds[FLOOR]
    found = {
        "step_over_matched": ratio_of_medians(step, seconds[MATCHED]),
        "step_over_floor": ratio_of_medians(step, floor),
        "matched_over_floor": ratio_of_medians(seconds[MATCHED], floor),
    }
    dense_floor = [own * w.dense_flops / w.flops for own, w in zip(floor, work, strict=True)]
    for name in (DENSE, IN_PLACE):
        if name in seconds:
            found[f"{name}_over_step"] = ratio_of_medians(seconds[name], step)
            found[f"{name}_over_floor"] = ratio_of_medians(seconds[name], dense_floor)
    if PACKED in seconds:
        found["packed_over_step"] = ratio_of_medians(seconds[PACKED], step)
        found["packed_over_floor"] = ratio_of_medians(seconds[PACKED], floor)
        found["packed_over_its_matched"] = ratio_of_medians(seconds[PACKED], seconds[PACKED_MATCHED])
    return found


def _report(
    bench: Workbench,
    seconds: Mapping[str, Sequence[float]],
    work: Sequence[Work],
    parts: Sequence[Mapping[str, float]],
) -> Report:
    found, rank = ratios(seconds, work), bench.method.direction.rank
    medians = {name: median(values) for name, values in seconds.items()}
    overhead = analytic_overhead(bench.model.layout, rank)
    host = median(sum(each.values()) / whole for each, whole in zip(parts, seconds[STEP], strict=True))
    rate = median(w.flops for w in work) / medians[FLOOR]
    facts: dict[str, Any] = {name: value for key, ratio in found.items() for name, value in ratio.facts(key).items()}
    facts |= {
        "seconds": medians,
        "analytic_overhead": overhead,
        "host_share": host,
        "host_seconds": {part: median(each[part] for each in parts) for part in PARTS},
        "tokens": median(w.tokens for w in work),
        "dense_tokens": median(w.dense_tokens for w in work),
        "gflops_per_second": rate / 1e9,
        "rounds": len(work),
        "batch_size": bench.batch_size,
        "rank": rank,
    }
    return Report(
        title=f"a step on {bench.model_name}, {bench.task_name}, batch {bench.batch_size}, rank {rank}",
        columns=("", "seconds", "over matched", "over own floor"),
        rows=[_row(name, value, seconds, found) for name, value in medians.items()],
        facts=facts,
        draw=lambda axes: bars(axes, {_LABELS[name]: value for name, value in medians.items()}, "seconds (median)"),
        notes=_notes(found, overhead, host, rate, facts),
    )


def _row(
    name: str, seconds: float, all_seconds: Mapping[str, Sequence[float]], found: Mapping[str, Ratio]
) -> tuple[str, ...]:
    over_matched = ratio_of_medians(all_seconds[name], all_seconds[MATCHED])
    over_floor = found.get(f"{name}_over_floor")
    return (
        _LABELS[name],
        f"{seconds:.3f}",
        "" if name == MATCHED else str(over_matched),
        str(over_floor) if over_floor else "",
    )


def _notes(
    found: Mapping[str, Ratio], overhead: float, host: float, rate: float, facts: Mapping[str, Any]
) -> list[str]:
    measured = found["step_over_matched"]
    notes = [
        f"overhead over matched inference: measured {measured.value - 1:.2%} ({measured.low - 1:.2%} to "
        f"{measured.high - 1:.2%}), analytic {overhead:.2%} (rank * sum(m + n) / sum(m n))",
        f"plan, programming, estimate and commit: {host:.2%} of a step; in milliseconds "
        + ", ".join(f"{part} {1e3 * value:.2f}" for part, value in facts["host_seconds"].items()),
        f"floor: {facts['tokens']:,.0f} tokens at {rate / 1e9:,.0f} GFLOP/s",
    ]
    if "dense_over_step" in found:
        notes.append(
            f"released LoZO / our step {found['dense_over_step']}, with its writes in place "
            f"{found['dense_in_place_over_step']}; its floor: {facts['dense_tokens']:,.0f} padded positions, heads "
            "included; it trains all parameters, as released"
        )
    if "packed_over_step" in found:
        notes.append(
            f"packed / our step {found['packed_over_step']}, over its own matched inference "
            f"{found['packed_over_its_matched']}"
        )
    return [*notes, f"medians of {facts['rounds']} rounds, every case once a round; in brackets 95 % intervals"]
