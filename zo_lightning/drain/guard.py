"""A look at one step: has its gradient drowned what the second moment held before?

For one element this says what undoing the step would cost. It is no gate for whole tensors: where gradients are sparse
some element is always drowned. What decides about a rollback is the bound (``bounds``), which weighs elements.

Shapes: N = elements of one piece.
"""

from __future__ import annotations

import torch

from zo_lightning.drain.adamw import Hyper
from zo_lightning.drain.bounds import UNIT


def spike(exp_avg_sq_N: torch.Tensor, grad_N: torch.Tensor, hyper: Hyper) -> torch.Tensor:
    """The new gradient's part of the second moment, 0 to 1 (N,): near 1 what stood before has drowned in it.

    One step back leaves a relative error of at most ``UNIT * (3 + 1 / (1 - spike))`` in the second moment.

    Args:
        exp_avg_sq_N: after the step.
        grad_N: as the optimizer saw it.
        hyper: of the step.
    """
    return (1 - hyper.betas[1]) * grad_N.square() / exp_avg_sq_N.clamp(min=torch.finfo(torch.float32).tiny)


def is_calm(spike_N: torch.Tensor, tolerance: float) -> bool:
    """Whether a step's undoing keeps every element of the second moment within a relative error.

    What is not a number is not calm.

    Examples:
        >>> is_calm(torch.tensor([0.5, 0.9]), 1e-6), is_calm(torch.tensor([0.5, 0.95]), 1e-6)
        (True, False)
        >>> is_calm(torch.tensor([0.5, torch.nan]), 1e-6)
        False
    """
    return bool((spike_N <= highest_spike(tolerance)).all())


def highest_spike(tolerance: float) -> float:
    """The ``spike`` up to which one step back keeps a relative error.

    Examples:
        >>> round(highest_spike(1e-6), 3), round(highest_spike(1e-5), 4)
        (0.927, 0.9939)
    """
    return 1 - 1 / (tolerance / UNIT - 3)
