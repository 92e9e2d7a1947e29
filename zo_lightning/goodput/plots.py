"""The tables as pictures. Only here is matplotlib imported, and only when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_lightning.goodput.changes import Change
from zo_lightning.goodput.intervals import NORMAL
from zo_lightning.goodput.tables import LOSSES, Row

COLOURS = {"rework": "#d1495b", "restart": "#edae49", "tax": "#00798c", "stall": "#7d5ba6", "idle": "#8d99ae"}
LINES = {"newest": "#1b7837", "median": "#5aae61", "oldest": "#9970ab", "none": "#762a83", "blocking": "#b35806"}


def draw_sweep(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Goodput against the interval; of early credited drains also what they come to if they take their time."""
    scales = list(dict.fromkeys(row.n for row in rows))
    figure, axes = _figure(7, 4.2) if len(scales) == 1 else _figure(4.2 * len(scales), 4.2, len(scales))
    for axis, n in zip([axes] if len(scales) == 1 else axes, scales, strict=True):
        of_n = [row for row in rows if row.n == n]
        for target, line in _by_target(of_n):
            ks, early = [row.k for row in line], line[0].serial is not None and target != "blocking"
            _line(axis, ks, line, f"{target}, credited after k steps" if early else target)
            if early:
                serial = [row.serial for row in line]
                axis.plot(ks, serial, "--", color=LINES[target], label=f"{target}, when complete")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{n:,} devices", fontsize="medium")
        axis.set_xlabel("k, steps from one checkpoint to the next")
        _near_the_top(axis, of_n)
    first = axes if len(scales) == 1 else axes[0]
    first.set_ylabel("goodput (%)")
    first.legend(frameon=False, fontsize="small")
    return _save(figure, folder / "sweep")


def draw_breakdown(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Stacked losses against the number of devices, a panel for each target."""
    lines = _by_target(rows)
    figure, axes = _figure(2.6 * len(lines) + 1, 4, len(lines), sharey=True)
    for axis, (target, line) in zip([axes] if len(lines) == 1 else axes, lines, strict=True):
        places, bottoms = range(len(line)), [0.0] * len(line)
        for name in LOSSES:
            heights = [getattr(row, name) for row in line]
            if any(getattr(row, name) for row in rows):
                axis.bar(places, heights, bottom=bottoms, color=COLOURS[name], label=name, width=0.75)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        for place, bottom in zip(places, bottoms, strict=True):
            axis.annotate(f"{bottom:.1f}", (place, bottom), ha="center", va="bottom", fontsize="x-small")
        axis.set_xticks(places, [_short(row.n) for row in line])
        axis.set_title(target, fontsize="medium")
        axis.set_xlabel("devices")
    first = axes if len(lines) == 1 else axes[0]
    first.set_ylabel("lost (% of the wall clock)")
    first.legend(frameon=False, fontsize="small")
    return _save(figure, folder / "breakdown")


def draw_changes(before: Row, changes: Sequence[Change], folder: Path) -> list[Path]:
    """What each change that gains something is worth, as bars from the greatest down."""
    gains = {change.name: change.gain for change in changes if change.gain > 0}
    figure, axis = _figure(8, 0.4 * len(gains) + 1.4)
    bars = axis.barh(list(gains), list(gains.values()), color=LINES["newest"])
    axis.bar_label(bars, [f"{gain:+.2f}" for gain in gains.values()], padding=3, fontsize="small")
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("points of goodput")
    axis.set_title(f"{before.n:,} devices, {before.target}, k = {before.k}: {before.surest:.2f} %", fontsize="medium")
    return _save(figure, folder / f"what_if_{before.n}_{before.target}")


def _figure(width: float, height: float, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: small files
    matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans"]
    matplotlib.rcParams["svg.hashsalt"] = "zo-goodput"  # the same picture is the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), constrained_layout=True, **options)
    for axis in [axes] if columns == 1 else axes:
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axis: Any, places: Sequence[float], line: Sequence[Row], label: str) -> None:
    """Closed form as a line, and what was simulated as bars of 95 %."""
    colour = LINES[line[0].target]
    axis.plot(places, [row.goodput for row in line], "o-", color=colour, label=label, markersize=4)
    known = [(place, row) for place, row in zip(places, line, strict=True) if row.error is not None]
    if known:
        axis.errorbar(
            [place for place, _ in known],
            [row.simulated for _, row in known],
            yerr=[NORMAL * (row.error or 0.0) for _, row in known],
            fmt="none",
            ecolor=colour,
            capsize=3,
        )


def _near_the_top(axis: Any, rows: Sequence[Row]) -> None:
    """Not down to 0, where an interval is far too short or long: the differences that count are near the best."""
    best = min(max(row.goodput for row in line) for _, line in _by_target(rows))
    bottom = max(best - 8, min(row.goodput for row in rows) - 1)
    axis.set_ylim(bottom=bottom)
    axis.set_xlim(right=1.5 * max(row.k for row in rows if row.goodput > bottom))


def _short(n: int) -> str:
    """A number of devices where there is little room.

    Examples:
        >>> [_short(n) for n in (512, 2048, 65_536, 1_000_000)]
        ['512', '2k', '64k', '1M']
    """
    for unit, letter in ((1_000_000, "M"), (1024, "k"), (1000, "k")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{letter}"
    return f"{n:,}"


def _by_target(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    targets = dict.fromkeys(row.target for row in rows)
    return [(target, [row for row in rows if row.target == target]) for target in targets]


def _save(figure: Any, stem: Path) -> list[Path]:
    from matplotlib import pyplot

    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=130)
    figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return paths
