"""``zo-bench padding``: how much of a padded batch is empty, which ragged batches never compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zo_lightning.bench.report import Report
from zo_lightning.bench.rows import Rows, candidate_rows, padded_length, request_rows
from zo_lightning.bench.workbench import Examples, Workbench


def padded_share(batches: Sequence[Rows]) -> float:
    """Share of the positions of padded batches that hold no token.

    Examples:
        >>> padded_share([[(1,) * 8, (1,) * 4]])
        0.25
    """
    positions = sum(len(rows) * padded_length(rows) for rows in batches)
    return 1 - sum(len(row) for rows in batches for row in rows) / positions


def run(bench: Workbench) -> Report:
    """Count an epoch of every task whose data are at hand."""
    shares = {name: _shares(bench.batches_of(make(bench.model))) for name, make in bench.tasks.items()}
    rows = [(name, f"{s['candidates']:.1%}", f"{s['requests']:.1%}", f"{s['work']:.2f}") for name, s in shares.items()]
    return Report(
        title=f"padding at batch {bench.batch_size}, tokens of {bench.model_name}",
        columns=("task", "row a candidate", "row a request", "positions / tokens asked"),
        rows=rows,
        facts={"tasks": shares, "batch_size": bench.batch_size, "model": bench.model_name},
        draw=lambda axes: _draw(axes, shares),
        notes=(
            "share of positions that hold no token, padded on the left to a multiple of 8; the last column is what "
            "rows for every candidate compute, over the tokens of ragged requests. Published at batch 16: 21-53 % on "
            "seven SuperGLUE tasks",
        ),
    )


def _shares(batches: Sequence[Examples]) -> dict[str, float]:
    candidates, requests = _rows(batches, candidate_rows), _rows(batches, request_rows)
    positions = sum(len(rows) * padded_length(rows) for rows in candidates)
    asked = sum(len(row) for rows in requests for row in rows)
    return {
        "candidates": padded_share(candidates),
        "requests": padded_share(requests),
        "work": positions / asked,
    }


def _rows(batches: Sequence[Examples], make: Callable[[Examples], Rows]) -> list[Rows]:
    return [make(batch) for batch in batches]


def _draw(axes: Any, shares: dict[str, dict[str, float]]) -> None:
    for shift, kind, label in ((-0.2, "candidates", "one row a candidate"), (0.2, "requests", "one row a request")):
        places = [place + shift for place in range(len(shares))]
        drawn = axes.bar(places, [100 * share[kind] for share in shares.values()], width=0.38, label=label)
        axes.bar_label(drawn, fmt="{:.0f} %", padding=2)
    axes.set_xticks(range(len(shares)), list(shares))
    axes.set_ylabel("empty positions (%)")
    axes.grid(axis="y", alpha=0.3)
    axes.margins(y=0.12)
    axes.legend()
