"""Kill runs until enough lives are killed, and hold each against the same run that nobody killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zo_lightning.drill.kills import Kill
from zo_lightning.drill.lines import Line
from zo_lightning.drill.lives import Start, live
from zo_lightning.drill.report import Findings

Judge = Callable[[Sequence[Sequence[Line]], Sequence[Line]], Findings]


def kill_runs(
    folder: Path, start: Start, judge: Judge, moments: Iterator[Kill], *, number: int, on_kill: Callable[[], None]
) -> Findings:
    """Kill a run until it ends, then the same run again, until ``number`` lives are killed.

    Args:
        folder: for the runs: ``unbroken``, ``run01``, ...
        start: starts a life.
        judge: says what the lives did otherwise than the unbroken run.
        moments: of the kills.
        number: of kills.
        on_kill: called after each.
    """
    unbroken = live(folder / "unbroken", start, moments, limit=0)
    total, runs = Findings(), 0
    while (left := number - total.counts.get("kills", 0)) > 0:
        runs += 1
        run = folder / f"run{runs:02d}"
        lives = live(run, start, moments, limit=left, on_kill=on_kill, seconds_to_live=unbroken.seconds_to_live)
        found = judge(lives.lines, unbroken.lines[0])
        counts = {"kills": lives.kills, "kills_in_recovery": lives.kills_in_recovery, "lives": len(lives.lines)}
        total.add(Findings(counts | found.counts, [f"{run}: {fault}" for fault in found.faults]))
    return total
