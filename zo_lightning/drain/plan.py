"""Plain snapshot or drain, and how fast: from the copy bandwidth and the time of a step, both measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from zo_lightning.drain.window import Target, Window

Mode = Literal["auto", "snapshot", "drain"]
MAX_SHARDS = 64
"""Beyond it traffic hardly falls, and the age of a snapshot grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How snapshots are taken.

    Attributes:
        num_shards: of a drain; 0 for plain snapshots.
        every: steps from the beginning of one snapshot to that of the next, at least.
        bytes_per_step: copied in a step, on average.
        state_bytes: see ``choose``.
        bandwidth: see ``choose``.
        reason: why, in one line.
    """

    num_shards: int
    every: int
    bytes_per_step: float
    state_bytes: int
    bandwidth: float
    reason: str


def window_bytes(num_shards: int, target: Target, *, state_bytes: int, grad_bytes: int) -> float:
    """Bytes that one window copies: the state once, and the gradients that bring it to one version.

    Examples:
        >>> window_bytes(16, "newest", state_bytes=12, grad_bytes=4)
        42.0
        >>> moved = [window_bytes(16, target, state_bytes=0, grad_bytes=4) for target in ("median", "newest")]
        >>> round(moved[0] / moved[1], 3)
        0.533
    """
    return state_bytes + grad_bytes * Window(shards=num_shards, target=target).traffic


def choose(
    *,
    mode: Mode,
    target: Target,
    num_shards: int | None,
    state_bytes: int,
    grad_bytes: int,
    bandwidth: float,
    step_seconds: float,
    tax: float,
) -> Plan:
    """A plain snapshot where it fits into what the tax leaves of one step, else the fastest drain that the tax allows.

    Args:
        mode: ``auto``, or one of the two.
        target: of the drain.
        num_shards: instead of the number that follows from the tax.
        state_bytes: parameters and moments.
        grad_bytes: gradients of all of them.
        bandwidth: of a copy, in bytes a second.
        step_seconds: of a training step.
        tax: share of a step that copying may take.

    Examples:
        >>> link = dict(target="newest", num_shards=None, bandwidth=1e9, step_seconds=1.0, tax=0.03, grad_bytes=4 << 20)
        >>> choose(mode="auto", state_bytes=12 << 20, **link).num_shards
        0
        >>> choose(mode="auto", state_bytes=12 << 23, **link).num_shards
        4
    """
    planned = partial(Plan, state_bytes=state_bytes, bandwidth=bandwidth)
    budget = tax * step_seconds * bandwidth
    slack = f"{1e3 * step_seconds:.3g} ms a step, {bandwidth / 1e9:.3g} GB/s, tax {tax:.3g}"
    copy = f"a copy of {state_bytes / 1e6:.3g} MB takes {1e3 * state_bytes / bandwidth:.3g} ms"
    if mode == "snapshot" or (mode == "auto" and state_bytes <= budget):
        every = max(1, math.ceil(state_bytes / budget))
        reason = f"plain snapshot every {every} steps: {copy} ({slack})"
        return planned(num_shards=0, every=every, bytes_per_step=state_bytes / every, reason=reason)

    def moved(shards: int) -> float:
        return window_bytes(shards, target, state_bytes=state_bytes, grad_bytes=grad_bytes)

    fitting = (shards for shards in range(2, MAX_SHARDS) if moved(shards) <= budget * shards)
    shards = num_shards or next(fitting, MAX_SHARDS)
    every = shards if num_shards else max(shards, math.ceil(moved(shards) / budget))
    reason = f"drain of {shards} shards, a snapshot every {every} steps, target {target}: {copy} ({slack})"
    return planned(num_shards=shards, every=every, bytes_per_step=moved(shards) / every, reason=reason)
