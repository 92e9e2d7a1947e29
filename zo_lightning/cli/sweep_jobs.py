"""The jobs of a sweep, read from their folders, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from zo_lightning.cli.folder import FAILURE
from zo_lightning.cli.report import read_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: ``results`` is its results.json, ``error`` why it failed."""

    name: str
    overrides: dict[str, str]
    steps: int
    results: dict[str, Any] | None = None
    error: str | None = None

    @property
    def status(self) -> str:
        """``done``, ``failed``, or ``unfinished``: stopped or still at work."""
        return "done" if self.results else "failed" if self.error else "unfinished"

    @property
    def metric(self) -> tuple[str, float] | None:
        """The optimized metric and its value, where it was measured."""
        measured = (self.results or {}).get("optimized_metric", {})
        return (measured["name"], measured["value"]) if measured.get("value") is not None else None


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a sweep's folder by number; what is not a job's folder is passed over."""
    folders = [path for path in folder.iterdir() if (path / ".hydra").is_dir() or (path / FAILURE).is_file()]
    return [_read(path) for path in sorted(folders, key=lambda path: (len(path.name), path.name))]


def _read(folder: Path) -> Job:
    failure = OmegaConf.load(folder / FAILURE) if (folder / FAILURE).is_file() else None
    results = json.loads((folder / "results.json").read_text()) if (folder / "results.json").is_file() else None
    saved = failure.overrides if failure is not None else OmegaConf.load(folder / ".hydra" / "overrides.yaml")
    logged = read_metrics(folder).get("train/loss", [])
    return Job(
        name=folder.name,
        overrides=dict(str(entry).split("=", 1) for entry in saved if "=" in str(entry)),
        steps=results["steps"] if results else max((step for step, _ in logged), default=0),
        results=None if failure is not None else results,
        error=f"{failure.error}: {failure.message}" if failure is not None else None,
    )


def differing(jobs: Sequence[Job]) -> list[str]:
    """Keys of the overrides that are not the same in all jobs, but for ``ckpt_path``, which only a later start has.

    Examples:
        >>> one = Job(name="0", overrides={"seed": "1", "model": "tiny"}, steps=0)
        >>> two = Job(name="1", overrides={"seed": "2", "model": "tiny"}, steps=0)
        >>> differing([one, two])
        ['seed']
    """
    keys = dict.fromkeys(key for job in jobs for key in job.overrides if key != "ckpt_path")
    return [key for key in keys if len({job.overrides.get(key) for job in jobs}) > 1]


def best_job(jobs: Sequence[Job]) -> Job | None:
    """The job with the best optimized metric: the highest accuracy, or the lowest of anything else."""
    measured = [(job.metric, job) for job in jobs if job.metric]
    if not measured:
        return None
    sign = -1 if "accuracy" in measured[0][0][0] else 1
    return min(measured, key=lambda pair: sign * pair[0][1])[1]


def short_names(keys: Sequence[str]) -> list[str]:
    """Last parts of dotted keys, where these tell them apart.

    Examples:
        >>> short_names(["direction.rank", "update.lr"]), short_names(["model.lr", "update.lr"])
        (['rank', 'lr'], ['model.lr', 'update.lr'])
    """
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(name) > 1 else name for key, name in zip(keys, last, strict=True)]


def print_jobs(jobs: Sequence[Job], title: str) -> None:
    """Print one row for each job, the best one marked, and below it why jobs failed."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    keys, best = differing(jobs), best_job(jobs)
    metric = best.metric[0] if best and best.metric else "metric"
    caption = f"* the best {metric}; test before→after" if best else None
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("job", *short_names(keys), "status", "steps", metric, "test loss", "accuracy"):
        whole = name in ("status", "test loss", "accuracy")
        table.add_column(name, justify="left" if name in ("job", "status") else "right", no_wrap=whole, overflow="fold")
    for job in jobs:
        table.add_row(*_row(job, keys, job is best), style="bold" if job is best else None)
    console = Console()
    console.print(table)
    for job in jobs:
        if job.error:
            console.print(f"job {job.name} failed: {job.error}", markup=False, highlight=False, soft_wrap=True)


def _row(job: Job, keys: Sequence[str], best: bool) -> list[str]:
    results = job.results
    ends = [f"{results['before'][k]:.3f}→{results['after'][k]:.3f}" if results else "" for k in ("loss", "accuracy")]
    return [
        job.name + (" *" if best else ""),
        *(shortened(job.overrides.get(key, "")) for key in keys),
        job.status,
        str(job.steps),
        f"{job.metric[1]:.4f}" if job.metric else "",
        *ends,
    ]


def shortened(value: str) -> str:
    """A number with four digits; other text as it is.

    Examples:
        >>> shortened("0.00012345678"), shortened("tiny-llama"), shortened("42")
        ('0.0001235', 'tiny-llama', '42')
    """
    try:
        return value if value.isdecimal() else f"{float(value):.4g}"
    except ValueError:
        return value
