"""The figure of a sweep: test loss and accuracy over what was swept, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from zo_lightning.cli.sweep_jobs import Job, differing, shortened

Curve = dict[str, list[float]]  # values of the seeds at each setting of the x axis


_MANY = 8  # more settings than these are a search: points on a scale, without lines


def figure_axes(jobs: Sequence[Job]) -> tuple[str, list[str]]:
    """The swept key along x and those that make lines; seeds are averaged unless nothing else was swept.

    The key with the most values goes along x. A search has too many settings of the others for lines: it has none.
    """
    swept = [key for key in differing(jobs) if key != "seed"]
    if not swept:
        return "seed", []
    along = max(swept, key=lambda key: len({job.overrides.get(key) for job in jobs}))
    lines = [key for key in swept if key != along]
    settings = {tuple(job.overrides.get(key) for key in lines) for job in jobs}
    return along, lines if len(settings) <= _MANY else []


def curves(jobs: Sequence[Job], name: str, along: str, lines: Sequence[str]) -> dict[str, Curve]:
    """A line's label to its values of ``loss`` or ``accuracy`` after training, seed by seed."""
    found: dict[str, Curve] = {}
    for job in jobs:
        if job.results:
            label = ", ".join(f"{key}={shortened(job.overrides.get(key, '-'))}" for key in lines)
            at = found.setdefault(label, {}).setdefault(job.overrides.get(along, "-"), [])
            at.append(job.results["after"][name])
    return dict(
        sorted(found.items(), key=lambda item: [_order(part.rpartition("=")[2]) for part in item[0].split(", ")])
    )


def draw_sweep(jobs: Sequence[Job], title: str, path: Path) -> None:
    """Draw ``sweep.png`` from the jobs that are done."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    along, lines = figure_axes(jobs)
    done = [job for job in jobs if job.results]
    settings = sorted({job.overrides.get(along, "-") for job in done}, key=_order)
    places = _places(settings)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axis, name, unit in zip(axes, ("loss", "accuracy"), ("test loss (nats)", "test accuracy"), strict=True):
        found = curves(done, name, along, lines)
        for number, (label, curve) in enumerate(found.items()):
            shift = 0.06 * (number - (len(found) - 1) / 2)  # so that bars of several lines stand side by side
            _draw_curve(axis, curve, places, label, shift)
        before = fmean(job.results["before"][name] for job in done if job.results)
        axis.axhline(before, color="0.5", linestyle="--", linewidth=1, label="before training")
        _label_x(axis, along, settings)
        axis.set_ylabel(unit)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    seeds = max(len(values) for curve in found.values() for values in curve.values())
    figure.suptitle(f"{title}: mean of {seeds} seeds, ± one standard deviation" if seeds > 1 else title)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _places(settings: Sequence[str]) -> dict[str, float]:
    """Where each setting stands on the x axis: side by side, or on a scale in a search."""
    if _is_search(settings):
        return {setting: float(setting) for setting in settings}
    return {setting: float(number) for number, setting in enumerate(settings)}


def _draw_curve(axis: Any, curve: Curve, places: dict[str, float], label: str, shift: float) -> None:
    at = [setting for setting in places if setting in curve]
    search = _is_search(list(places))
    axis.errorbar(
        [places[setting] + (0.0 if search else shift) for setting in at],
        [fmean(curve[setting]) for setting in at],
        yerr=[stdev(curve[setting]) if len(curve[setting]) > 1 else 0.0 for setting in at],
        fmt="o" if search else "o-",
        capsize=3 if max(map(len, curve.values())) > 1 else 0,
        label=label or "after training",
    )


def _label_x(axis: Any, along: str, settings: Sequence[str]) -> None:
    axis.set_xlabel(along)
    if _is_search(settings):
        low, high = float(settings[0]), float(settings[-1])
        axis.set_xscale("log" if 0 < low < high / 20 else "linear")
    else:
        axis.set_xticks(range(len(settings)), [shortened(setting) for setting in settings])
        axis.set_xlim(-0.5, len(settings) - 0.5)


def _is_search(settings: Sequence[str]) -> bool:
    return len(settings) > _MANY and not any(is_text for is_text, _, _ in map(_order, settings))


def _order(value: str) -> tuple[bool, float, str]:
    """Numbers by size, then texts."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value
