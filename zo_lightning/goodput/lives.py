"""``goodput.jsonl``: where a run's time has gone, over all processes that have trained it.

Each of them is a life. A line is a stretch of a life, and all lines add up to the run's wall clock. The last line is
written again in its place at every step, so that a kill leaves it as it was at the end of the last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from zo_lightning.goodput.kept import Kept
from zo_lightning.goodput.model import Shares
from zo_lightning.goodput.times import Times

LIVES = "goodput.jsonl"  # in the run's folder
FINISHED, INTERRUPTED = "finished", "interrupted"
_ORDERLY = (FINISHED, INTERRUPTED)
_ENCODER = json.JSONEncoder(default=vars, separators=(",", ":"))
Line = TypeVar("Line")
_LOSSES = ("rework", "restart", "tax", "stall", "idle")


@dataclass(kw_only=True)
class Stretch:
    """A stretch of a life. All times are seconds.

    Attributes:
        life: its number, from 1 on.
        at: the last sign of life, as ``time.time()``.
        step: steps done then.
        wall: of the clock, with what went before the life for its first stretch.
        rework: steps made again, and one that an error cut short.
        restart: from the last sign of the life before to training, and steps taken from the journal.
        tax: see ``Kept``.
        stall: see ``Kept``.
        idle: from the last sign of the life before until somebody started another.
        redone: steps made again.
        free: undisturbed times of new steps while no snapshot was on its way, validation apart.
        busy: the same while one was.
        replayed: times of steps taken from the journal.
        end: how the life ended: ``finished``, ``interrupted`` or an error's name; empty while it goes on or if killed.
        kept: what it has cost this life, from its beginning, to be kept.
    """

    life: int
    at: float
    step: int
    wall: float = 0.0
    rework: float = 0.0
    restart: float = 0.0
    tax: float = 0.0
    stall: float = 0.0
    idle: float = 0.0
    redone: int = 0
    free: Times = field(default_factory=Times)
    busy: Times = field(default_factory=Times)
    replayed: Times = field(default_factory=Times)
    end: str = ""
    kept: Kept | None = None

    @property
    def failed(self) -> bool:
        """Whether the life, if this is its last stretch, has ended by a failure."""
        return self.end not in _ORDERLY

    def absorb(self, other: Stretch) -> None:
        """Add another's seconds of the wall clock and of each loss."""
        for name in ("wall", *_LOSSES):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> str:
        """One line."""
        return _ENCODER.encode(self)

    @staticmethod
    def from_json(line: str | bytes) -> Stretch:
        """What ``to_json`` made.

        Raises:
            ValueError: for anything else, as a line that is torn or that another version has written.
        """
        values = json.loads(line)
        for name, kind in _PARTS.items():
            if isinstance(values, dict) and values.get(name) is not None:
                values[name] = _made(kind, values[name])
        return _made(Stretch, values)


_PARTS: dict[str, type] = {"free": Times, "busy": Times, "replayed": Times, "kept": Kept}


def _made(kind: type, values: Any) -> Any:
    """A dataclass out of all its fields, numbers where they belong."""
    kinds = _kinds(kind)
    if not isinstance(values, dict) or values.keys() != kinds.keys():
        raise ValueError(f"fields of {kind.__name__} that are none, or not all")
    for name, (wanted, choices) in kinds.items():
        if not isinstance(values[name], wanted) or (choices and values[name] not in choices):
            raise ValueError(f"`{name}` of {kind.__name__} is {values[name]!r}")
    return kind(**values)


@cache
def _kinds(kind: type) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Types of each field, and what it may be of these: once, as a long run has many lines."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        found[name] = (str if choices else (int, float) if hint is float else get_args(hint) or hint, choices)
    return found


def read_lives(folder: Path) -> list[Stretch]:
    """All stretches of a run, oldest first; none where nobody has kept account.

    Lines that a loss of power has torn, or that another version has written, are passed over.

    Args:
        folder: the run's.
    """
    return list(read_lines(folder / LIVES, Stretch.from_json))


def read_lines(file: Path, read: Callable[[bytes], Line]) -> Iterator[Line]:
    """What can be read of a file that others write, line by line; nothing where there is no file.

    Args:
        file: of JSON lines.
        read: makes something of a line, or raises ``ValueError``.
    """
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with suppress(ValueError):
            yield read(line)


def by_life(stretches: Iterable[Stretch]) -> list[list[Stretch]]:
    """Those of each life together, oldest first."""
    return [list(life) for _, life in groupby(stretches, key=lambda stretch: stretch.life)]


def shares_of(stretches: Sequence[Stretch]) -> Shares | None:
    """Where the time has gone; none before any has.

    Args:
        stretches: of all lives.

    Examples:
        >>> shares_of([Stretch(life=1, at=8.0, step=4, wall=8.0, tax=1.0), Stretch(life=2, at=16.0, step=6, wall=8.0,
        ...     restart=3.0)])
        Shares(goodput=0.75, rework=0.0, restart=0.1875, tax=0.0625, stall=0.0, idle=0.0)
    """
    wall = sum(stretch.wall for stretch in stretches)
    if not wall:
        return None
    losses = {name: sum(getattr(stretch, name) for stretch in stretches) / wall for name in _LOSSES}
    return Shares.of({"goodput": 1 - sum(losses.values()), **losses})


def training_seconds(stretches: Sequence[Stretch]) -> float:
    """Time in which a failure could strike: the wall clock without restarts."""
    return sum(stretch.wall - stretch.restart - stretch.idle for stretch in stretches)


def failures_of(stretches: Sequence[Stretch]) -> int:
    """Lives that ended by a failure. The last one counts if it has said so: else it may go on still."""
    lasts = [life[-1] for life in by_life(stretches)]
    return sum(last.failed and (last is not lasts[-1] or bool(last.end)) for last in lasts)
