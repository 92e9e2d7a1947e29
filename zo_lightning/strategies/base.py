"""What the strategies share: Lightning's seam to a backend that evaluates and holds the weights."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.accelerators import Accelerator, CPUAccelerator
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.optim import Optimizer

from zo_lightning.errors import ConfigError, EngineError
from zo_lightning.modules.zo_module import ZOModule
from zo_lightning.optim.zo_optimizer import ZOOptimizer
from zo_lightning.strategies.checkpoint_io import RunCheckpointIO
from zo_lightning.strategies.refused import check_callbacks


class ZOStrategyBase(Strategy):
    """Comes before one of Lightning's strategies, which says how many processes there are.

    It leases the module's backend if that is open, and otherwise opens it for the run and closes it afterwards.

    Raises:
        ConfigError: at the start of a run, for another module than ``ZOModule``, another precision than 32-true, or a
            callback that changes torch parameters.
    """

    _owns_backend = False
    _engine_died = False

    @property
    def accelerator(self) -> Accelerator | None:
        """The CPU, whatever Lightning finds: its ``auto`` would take the engine's GPU."""
        return self._accelerator

    @accelerator.setter
    def accelerator(self, accelerator: Accelerator) -> None:
        self._accelerator = CPUAccelerator()

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """A plug-in's, or one that never leaves half a file."""
        if self._checkpoint_io is None:
            self._checkpoint_io = RunCheckpointIO()
        return super().checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    def setup_environment(self) -> None:
        """Check the precision and the callbacks, then open the backend unless its owner has."""
        super().setup_environment()
        self.check_precision()
        check_callbacks(self._module.trainer.callbacks)  # type: ignore[attr-defined]
        self._engine_died = False
        self.attach(self._module)
        if not self._module.backend.is_open:
            self._owns_backend = True
            self._module.open_backend()

    def check_precision(self) -> None:
        """Raise ``ConfigError`` for another precision than 32-true."""
        if self.precision_plugin.precision != "32-true":
            raise ConfigError(
                f"`trainer.precision`={self.precision_plugin.precision} would cast the counters of the run, not the "
                "model: leave it at 32-true and set `backend.dtype`"
            )

    def attach(self, module: ZOModule) -> None:
        """Prepare the module's backend for this strategy's processes; here there is one. Idempotent."""

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Batches hold token ids for the backend: they pass through."""
        return batch

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Hand the observations of this micro-batch to the optimizer's window: there is nothing to differentiate."""
        assert isinstance(optimizer, ZOOptimizer)
        self.pre_backward(closure_loss)
        closure_loss = self.precision_plugin.pre_backward(closure_loss, self._module)
        optimizer.collect(*self._module.take_answers())
        closure_loss = self.precision_plugin.post_backward(closure_loss, self._module)
        self.post_backward(closure_loss)
        return closure_loss

    def on_exception(self, exception: BaseException) -> None:
        """A dead engine has no factors to keep."""
        self._engine_died = isinstance(exception, EngineError)

    def teardown(self) -> None:
        """Close the backend if this strategy opened it."""
        if self._owns_backend:
            self._owns_backend = False
            self._module.close_backend(keep=self._module.backend.is_open and not self._engine_died)
        super().teardown()

    @property
    def _module(self) -> ZOModule:
        if not isinstance(self.lightning_module, ZOModule):
            raise ConfigError(f"strategy=zo trains a ZOModule, not {type(self.lightning_module).__name__}")
        return self.lightning_module
