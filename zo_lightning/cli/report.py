"""What a person sees at the end of a run: a card, a curve and ``results.json``."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from zo_lightning.cli.folder import write_text


def wilson_interval(accuracy: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a share (Wilson 1927).

    Examples:
        >>> [round(bound, 3) for bound in wilson_interval(0.5, 100)]
        [0.404, 0.596]
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (accuracy + z * z / (2 * count)) / (1 + z * z / count)
    spread = z / (1 + z * z / count) * math.sqrt(accuracy * (1 - accuracy) / count + z * z / (4 * count * count))
    return max(0.0, centre - spread), min(1.0, centre + spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Loss (nats) and accuracy of a test split, with its 95 % interval."""

    loss: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float

    @classmethod
    def of(cls, metrics: dict[str, float], count: int) -> Scores:
        """From ``test/loss`` and ``test/accuracy`` over ``count`` examples."""
        low, high = wilson_interval(metrics["test/accuracy"], count)
        return cls(loss=metrics["test/loss"], accuracy=metrics["test/accuracy"], accuracy_low=low, accuracy_high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a sweep optimizes; without a value where it was not measured."""

    name: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The content of ``results.json``."""

    steps: int
    skipped_steps: int
    before: Scores
    after: Scores
    seconds_per_step: float
    tokens_per_second: float
    base_digest: str
    base_digest_unchanged: bool
    num_parameters: int
    truncated_examples: int
    optimized_metric: Metric

    def write(self, folder: Path) -> None:
        """Write ``results.json``."""
        write_text(folder / "results.json", json.dumps(asdict(self), indent=2) + "\n")

    def with_training_of(self, folder: Path) -> Results:
        """These results with what those in a folder tell of its training: the speed, and a metric not measured here."""
        if not (folder / "results.json").is_file():
            return self
        earlier = json.loads((folder / "results.json").read_text())
        kept = {name: earlier[name] for name in ("seconds_per_step", "tokens_per_second")}
        metric = Metric(**earlier["optimized_metric"])
        if self.optimized_metric == Metric(name=metric.name, value=None):
            kept["optimized_metric"] = metric
        return replace(self, **kept)


def read_metrics(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Series of (step, value) from the CSV logger's files; empty without one.

    A run that went on has several files; where they overlap, the later one tells what was kept.
    """
    series: dict[str, dict[int, float]] = {}
    versions = sorted((folder / "csv").glob("version_*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    for path in versions:
        with path.open() as file:
            for row in csv.DictReader(file):
                for name, value in row.items():
                    if value and name not in ("step", "epoch"):
                        series.setdefault(name, {})[int(row["step"]) + 1] = float(value)
    return {name: sorted(points.items()) for name, points in series.items()}


def draw_curve(folder: Path, title: str, results: Results) -> Path | None:
    """Draw ``curve.png``: training loss, dev loss and dev accuracy against steps, test before and after."""
    series = read_metrics(folder)
    if "train/loss" not in series:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (loss, accuracy) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    steps, values = zip(*series["train/loss"], strict=True)
    loss.plot(steps, values, color="0.75", linewidth=1, label="train (one batch)")
    loss.plot(steps, _smooth(values), color="tab:blue", linewidth=2, label="train (smoothed)")
    for axis, name in ((loss, "loss"), (accuracy, "accuracy")):
        if f"val/{name}" in series:
            axis.plot(*zip(*series[f"val/{name}"], strict=True), "o-", color="tab:orange", label="dev")
        ends = [getattr(results.before, name), getattr(results.after, name)]
        axis.plot([0, results.steps], ends, "s", color="tab:green", label="test")
        axis.set_xlabel("step")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    for step, scores in ((0, results.before), (results.steps, results.after)):
        accuracy.vlines(step, scores.accuracy_low, scores.accuracy_high, color="tab:green", alpha=0.6)
    loss.set_ylabel("loss (nats)")
    accuracy.set_ylabel("accuracy")
    loss.legend()
    accuracy.legend(loc="lower right")
    figure.suptitle(title)
    path = folder / "curve.png"
    beside = path.with_name(".curve.new.png")
    figure.savefig(beside, dpi=130)
    beside.replace(path)
    pyplot.close(figure)
    return path


def _smooth(values: tuple[float, ...], weight: float = 0.9) -> list[float]:
    smoothed, total, norm = [], 0.0, 0.0
    for value in values:
        total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
        smoothed.append(total / norm)
    return smoothed


def print_card(title: str, results: Results, folder: Path, files: list[Path]) -> None:
    """Print the result card."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, justify in (("", "left"), ("before", "right"), ("after", "right"), ("95 % interval", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    before, after = results.before, results.after
    table.add_row(
        "test accuracy",
        f"{before.accuracy:.3f}",
        f"[bold]{after.accuracy:.3f}[/bold]",
        f"{after.accuracy_low:.3f} to {after.accuracy_high:.3f}",
    )
    table.add_row("test loss", f"{before.loss:.3f}", f"[bold]{after.loss:.3f}[/bold]", "")
    table.add_row()
    for name, value in _facts(results, folder, files):
        table.add_row(name, value)
    Console().print(Panel(table, title=title, expand=False))
    print(f"written to {folder}")


def _speed(results: Results) -> list[tuple[str, str]]:
    if not results.seconds_per_step:  # no step was left to train
        return []
    return [
        ("seconds a step", f"{results.seconds_per_step:.2f}"),
        ("tokens a second", f"{results.tokens_per_second:,.0f}"),
    ]


def _facts(results: Results, folder: Path, files: list[Path]) -> list[tuple[str, Any]]:
    facts = [
        ("steps", f"{results.steps}" + (f" ({results.skipped_steps} skipped)" if results.skipped_steps else "")),
        *_speed(results),
        ("base weights", "unchanged" if results.base_digest_unchanged else "[bold]changed[/bold]"),
        ("files", ", ".join(str(file.relative_to(folder)) for file in files if file.exists())),
    ]
    if results.truncated_examples:
        facts.insert(1, ("truncated texts", str(results.truncated_examples)))
    return facts
