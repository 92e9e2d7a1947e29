"""One run in many lives: start, kill, start again, until it is done or all kills are."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zo_lightning.drill.kills import Kill
from zo_lightning.drill.lines import Line, read_lines
from zo_lightning.errors import ZOError

_PATIENCE = 600.0  # seconds for a life that nobody kills
_TENTH = 10


class DrillError(ZOError):
    """A life ended neither by its kill nor well; the message names its folder."""


class Process(Protocol):
    """A life as its parent sees it."""

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if it lives on."""
        ...

    def kill(self) -> int:
        """SIGKILL, wait until it is gone, and return the exit code."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a life is started with.

    Args:
        folder: of the run, where a life goes on if there is something to go on from.
        number: from 1.
        lines: the file that it acknowledges into.
        log: the file with its output.
        kill: its end; the life sees to kinds other than ``clock`` by itself.
    """

    folder: Path
    number: int
    lines: Path
    log: Path
    kill: Kill | None


Start = Callable[[Life], Process]


@dataclass(slots=True)
class Lives:
    """The lives of one run.

    Args:
        folder: of the run.
        seconds_to_live: a life's time to its tenth line.
        lines: of each life.
        kills: how many were killed.
        kills_in_recovery: of these, how many before they had asked anything, though there was something to recover.
    """

    folder: Path
    seconds_to_live: float
    lines: list[list[Line]] = field(default_factory=list)
    kills: int = 0
    kills_in_recovery: int = 0


def live(
    folder: Path,
    start: Start,
    kills: Iterator[Kill],
    *,
    limit: int,
    on_kill: Callable[[], None] = lambda: None,
    seconds_to_live: float = 2.0,
) -> Lives:
    """Start and kill a run until it ends by itself.

    Args:
        folder: of the run; made here.
        start: starts a life.
        kills: of its lives, one each.
        limit: of kills, after which the run is left alone.
        on_kill: called after each.
        seconds_to_live: see ``Lives``; measured as soon as a life gets so far.

    Raises:
        DrillError: if a life fails, or does not end.
    """
    lives = Lives(folder, seconds_to_live=seconds_to_live)
    (folder / "drill").mkdir(parents=True)
    while True:
        life = _life(folder, len(lives.lines) + 1, next(kills) if lives.kills < limit else None)
        began = time.time()
        process = start(life)
        code = _end(process, life, lives.seconds_to_live)
        lines = read_lines(life.lines)
        recovering = any(lives.lines) and not any(line.did == "ask" for line in lines)
        lives.lines.append(lines)
        if len(lines) >= _TENTH:
            lives.seconds_to_live = lines[_TENTH - 1].at - began
        if code == 0:
            return lives
        if code != -signal.SIGKILL:
            raise DrillError(f"life {life.number} of {folder} ended with exit code {code}, unkilled: see {life.log}")
        lives.kills += 1
        lives.kills_in_recovery += recovering
        on_kill()


def _life(folder: Path, number: int, kill: Kill | None) -> Life:
    own = folder / "drill" / f"life{number:04d}"
    return Life(folder=folder, number=number, lines=own.with_suffix(".jsonl"), log=own.with_suffix(".log"), kill=kill)


def _end(process: Process, life: Life, seconds_to_live: float) -> int:
    by_clock = life.kill is not None and life.kill.by == "clock"
    code = process.wait(life.kill.moment * seconds_to_live if life.kill and by_clock else _PATIENCE)
    if code is not None:
        return code
    code = process.kill()
    if not by_clock:
        raise DrillError(f"life {life.number} of {life.folder} did not end within {_PATIENCE:.0f} s: see {life.log}")
    return code
