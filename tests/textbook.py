"""AdamW as a textbook writes it, in NumPy float32, and its inverse: the arithmetic of the published tables.

Weight decay stands inside the bracket here, so undoing it by a division rounds where doing it did not: torch multiplies
first, and loses far less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
State = tuple[Vector, Vector, Vector]

LR, DECAY, BETA1, BETA2, EPS = 5.4e-2, 1e-2, 0.9, 0.999, 1e-8


def forward(state: State, grad: Vector, t: int) -> State:
    """Parameters and moments one step on."""
    p, m, v = state
    m = f32(BETA1) * m + f32(1 - BETA1) * grad
    v = f32(BETA2) * v + f32(1 - BETA2) * (grad * grad)
    return p - f32(LR) * (_update(m, v, t) + f32(DECAY) * p), m, v


def backward(state: State, grad: Vector, t: int) -> State:
    """Parameters and moments before step t."""
    p, m, v = state
    p = (p + f32(LR) * _update(m, v, t)) / f32(1 - LR * DECAY)
    m = (m - f32(1 - BETA1) * grad) / f32(BETA1)
    return p, m, np.maximum((v - f32(1 - BETA2) * (grad * grad)) / f32(BETA2), 0)


def f32(number: float) -> np.float32:
    """A float32."""
    return np.float32(number)


def _update(m: Vector, v: Vector, t: int) -> Vector:
    return (m / f32(1 - BETA1**t)) / (np.sqrt(v / f32(1 - BETA2**t)) + f32(EPS))
