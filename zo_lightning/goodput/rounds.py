"""What a failure takes, and how long the job then waits, where one failure's outcome bears on the next one's.

Legend: F failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zo_lightning.goodput import portable
from zo_lightning.goodput.failures import SURVIVAL
from zo_lightning.goodput.scenario import Scenario, Tier
from zo_lightning.goodput.stretches import NOTHING, Ints, Stretches


def destroyed(tiers: Sequence[Tier], kinds_F: Ints, seed: int) -> list[NDArray[np.bool_]]:
    """Whether each failure destroys what each tier holds.

    Returns:
        bool [F] for each tier.
    """
    return [
        portable.uniforms(seed, SURVIVAL + place, len(kinds_F)) >= np.array(tier.survival)[kinds_F]
        for place, tier in enumerate(tiers)
    ]


def losses(
    tiers: Sequence[Tier], stretches: Stretches, gone: Sequence[NDArray[np.bool_]]
) -> tuple[Ints, portable.Floats]:
    """Restore the newest checkpoint that survives each failure; that of step 0 always does.

    Args:
        tiers: of equally new checkpoints the first one's is loaded.
        stretches: see ``Stretches``.
        gone: see ``destroyed``.

    Returns:
        int64 [F] whole steps that each failure takes, and float64 [F] seconds to load what is restored.
    """
    saved = [stretches.saved(place) for place in range(len(tiers))]
    if len(tiers) == 1 and not gone[0].any():
        loaded_F = np.maximum.accumulate(saved[0]) != NOTHING
        return stretches.steps_F - np.maximum(saved[0], 0), loaded_F * tiers[0].load_seconds
    rounds = zip(
        stretches.steps_F.tolist(),
        zip(*(saved_F.tolist() for saved_F in saved), strict=True),
        zip(*(gone_F.tolist() for gone_F in gone), strict=True),
        strict=True,
    )
    held, state = [NOTHING] * len(tiers), 0
    lost, load = [], []
    for steps, saved_T, gone_T in rounds:
        for place, (step, is_gone) in enumerate(zip(saved_T, gone_T, strict=True)):
            if is_gone:
                held[place] = NOTHING
            elif step != NOTHING:
                held[place] = state + step
        newest = max(held)
        load.append(0.0 if newest == NOTHING else tiers[held.index(newest)].load_seconds)
        lost.append(state + steps - max(newest, 0))
        state = max(newest, 0)
    return np.array(lost, np.int64), np.array(load, np.float64)


def idle_seconds(
    scenario: Scenario, seconds_F: portable.Floats, kinds_F: Ints, restart_F: portable.Floats
) -> portable.Floats:
    """How long the job waits after each failure is detected, until there are as many devices as it needs.

    Args:
        scenario: see ``Scenario``.
        seconds_F: float64 [F] of training before each failure.
        kinds_F: int64 [F], see ``draw_kinds``.
        restart_F: float64 [F], without this wait.

    Returns:
        float64 [F].
    """
    if scenario.spares is None:
        return np.zeros_like(seconds_F)
    taken = scenario.failures.taken(scenario.job)
    repairs: deque[tuple[float, int]] = deque()  # when, and how many devices; in order
    clock, missing, idle = 0.0, 0, []
    for seconds, kind, restart in zip(seconds_F.tolist(), kinds_F.tolist(), restart_F.tolist(), strict=True):
        clock += seconds
        repairs.append((clock + scenario.repair_seconds, taken[kind]))
        missing += taken[kind]
        ready = detected = clock + scenario.job.detection_seconds
        while missing > scenario.spares or (repairs and repairs[0][0] <= ready):
            back, devices = repairs.popleft()
            missing -= devices
            ready = max(ready, back)
        idle.append(ready - detected)
        clock += restart + (ready - detected)
    return np.array(idle, np.float64)
