"""``zo-bench startup``: seconds from the command to the end of the first step, in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from zo_lightning.bench.report import Report
from zo_lightning.bench.workbench import Workbench
from zo_lightning.errors import ConfigError, EngineError

PHASES = ("configuration", "imports", "model and data", "engine start", "first step")


def run(bench: Workbench) -> Report:
    """Start a run several times, the first time to warm the caches of the disk.

    Raises:
        ConfigError: if no start is to count.
    """
    if bench.starts < 1:
        raise ConfigError(f"`starts`={bench.starts} must be at least 1")
    from rich.console import Console
    from rich.progress import track

    console, numbers = Console(stderr=True), range(bench.starts + 1)
    rounds = track(numbers, "starting", console=console, transient=True, disable=not console.is_terminal)
    starts = [start(bench.overrides) for _ in rounds]
    return _report(bench, starts[1:])


def start(overrides: Sequence[str]) -> dict[str, float]:
    """Seconds of every phase of one run's start.

    Raises:
        EngineError: if the run does not start; what it said is above.
    """
    began = time.time()
    command = [sys.executable, "-m", "zo_lightning.cli.startup", *overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise EngineError(f"the run that was to be timed ended with exit code {done.returncode}; its message is above")
    ends = json.loads(done.stdout.splitlines()[-1])
    starts = [began, *(ends[phase] for phase in PHASES[:-1])]
    return {phase: ends[phase] - before for phase, before in zip(PHASES, starts, strict=True)}


def _report(bench: Workbench, starts: Sequence[Mapping[str, float]]) -> Report:
    medians = {phase: median(one[phase] for one in starts) for phase in PHASES}
    totals = [sum(one.values()) for one in starts]
    rows = [(phase, f"{seconds:.2f}") for phase, seconds in medians.items()]
    return Report(
        title=f"from the command to the first step: {bench.model_name}, {bench.task_name}",
        columns=("", "seconds"),
        rows=[*rows, ("[bold]the whole[/bold]", f"[bold]{median(totals):.2f}[/bold]")],
        facts={"seconds": medians, "whole": median(totals), "range": [min(totals), max(totals)], "starts": len(starts)},
        draw=lambda axes: _draw(axes, medians),
        notes=(
            f"medians of {len(starts)} fresh processes, {min(totals):.1f} to {max(totals):.1f} s, after one that warms "
            "the caches. The engine's own imports count as its start; the digest of the base before the first step "
            "counts as part of it",
        ),
    )


def _draw(axes: Any, medians: Mapping[str, float]) -> None:
    left = 0.0
    for phase, seconds in medians.items():
        bar = axes.barh([""], [seconds], left=left, label=f"{phase} {seconds:.1f} s")
        axes.bar_label(bar, [f"{seconds:.1f}" if seconds > 0.05 * sum(medians.values()) else ""], label_type="center")
        left += seconds
    axes.set_xlabel(f"seconds, {left:.1f} in all")
    axes.set_ylim(-1.2, 0.8)
    axes.legend(loc="lower center", ncols=3, frameon=False)
