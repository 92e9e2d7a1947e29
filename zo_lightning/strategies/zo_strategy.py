"""``Trainer(strategy="zo")``: one process."""

from __future__ import annotations

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry

from zo_lightning.strategies.base import ZOStrategyBase


class ZOStrategy(ZOStrategyBase, SingleDeviceStrategy):
    """One process, on the CPU: the backend owns the accelerator."""

    strategy_name = "zo"

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__("cpu", accelerator, checkpoint_io, precision_plugin)


StrategyRegistry.register(ZOStrategy.strategy_name, ZOStrategy, description=ZOStrategy.__doc__, override=True)
