"""Lightning callbacks that change torch parameters: here they would change a counter and say nothing."""

from __future__ import annotations

from collections.abc import Iterable

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)

from zo_lightning.errors import ConfigError

_NO_WEIGHTS = "the module holds no weights, only the version counter: they are the backend's"
_REFUSED: dict[type[Callback], str] = {
    StochasticWeightAveraging: f"{_NO_WEIGHTS}. Let `scheduler` lower the learning rate instead",
    WeightAveraging: f"{_NO_WEIGHTS}. Let `scheduler` lower the learning rate instead",
    ModelPruning: _NO_WEIGHTS,
    BaseFinetuning: _NO_WEIGHTS,
    LearningRateFinder: "losses of a few noisy steps name no learning rate. Compare some: `-m update.lr=1e-6,1e-5`",
    BatchSizeFinder: "the backend makes its own batches and never runs out of memory: set `data.batch_size`",
}


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks that would silently do something else than they promise.

    Raises:
        ConfigError: with the callback's name and what to do instead.
    """
    for callback in callbacks:
        for refused, reason in _REFUSED.items():
            if isinstance(callback, refused):
                raise ConfigError(f"`callbacks`: {type(callback).__name__} cannot work here: {reason}")
