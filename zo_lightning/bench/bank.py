"""``zo-bench bank``: a step's time against the columns of a full bank, and against the points of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from zo_lightning.bench.report import Report
from zo_lightning.bench.timing import Case, Ratio, measure, ratio_of_medians, use_all_cores
from zo_lightning.bench.training import Training
from zo_lightning.bench.workbench import Workbench
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, StepRecord

Series = Sequence[float]


def run(bench: Workbench) -> Report:
    """One engine for each bank, and one for all numbers of points."""
    ranks = {columns: _with_bank(bench, columns) for columns in bench.ranks}
    return _report(bench, ranks, _with_points(bench))


def _with_bank(bench: Workbench, columns: int) -> Series:
    """Step over matched inference in every round, on an engine whose bank has so many columns, all in use."""
    capabilities, rank = bench.make_backend("backend").capabilities, bench.method.direction.rank
    room = capabilities.max_rank - (rank if capabilities.probe_columns else 0)
    spec = BankSpec(rank=rank, capacity=min(columns, room) // rank * rank)
    method = replace(bench.method, direction=replace(bench.method.direction, cycle=spec.num_slots))  # type: ignore[type-var]
    with bench.opened("backend", bank=spec) as backend:
        backend.load(filled(bench, method, spec))
        use_all_cores()
        points = method.query.max_points
        cases: dict[str, Case] = {
            f"{columns} columns": Training(bench, backend, method=method),
            "matched inference": lambda number: backend.infer(*[bench.batch(number)] * points),
        }
        step, matched = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up).values()
    return [own / other for own, other in zip(step, matched, strict=True)]


def filled(bench: Workbench, method: Method, spec: BankSpec) -> dict[str, Any]:
    """The snapshot of a bank that has taken one step of every stage."""
    bank = LowRankBank(spec, bench.model.layout, method.direction, method.update)
    for stage in range(spec.num_slots):
        step = stage * method.direction.refresh_every
        terms = tuple((key, 1.0) for key in method.direction.keys(seed=bench.seed, step=step))
        bank.commit(StepRecord(step=step, version=bank.version, lr=method.update.lr, terms=terms))
    return bank.snapshot()


def _with_points(bench: Workbench) -> dict[int, Series]:
    """Seconds of a step for each number of points, in every round."""
    each = bench.method.query.max_points  # of one direction
    most = max(bench.points)
    enough = bench.make_backend("backend").capabilities.max_points >= most
    changes: dict[str, Any] = {} if enough else {"max_points": most}
    with bench.opened("backend", workloads=bench.data.workloads(most), **changes) as backend:
        use_all_cores()
        cases = {str(number): Training(bench, backend, directions=number // each) for number in bench.points}
        seconds = measure(cases, rounds=bench.rounds, warm_up=bench.warm_up)
    return {int(number): series for number, series in seconds.items()}


def _report(bench: Workbench, ranks: Mapping[int, Series], points: Mapping[int, Series]) -> Report:
    over = {columns: ratio_of_medians(series, [1.0] * len(series)) for columns, series in ranks.items()}
    per_point = {number: [value / number for value in series] for number, series in points.items()}
    milliseconds = {number: 1e3 * median(series) for number, series in per_point.items()}
    facts: dict[str, Any] = {
        "step_over_matched_by_columns": {str(columns): ratio.value for columns, ratio in over.items()},
        "milliseconds_per_point": {str(number): value for number, value in milliseconds.items()},
    }
    compared: list[str] = []
    for name, series, high, low in (
        ("rank_64_over_8", ranks, 64, 8),
        ("points_30_over_2_per_point", per_point, 30, 2),
    ):
        if high in series and low in series:
            ratio: Ratio = ratio_of_medians(series[high], series[low])
            facts |= ratio.facts(name)
            compared.append(f"{name.replace('_', ' ')}: {ratio}")
    facts |= {"rounds": bench.rounds, "batch_size": bench.batch_size, "rank": bench.method.direction.rank}
    rows = [(f"{columns} columns", str(ratio), "") for columns, ratio in over.items()]
    rows += [(f"{number} points", "", f"{value:.1f}") for number, value in milliseconds.items()]
    return Report(
        title=f"bank and points: {bench.model_name}, {bench.task_name}, batch {bench.batch_size}",
        columns=("", "step / matched inference", "ms a point"),
        rows=rows,
        facts=facts,
        draw=lambda left, right: _draw(left, right, over, milliseconds),
        panels=2,
        notes=(*compared, f"medians of {bench.rounds} rounds; every bank has an engine of its own and is full"),
    )


def _draw(left: Any, right: Any, over: Mapping[int, Ratio], milliseconds: Mapping[int, float]) -> None:
    spread = [[r.value - r.low for r in over.values()], [r.high - r.value for r in over.values()]]
    left.errorbar(list(over), [r.value for r in over.values()], yerr=spread, fmt="o-", capsize=3)
    left.axhline(1.0, color="0.5", linestyle="--", linewidth=1)
    left.set_xlabel("columns in use")
    left.set_ylabel("step / matched inference")
    right.plot(list(milliseconds), list(milliseconds.values()), "o-", color="tab:orange")
    right.set_ylim(0, 1.2 * max(milliseconds.values()))
    right.set_xlabel("points in one batch")
    right.set_ylabel("milliseconds a point")
    for axes, ticks in ((left, over), (right, milliseconds)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
