"""Kill zeroth-order runs: no acknowledged step is lost, the factors are the unbroken run's, each sample counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zo_lightning.drill.kills import kills
from zo_lightning.drill.lives import Start, live
from zo_lightning.drill.report import Findings
from zo_lightning.drill.verdict import judge


def drill(folder: Path, start: Start, *, number: int, seed: int, on_kill: Callable[[], None]) -> Findings:
    """Kill runs until ``number`` lives are killed; a run that ends before is followed by the same one again.

    Args:
        folder: for the runs: ``unbroken``, ``run01``, ...
        start: starts a life.
        number: of kills.
        seed: of their moments.
        on_kill: called after each.
    """
    unbroken = live(folder / "unbroken", start, kills(seed), limit=0)
    moments, total, runs = kills(seed), Findings(), 0
    while (left := number - total.counts.get("kills", 0)) > 0:
        runs += 1
        run = folder / f"run{runs:02d}"
        lives = live(run, start, moments, limit=left, on_kill=on_kill, seconds_to_live=unbroken.seconds_to_live)
        verdict = judge(lives.lines, unbroken.lines[0])
        counts = {
            "kills": lives.kills,
            "kills_in_recovery": lives.kills_in_recovery,
            "lives": len(lives.lines),
            "steps_lost": verdict.steps_lost,
            "digest_mismatches": verdict.digest_mismatches,
            "samples_repeated": verdict.samples_repeated,
            "samples_missed": verdict.samples_missed,
        }
        total.add(Findings(counts, [f"{run} (drill_seed={seed}): {fault}" for fault in verdict.faults]))
    return total
