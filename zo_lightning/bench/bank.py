"""``zo-bench bank``: a step's time against the columns of a full bank, and against the points of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zo_lightning.bench.report import Report
from zo_lightning.bench.timing import Case, Ratio, measure, ratio_of_medians, ratio_of_unpaired, use_all_cores
from zo_lightning.bench.training import Training
from zo_lightning.bench.workbench import Workbench
from zo_lightning.core.bank import LowRankBank
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, StepRecord
from zo_lightning.errors import ConfigError

Series = Sequence[float]
Side = tuple[str, str, Mapping[int, Ratio]]  # of the picture: labels of its axes, and values by number


def run(bench: Workbench) -> Report:
    """One engine for each bank, and one for all numbers of points; an empty list leaves its side out.

    Raises:
        ConfigError: for columns or points that cannot be had.
    """
    capacities = _capacities(bench)
    _check_points(bench)
    ranks = {columns: _with_bank(bench, columns) for columns in capacities}
    return _report(bench, ranks, _with_points(bench) if bench.points else {})


def _capacities(bench: Workbench) -> list[int]:
    """Columns of every bank: as asked, or all but those that the engine keeps for probes."""
    capabilities, rank = bench.make_backend("backend").capabilities, bench.method.direction.rank
    for columns in bench.ranks:
        if columns < 1 or columns % rank or columns > capabilities.max_rank:
            raise ConfigError(
                f"`ranks` has {columns}, but a bank's columns are a positive multiple of `direction.rank`={rank} and, "
                f"on this backend, at most {capabilities.max_rank}"
            )
    room = (capabilities.max_rank - (rank if capabilities.probe_columns else 0)) // rank * rank
    return list(dict.fromkeys(min(columns, room) for columns in bench.ranks))


def _check_points(bench: Workbench) -> None:
    each = bench.method.query.max_points
    for number in bench.points:
        if number < 1 or number % each:
            raise ConfigError(f"`points` has {number}, but a direction has {each} points: choose multiples of {each}")
    if not bench.ranks and not bench.points:
        raise ConfigError("`ranks` and `points` are both empty: there is nothing to compare")


def _with_bank(bench: Workbench, columns: int) -> Series:
    """Step over matched inference in every round, on an engine whose bank has so many columns, all in use."""
    spec = BankSpec(rank=bench.method.direction.rank, capacity=columns)
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
    over = {columns: _spread(series) for columns, series in ranks.items()}
    per_point = {number: [value / number for value in series] for number, series in points.items()}
    milliseconds = {number: _spread([1e3 * value for value in series]) for number, series in per_point.items()}
    facts: dict[str, Any] = _by_number("step_over_matched_by_columns", over)
    facts |= _by_number("milliseconds_per_point", milliseconds)
    compared: dict[str, Ratio] = {}
    if {64, 8} <= ranks.keys():
        compared["rank_64_over_8"] = ratio_of_unpaired(ranks[64], ranks[8])  # of two engines, one after the other
    if {30, 2} <= points.keys():
        compared["points_30_over_2_per_point"] = ratio_of_medians(per_point[30], per_point[2])
    for name, ratio in compared.items():
        facts |= ratio.facts(name)
    facts |= {"rounds": bench.rounds, "batch_size": bench.batch_size, "rank": bench.method.direction.rank}
    rows = [(f"{columns} columns", str(ratio), "") for columns, ratio in over.items()]
    rows += [(f"{number} points", "", str(value)) for number, value in milliseconds.items()]
    sides = [
        (axis, unit, found)
        for axis, unit, found in (
            ("columns in use", "step / matched inference", over),
            ("points in one batch", "milliseconds a point", milliseconds),
        )
        if found
    ]
    return Report(
        title=f"bank and points: {bench.model_name}, {bench.task_name}, batch {bench.batch_size}",
        columns=("", "step / matched inference", "ms a point"),
        rows=rows,
        facts=facts,
        draw=partial(_draw, sides),
        panels=len(sides),
        notes=(
            *(f"{name.replace('_', ' ')}: {ratio}" for name, ratio in compared.items()),
            f"medians of {bench.rounds} rounds, in brackets 95 % intervals; every bank has an engine of its own and is "
            "full",
        ),
    )


def _spread(series: Series) -> Ratio:
    """A median with its interval."""
    return ratio_of_medians(series, [1.0] * len(series))


def _by_number(name: str, found: Mapping[int, Ratio]) -> dict[str, Any]:
    return {
        name: {str(number): ratio.value for number, ratio in found.items()},
        f"{name}_interval": {str(number): [ratio.low, ratio.high] for number, ratio in found.items()},
    }


def _draw(sides: Sequence[Side], *panels: Any) -> None:
    for axes, side in zip(panels, sides, strict=True):
        _draw_side(axes, *side)


def _draw_side(axes: Any, label: str, unit: str, found: Mapping[int, Ratio]) -> None:
    values = [ratio.value for ratio in found.values()]
    spread = [[r.value - r.low for r in found.values()], [r.high - r.value for r in found.values()]]
    axes.errorbar(list(found), values, yerr=spread, fmt="o-", capsize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)
    axes.set_ylabel(unit)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(found), [str(number) for number in found])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
