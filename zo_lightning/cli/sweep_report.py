"""``zo-sweep-report multirun/<day>/<time>``: a sweep's table, ``sweep.png`` and one line of JSON."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_lightning.cli.errors import reported
from zo_lightning.cli.sweep_figure import draw_sweep
from zo_lightning.cli.sweep_jobs import Job, best_job, differing, print_jobs, read_jobs
from zo_lightning.errors import DataError


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the JSON, and draw the figure if a job is done."""
    parser = argparse.ArgumentParser(prog="zo-sweep-report", description=__doc__)
    parser.add_argument("folder", type=Path, help="a sweep's folder, such as multirun/2026-01-31/12-00-00-4242")
    folder = parser.parse_args(arguments).folder
    with reported():
        if not folder.is_dir():
            raise DataError(f"{folder}: there is no such folder; sweeps are in multirun/<day>/<time>")
        jobs = read_jobs(folder)
        if not jobs:
            raise DataError(f"{folder} holds no jobs: name the folder whose subfolders 0, 1, ... are the jobs")
        print_jobs(jobs, str(folder))
        figure = folder / "sweep.png" if any(job.results for job in jobs) else None
        if figure is not None:
            draw_sweep(jobs, str(folder), figure)
        print(json.dumps(summary(folder, jobs, figure)))


def summary(folder: Path, jobs: Sequence[Job], figure: Path | None) -> dict[str, Any]:
    """What a program wants to know: how the jobs ended and which was best."""
    best = best_job(jobs)
    shown = None
    if best is not None and best.metric is not None:
        name, value = best.metric
        settings = {key: best.overrides.get(key) for key in differing(jobs)}
        shown = {"job": best.name, "overrides": settings, "metric": name, "value": value}
    count = Counter(job.status for job in jobs)
    return {
        "sweep": str(folder),
        "jobs": len(jobs),
        **{status: count[status] for status in ("done", "failed", "unfinished")},
        "best": shown,
        "figure": str(figure) if figure else None,
    }


if __name__ == "__main__":
    main()
