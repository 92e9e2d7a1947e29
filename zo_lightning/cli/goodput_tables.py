"""What ``zo-goodput`` shows on a terminal, on a narrow one too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zo_lightning.goodput.changes import Change
from zo_lightning.goodput.intervals import NORMAL
from zo_lightning.goodput.tables import LOSSES, Row

# Colours, and shades where there are none.
_COLOURS = {"rework": "red", "restart": "yellow", "tax": "blue", "stall": "magenta", "idle": "cyan"}
_SHADES = {"rework": "█", "restart": "▒", "tax": "▓", "stall": "░", "idle": "·"}

_COLUMNS: dict[str, Callable[[Row], str]] = {
    "devices": lambda row: f"{row.n:,}",
    "target": lambda row: row.target,
    "k": lambda row: f"{row.k}",
    "law": lambda row: "" if row.law is None else f"{row.law:.0f}",
    "goodput": lambda row: f"{row.goodput:.2f}",
    "serial": lambda row: _number(row.serial),
    "exact": lambda row: _number(row.exact),
    "simulated": lambda row: interval(row),
    **{name: lambda row, name=name: f"{getattr(row, name):.2f}" for name in LOSSES},  # type: ignore[misc]
}
_WIDE = 1000  # a terminal on which nothing is cut
_DROPPED = ("exact", *reversed(LOSSES), "law", "simulated")  # on a narrow terminal, in this order


def print_table(rows: Sequence[Row], title: str) -> None:
    """All rows, those of one number of devices together; the most goodput among them is bold."""
    names = [name for name in _COLUMNS if name not in (*LOSSES, "serial", "exact", "simulated") or _told(rows, name)]
    for dropped in _DROPPED:
        if _fits(_table(rows, names)):
            break
        names = [name for name in names if name != dropped]
    _print(title, _table(rows, names))
    if off := [row.n for row in rows if row.exact is not None and abs(row.exact - row.goodput) > 1]:
        note = f"From {min(off):,} devices on failures come so fast that `goodput` is off by a point and more"
        print_note(f"{note}: go by {'exact' if 'exact' in names else 'simulated'}.")


def print_note(text: str) -> None:
    """A remark on a table."""
    Console(highlight=False).print(text)


def print_sweep(rows: Sequence[Row], title: str) -> None:
    """Intervals down, targets across; all that is known where there is one target, or no room for several.

    The most goodput of each target is bold.
    """
    table = _pivot(rows)
    if len({row.target for row in rows}) == 1 or not _fits(table):
        print_table(rows, title)
    else:
        _print(title, table)


def _pivot(rows: Sequence[Row]) -> Table:
    targets = list(dict.fromkeys(row.target for row in rows))
    table = Table(box=SIMPLE, pad_edge=False)
    best = {target: max(row.goodput for row in rows if row.target == target) for target in targets}
    table.add_column("k", justify="right")
    for target in targets:
        table.add_column(target, justify="right")
        if _told(rows, "serial") and target != "blocking":
            table.add_column("serial", justify="right", style="dim")
    for k, of_k in groupby(sorted(rows, key=lambda row: row.k), key=lambda row: row.k):
        texts = [str(k)]
        for row in of_k:
            texts.append(_bold(f"{row.goodput:.2f}", row.goodput == best[row.target]))
            texts += [f"{row.serial:.2f}"] if row.serial is not None and row.target != "blocking" else []
        table.add_row(*texts)
    return table


def print_breakdown(rows: Sequence[Row], title: str) -> None:
    """Losses as bars, which are comparable with each other."""
    width = max(10, min(60, Console().width - 34))
    most = max(100 - row.goodput for row in rows)
    table = Table(box=None, pad_edge=False)
    for name in ("devices", "target", "goodput"):
        table.add_column(name, justify="left" if name == "target" else "right")
    told = [name for name in LOSSES if _told(rows, name)]
    table.add_column(Text.assemble(*((f"{_SHADES[name]} {name}  ", _COLOURS[name]) for name in told)))
    for _, group in _by_devices(rows):
        for number, row in enumerate(group):
            first = f"{row.n:,}" if number == 0 else ""
            table.add_row(first, row.target, f"{row.goodput:.2f}", _bar(row, width / most))
        table.add_row()
    _print(title, table)


def print_changes(before: Row, changes: Sequence[Change]) -> None:
    """What each change is worth, the best first."""
    title = f"What if? {before.n:,} devices, target {before.target}, k = {before.k}: goodput {before.surest:.2f} %"
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("change", overflow="fold")
    for name in ("points", "goodput", "k"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in changes:
        colour = "green" if change.gain >= 0.005 else "red" if change.gain <= -0.005 else "dim"
        table.add_row(change.name, f"[{colour}]{change.gain:+.2f}[/]", f"{change.row.surest:.2f}", f"{change.row.k}")
    _print(title, table)


def interval(row: Row) -> str:
    """Simulated goodput and half of its 95 % interval.

    Examples:
        >>> from zo_lightning.goodput.tables import Row
        >>> losses = dict(goodput=90, rework=5, restart=3, tax=2, stall=0, idle=0)
        >>> interval(Row(n=1, k=1, law=1, target="none", **losses, simulated=90.04, error=0.05))
        '90.04 ± 0.10'
    """
    if row.simulated is None or row.error is None:
        return ""
    return f"{row.simulated:.2f} ± {NORMAL * row.error:.2f}"


def _table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 0, 0, 1))
    for name in names:
        table.add_column(name, justify="left" if name == "target" else "right", no_wrap=True)
    for _, group in _by_devices(rows):
        best = max(row.goodput for row in group)
        for number, row in enumerate(group):
            texts = {name: _COLUMNS[name](row) for name in names}
            texts["devices"] = texts["devices"] if number == 0 else ""
            texts["goodput"] = _bold(texts["goodput"], row.goodput == best)
            table.add_row(*texts.values(), end_section=number == len(group) - 1)
    return table


def _fits(table: Table) -> bool:
    console = Console()
    return console.measure(table, options=console.options.update(width=_WIDE)).maximum <= console.width


def _print(title: str, table: Table) -> None:
    console = Console(highlight=False)
    console.print(title, style="bold")
    console.print(table)


def _by_devices(rows: Sequence[Row]) -> list[tuple[int, list[Row]]]:
    return [(n, list(group)) for n, group in groupby(rows, key=lambda row: row.n)]


def _told(rows: Sequence[Row], name: str) -> bool:
    """Whether a column says anything."""
    return any(getattr(row, name) for row in rows)


def _bar(row: Row, scale: float) -> Text:
    """Losses one after the other; rounding is that of their sums, so that the whole has the right length."""
    bar, begin = Text(), 0.0
    for name in LOSSES:
        end = begin + getattr(row, name) * scale
        bar.append(_SHADES[name] * (round(end) - round(begin)), _COLOURS[name])
        begin = end
    return bar


def _bold(text: str, bold: bool) -> str:
    return f"[bold green]{text}[/]" if bold else text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
