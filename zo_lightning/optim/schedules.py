"""Learning rate schedules that torch does not have ready-made."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from zo_lightning.errors import ConfigError


def hold_then_decay(optimizer: Optimizer, *, num_steps: int | None, hold: float = 0.7, final: float = 0.1) -> LambdaLR:
    """Keep the learning rate for a share of the run, then let it fall linearly.

    A zeroth-order estimate is noisy: a rate that makes progress early leaves the loss unsettled, so it must fall
    before the end. A run that goes on with more steps follows the schedule of its new length.

    Args:
        optimizer: whose rate changes.
        num_steps: length of the run.
        hold: share of the run at the full rate, below 1; 0 falls from the start.
        final: share of the rate that the last step approaches.

    Raises:
        ConfigError: without a number of steps, or with a share outside its range.

    Examples:
        >>> import torch
        >>> scheduler = hold_then_decay(torch.optim.SGD([torch.zeros(1)], lr=1.0), num_steps=10)
        >>> [round(scheduler.lr_lambdas[0](step), 2) for step in (0, 7, 8, 10, 11)]
        [1.0, 1.0, 0.7, 0.1, 0.1]
    """
    if num_steps is None or num_steps < 1:
        raise ConfigError("a falling learning rate needs `trainer.max_steps`: set it, or `scheduler=constant`")
    if not 0 <= hold < 1:
        raise ConfigError(f"`scheduler.hold` must be at least 0 and below 1, not {hold}")

    def share(step: int) -> float:
        remaining = max(1.0 - step / num_steps, 0.0) / (1.0 - hold)
        return min(1.0, final + (1.0 - final) * remaining)

    return LambdaLR(optimizer, share)
