"""What a benchmark shows: a table, a picture, and one line of JSON last."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Results of one benchmark.

    Args:
        title: what was measured on what.
        columns: headings of the table; the first column is text, the others numbers.
        rows: of the table, as they are shown.
        facts: everything a program wants to know.
        draw: draws the picture, on as many of matplotlib's axes as there are panels.
        notes: lines below the table.
        panels: of the picture, side by side.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    facts: dict[str, Any]
    draw: Callable[..., None]
    notes: Sequence[str] = field(default_factory=tuple)
    panels: int = 1

    def publish(self, folder: Path, name: str) -> None:
        """Print the table, write ``<name>.json`` and ``<name>.png`` into a folder, and print the JSON last."""
        self._print_table()
        folder.mkdir(parents=True, exist_ok=True)
        picture, facts = folder / f"{name}.png", folder / f"{name}.json"
        self._draw(picture)
        facts.write_text(json.dumps(self.facts, indent=2) + "\n")
        print(f"written to {folder}: {facts.name}, {picture.name}")
        print(json.dumps(self.facts))

    def _print_table(self) -> None:
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console = Console()
        console.print(Panel(table, title=self.title, expand=False))
        for note in self.notes:
            console.print(note, markup=False, highlight=False)

    def _draw(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(1, self.panels, figsize=(9, 4.5), constrained_layout=True, squeeze=False)
        self.draw(*axes[0])
        figure.suptitle(self.title)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def three_digits(value: float) -> str:
    """A number with three significant digits, or all of those before the point.

    Examples:
        >>> [three_digits(value) for value in (1092.9, 11.0, 0.0123)]
        ['1,093', '11.0', '0.0123']
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def bars(axes: Any, values: dict[str, float], unit: str) -> None:
    """Horizontal bars from the top down, each with its number."""
    names = list(values)
    drawn = axes.barh(names, list(values.values()), color="tab:blue")
    axes.bar_label(drawn, [three_digits(value) for value in values.values()], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
