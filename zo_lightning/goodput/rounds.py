"""The rounds of a simulation: stretches of training, what each failure takes, and how long the job then waits.

Legend: F failures, T tiers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zo_lightning.goodput import portable
from zo_lightning.goodput.failures import PHASES, SURVIVAL
from zo_lightning.goodput.pace import NOTHING, Pace
from zo_lightning.goodput.portable import Floats
from zo_lightning.goodput.scenario import Scenario, Tier

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rounds:
    """What became of each stretch.

    Attributes:
        seconds: float64 [F] of training.
        steps: int64 [F], whole ones.
        part: float64 [F] of a step that the failure interrupts.
        lost: int64 [F], whole steps that the failure takes; of earlier stretches too.
        load: float64 [F], seconds to load what is restored.
    """

    seconds: Floats
    steps: Ints
    part: Floats
    lost: Ints
    load: Floats


def one_tier(pace: Pace, load_seconds: float, gaps_F: Floats) -> Rounds:
    """Stretches that begin with the only tier's newest checkpoint: none bears on another.

    Args:
        pace: of one tier.
        load_seconds: of that tier.
        gaps_F: float64 [F], seconds of training before each failure.
    """
    phases = (np.zeros(len(gaps_F), np.int64),)
    steps_F = pace.whole_steps(gaps_F, phases)
    left_F = pace.left(gaps_F, steps_F, phases)
    saved_F = np.maximum(pace.saved(0, left_F, steps_F, phases), 0)
    load_F = np.full(len(gaps_F), load_seconds)
    return Rounds(gaps_F, steps_F, pace.part(left_F, steps_F, phases), steps_F - saved_F, load_F)


def early_credit(pace: Pace, gaps_F: Floats, seed: int) -> Rounds:
    """Stretches that begin somewhere in a cycle that goes on; see ``Scenario.legacy_credit``."""
    (cadence,), begin = pace.cadences, (np.zeros(len(gaps_F), np.int64),)
    phase_F = (portable.uniforms(seed, PHASES, len(gaps_F)) * cadence.steps).astype(np.int64)
    since_F = gaps_F + pace.ended(phase_F, begin)  # seconds and steps since the cycle began
    place_F = pace.whole_steps(since_F, begin)
    part_F = pace.part(pace.left(since_F, place_F, begin), place_F, begin)
    lost_F = place_F % cadence.steps + cadence.stale
    return Rounds(gaps_F, place_F - phase_F, part_F, lost_F, np.zeros(len(gaps_F)))


def destroyed(tiers: Sequence[Tier], kinds_F: Ints, seed: int) -> list[NDArray[np.bool_]]:
    """Whether each failure destroys what each tier holds.

    Returns:
        bool [F] for each tier.
    """
    return [
        portable.uniforms(seed, SURVIVAL + place, len(kinds_F)) >= np.array(tier.survival)[kinds_F]
        for place, tier in enumerate(tiers)
    ]


def many_tiers(pace: Pace, tiers: Sequence[Tier], gaps_F: Floats, gone: Sequence[NDArray[np.bool_]]) -> Rounds:
    """Stretches that begin with the newest checkpoint that survives; that of step 0 always does.

    Args:
        pace: of all tiers.
        tiers: of equally new checkpoints the first one's is loaded.
        gaps_F: float64 [F], seconds of training before each failure.
        gone: see ``destroyed``.
    """
    held, state, phases = [0] * len(tiers), 0, [0] * len(tiers)
    rows = []
    for seconds, gone_T in zip(gaps_F.tolist(), zip(*(gone_F.tolist() for gone_F in gone), strict=True), strict=True):
        steps = pace.whole_steps(seconds, phases)
        left = pace.left(seconds, steps, phases)
        part = pace.part(left, steps, phases)
        for place, is_gone in enumerate(gone_T):
            saved = pace.saved(place, left, steps, phases)
            held[place] = NOTHING if is_gone else held[place] if saved == NOTHING else state + saved
        newest = max(held)
        load = 0.0 if newest == NOTHING else tiers[held.index(newest)].load_seconds
        restored = max(newest, 0)
        rows.append((steps, part, state + steps - restored, load))
        state = restored
        phases = [
            cadence.before if step == NOTHING else min(state - step, cadence.before)
            for cadence, step in zip(pace.cadences, held, strict=True)
        ]
    steps_F, part_F, lost_F, load_F = zip(*rows, strict=True)
    return Rounds(gaps_F, np.array(steps_F), np.array(part_F), np.array(lost_F), np.array(load_F))


def idle_seconds(scenario: Scenario, rounds: Rounds, kinds_F: Ints) -> Floats:
    """How long the job waits after each failure is detected, until there are as many devices as it needs.

    Args:
        scenario: see ``Scenario``.
        rounds: see ``Rounds``.
        kinds_F: int64 [F], see ``draw_kinds``.

    Returns:
        float64 [F].
    """
    if scenario.spares is None:
        return np.zeros_like(rounds.seconds)
    taken = scenario.failures.taken(scenario.job)
    repairs: deque[tuple[float, int]] = deque()  # when, and how many devices; in order
    clock, missing, idle = 0.0, 0, []
    for seconds, kind, load in zip(rounds.seconds.tolist(), kinds_F.tolist(), rounds.load.tolist(), strict=True):
        clock += seconds
        repairs.append((clock + scenario.repair_seconds, taken[kind]))
        missing += taken[kind]
        ready = detected = clock + scenario.job.detection_seconds
        while missing > scenario.spares or (repairs and repairs[0][0] <= ready):
            back, devices = repairs.popleft()
            missing -= devices
            ready = max(ready, back)
        idle.append(ready - detected)
        clock = ready + scenario.job.relaunch_seconds + load
    return np.array(idle, np.float64)
