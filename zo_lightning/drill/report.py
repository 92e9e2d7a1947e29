"""What a drill shows: a table, the faults in sentences, and one line of JSON last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MUST_BE_ZERO = (
    "steps_lost",
    "digest_mismatches",
    "samples_repeated",
    "samples_missed",
    "flips_accepted",
    "images_violating",
    "crashes",
)
_SHOWN = 20


@dataclass(slots=True)
class Findings:
    """Counts of one part of a drill, or of all of them.

    Args:
        counts: by the name that they have in the line of JSON.
        faults: a sentence each, with the seed and the folder to look at.
    """

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Sum up."""
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.faults += other.faults

    @property
    def good(self) -> bool:
        """Whether all is zero that must be."""
        return not self.faults and not any(self.counts.get(name) for name in MUST_BE_ZERO)


def publish(parts: Mapping[str, Findings], facts: Mapping[str, object], folder: Path) -> bool:
    """Print the table, the faults and the line of JSON, and write ``drill.json``.

    Args:
        parts: what was found, by part.
        facts: what else belongs into the JSON.
        folder: of the drill.

    Returns:
        Whether all is zero that must be.
    """
    total = Findings({name: 0 for name in ("kills", *MUST_BE_ZERO[:4], "flips_tried", "flips_accepted")})
    for found in parts.values():
        total.add(found)
    _print_table(parts)
    for sentence in _first(total.faults):
        print(sentence)
    text = json.dumps({**total.counts, **facts})
    (folder / "drill.json").write_text(text + "\n")
    print(text)
    return total.good


def _print_table(parts: Mapping[str, Findings]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, justify in (("part", "left"), ("count", "left"), ("", "right"), ("must be", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for part, found in parts.items():
        for number, (name, count) in enumerate(found.counts.items()):
            table.add_row(*_row(part if number == 0 else "", name, count))
    Console().print(Panel(table, title="drill", expand=False))


def _row(part: str, name: str, count: int) -> tuple[str, str, str, str]:
    return part, name.replace("_", " "), f"{count:,}", "0" if name in MUST_BE_ZERO else ""


def _first(sentences: Sequence[str]) -> Iterable[str]:
    yield from sentences[:_SHOWN]
    if len(sentences) > _SHOWN:
        yield f"and {len(sentences) - _SHOWN} more"
