"""``python -m zo_lightning.cli.drain_tax experiment=adamw_drill``: what the continuous drain adds to a step.

One run, in which blocks of steps with and without the drain follow each other; what slows the machine slows both.
"""

from __future__ import annotations

import json
import statistics
import time
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig

from zo_lightning.bench.timing import ratio_of_medians
from zo_lightning.cli.errors import reported
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

_PAIRS = 20  # of blocks
register()


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="train")
def main(config: DictConfig) -> None:
    """Train some hundred steps in a folder that is gone afterwards, and print a line of JSON."""
    with reported(), TemporaryDirectory(prefix="drain-tax-") as folder:
        quiet_libraries()
        print(json.dumps(measured(config, folder)))


def measured(config: DictConfig, folder: str) -> dict[str, object]:
    """Seconds a step with the drain over those without, and what the drain moves.

    Args:
        config: of a run by backpropagation with a drain of ``checkpoint.drain.num_shards``.
        folder: for its store.

    Raises:
        ConfigError: if the number of shards is not set.
    """
    shards = config.checkpoint.drain.num_shards
    if shards is None:
        raise ConfigError("`checkpoint.drain.num_shards` is not set: a block of steps is as long as a window")
    config.checkpoint.dirpath, config.trainer.default_root_dir = folder, folder
    config.callbacks, config.trainer.val_check_interval, config.trainer.check_val_every_n_epoch = None, None, None
    config.trainer.limit_val_batches, config.trainer.max_steps = 0, -1
    config.trainer.max_epochs = -1

    from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
    from zo_lightning.cli.first_order import build

    blocks = Blocks(shards, config.get("pairs", _PAIRS))
    session = build(config, [], blocks.callback())
    session.fit(None)
    (kept,) = (c for c in session.trainer.callbacks if isinstance(c, ResilientCheckpoint))  # type: ignore[attr-defined]
    status = kept.status()
    ratio = ratio_of_medians(blocks.seconds[True], blocks.seconds[False])
    return {
        **ratio.facts("step_with_over_without"),
        "callback_over_step": 2 * status["tax"],  # the callback's own time; half of all steps are drained
        "seconds_per_step": statistics.median(blocks.seconds[False]),
        "target": config.checkpoint.drain.target,
        "num_shards": shards,
        "state_bytes_per_drained_step": 2 * status["state_bytes_per_step"],
        "gradient_bytes_per_drained_step": 2 * status["gradient_bytes_per_step"],
        "snapshots": status["saves"],
        "left_out": status["dropped"],
    }


class Blocks:
    """Blocks of steps, drained and not, each of two windows of which the second counts.

    Args:
        shards: steps of a window.
        pairs: of blocks that count.
    """

    def __init__(self, shards: int, pairs: int) -> None:
        self._shards, self._pairs = shards, pairs
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._steps: list[float] = []
        self._ended = 0.0

    def callback(self) -> Callback:
        """What the trainer calls."""
        from lightning.pytorch.callbacks import LambdaCallback

        return LambdaCallback(on_train_batch_end=self._step)

    def _step(self, trainer: Trainer, *_: object) -> None:
        from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
        from zo_lightning.drain.keeper import DrainKeeper

        (kept,) = (c for c in trainer.callbacks if isinstance(c, ResilientCheckpoint))  # type: ignore[attr-defined]
        keeper = kept.keeper
        assert isinstance(keeper, DrainKeeper)
        if keeper.plan is None or not keeper.wait_ready(60):
            return
        now = time.perf_counter()
        self._steps.append(now - self._ended)
        self._ended = now
        if len(self._steps) == 2 * self._shards:
            self.seconds[not keeper.paused].append(statistics.fmean(self._steps[self._shards :]))
            keeper.paused, self._steps = not keeper.paused, []
            trainer.should_stop = len(self.seconds[False]) == self._pairs
            self._ended = time.perf_counter()


if __name__ == "__main__":
    main()
