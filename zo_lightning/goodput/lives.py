"""``goodput.jsonl``: where a run's time has gone, over all processes that have trained it.

Each of them is a life. A line is a stretch of a life, and all lines add up to the run's wall clock. The last line is
written again in its place at every step, so that a kill leaves it as it was at the end of the last one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zo_lightning.goodput.model import Shares

LIVES = "goodput.jsonl"  # in the run's folder
FINISHED, INTERRUPTED = "finished", "interrupted"
_ORDERLY = (FINISHED, INTERRUPTED)
_ENCODER = json.JSONEncoder(default=vars, separators=(",", ":"))
_LOSSES = ("rework", "restart", "tax", "stall", "idle")


@dataclass
class Times:
    """Count, sum and sum of squares of some seconds.

    Examples:
        >>> times = Times()
        >>> for seconds in (1.0, 2.0, 3.0):
        ...     times.add(seconds)
        >>> times.mean, round(times.deviation, 3)
        (2.0, 1.0)
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.total += seconds
        self.squares += seconds * seconds

    def __add__(self, other: Times) -> Times:
        return Times(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """Of at least one."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Standard deviation, of at least two."""
        return (max(self.squares - self.total * self.mean, 0.0) / (self.count - 1)) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What keeping a run has cost its process so far, and how it is done.

    Attributes:
        way: a journal, a drain in parts or plain snapshots.
        tax: seconds that steps took longer.
        stall: seconds that training waited.
        start: of ``stall``, once, before the first checkpoint of the process.
        busy: whether a snapshot is on its way.
        snapshots: taken, for which ``tax`` was spent.
        snapshot_seconds: of ``tax``, where a journal took the rest.
        saves: snapshots that are durable.
        save_seconds: that those took, in the background.
        drain_steps: of a drain; 1 for a snapshot that is taken at once.
        every: steps from one snapshot to the next, at least; 0 before a plan is made.
        state_bytes: of a snapshot; 0 where it is not known.
        bandwidth: of copies to the host, bytes a second; 0 where it is not known.
    """

    way: Literal["journal", "drain", "snapshot"]
    tax: float = 0.0
    stall: float = 0.0
    start: float = 0.0
    busy: bool = False
    snapshots: int = 0
    snapshot_seconds: float = 0.0
    saves: int = 0
    save_seconds: float = 0.0
    drain_steps: int = 1
    every: int = 0
    state_bytes: int = 0
    bandwidth: float = 0.0


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
    def from_json(line: str) -> Stretch:
        """What ``to_json`` made."""
        values = json.loads(line)
        for name in ("free", "busy", "replayed"):
            values[name] = Times(**values[name])
        if values["kept"] is not None:
            values["kept"] = Kept(**values["kept"])
        return Stretch(**values)


def read_lives(folder: Path) -> list[Stretch]:
    """All stretches of a run, oldest first; none where nobody has kept account.

    Args:
        folder: the run's.
    """
    file = folder / LIVES
    lines = file.read_text().splitlines() if file.exists() else []
    return [stretch for line in lines if (stretch := _whole(line)) is not None]


def _whole(line: str) -> Stretch | None:
    try:
        return Stretch.from_json(line)
    except ValueError:  # a loss of power has torn it
        return None


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
    last = {stretch.life: stretch for stretch in stretches}
    newest = max(last, default=0)
    return sum(stretch.failed and (life < newest or bool(stretch.end)) for life, stretch in last.items())


class Sheet:
    """The file as it is written, by one process at a time.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / LIVES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._at = os.lseek(self._file, 0, os.SEEK_END)
        if self._at and os.pread(self._file, 1, self._at - 1) != b"\n":  # torn
            self._at += os.pwrite(self._file, b"\n", self._at)
        self._length = 0

    def write(self, stretch: Stretch) -> None:
        """Write the last line, in place of what it was."""
        line = stretch.to_json().ljust(self._length).encode()
        self._length = len(line)
        os.pwrite(self._file, line + b"\n", self._at)

    def begin_line(self) -> None:
        """Leave the last line as it is."""
        self._at, self._length = self._at + self._length + 1, 0

    def close(self) -> None:
        """Give the file back. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
