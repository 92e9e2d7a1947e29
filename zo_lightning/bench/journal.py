"""``zo-bench journal``: what a step spends in the journal's calls, in each mode of durability."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, get_args

from zo_lightning.bench.report import Report, bars
from zo_lightning.bench.timing import seconds_of
from zo_lightning.bench.training import Training
from zo_lightning.bench.workbench import Workbench
from zo_lightning.checkpoint.journal import Entry, Fsync, Identity, Journal


class TimedJournal(Journal):
    """A journal that keeps the seconds of every append."""

    def __init__(self, folder: Path, *, fsync: Fsync) -> None:
        super().__init__(folder, Identity(method="bench", base=None, layout="bench", seed=0, code="bench"), fsync=fsync)
        self.seconds: list[float] = []

    def append(self, entry: Entry) -> Entry:
        """Write a step ahead of its update."""
        start = time.perf_counter()
        written = super().append(entry)
        self.seconds.append(time.perf_counter() - start)
        return written


def run(bench: Workbench) -> Report:
    """Train some steps in each mode, one mode after the other: what counts is the share of a step."""
    modes = {}
    with bench.opened("backend") as backend:
        for mode in get_args(Fsync):
            with TemporaryDirectory(dir=Path.cwd(), prefix=".journal") as folder:  # the disk of the run, not /tmp
                journal = TimedJournal(Path(folder), fsync=mode)
                training = Training(bench, backend, journal=journal)
                steps = [seconds_of(training, number) for number in range(bench.warm_up + bench.rounds)]
                journal.close()
                modes[mode] = _facts(steps, journal.seconds, bench.warm_up) | {"bytes": _size(Path(folder))}
    return _report(bench, modes)


def _facts(steps: list[float], appends: list[float], warm_up: int) -> dict[str, float]:
    steps, appends = steps[warm_up:], appends[warm_up:]
    return {
        "journal_over_step": sum(appends) / sum(steps),
        "median_append": median(appends),
        "p95_append": sorted(appends)[math.ceil(0.95 * len(appends)) - 1],
        "median_step": median(steps),
    }


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _report(bench: Workbench, modes: Mapping[str, Mapping[str, Any]]) -> Report:
    rows = [
        (
            mode,
            f"{found['journal_over_step']:.4%}",
            f"{1e6 * found['median_append']:,.0f}",
            f"{1e6 * found['p95_append']:,.0f}",
            f"{1e3 * found['median_step']:,.1f}",
        )
        for mode, found in modes.items()
    ]
    return Report(
        title=f"the journal of a step on {bench.model_name}, {bench.task_name}, batch {bench.batch_size}",
        columns=("checkpoint.fsync", "share of the step", "append, us", "95 %, us", "step, ms"),
        rows=rows,
        facts={**{mode: dict(found) for mode, found in modes.items()}, "rounds": bench.rounds},
        draw=lambda axes: bars(axes, {m: 100 * f["journal_over_step"] for m, f in modes.items()}, "% of the step"),
        notes=(
            "share: all seconds in the journal's calls over all seconds of the steps; waiting for the disk included",
        ),
    )
