"""``Trainer(strategy="zo_ddp", devices=2)``: data parallel, an engine for each rank.

All ranks iterate the same global batches and evaluate a share of each; only observations travel. Batches, estimates,
records, metrics and logs are then the same on every rank, so there is no gradient to reduce, no sampler to replace and
no metric to average.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zo_lightning.backends.ranks import Ranks, connect
from zo_lightning.backends.sharded import ShardedBackend
from zo_lightning.modules.zo_module import ZOModule
from zo_lightning.strategies.base import ZOStrategyBase


class ZODDPStrategy(ZOStrategyBase, ParallelStrategy):
    """Several processes with the same batches; each one's backend answers for its share.

    It derives from ``ParallelStrategy``: of ``DDPStrategy`` nothing would be left, since a group of torch's own would
    collide with an engine's, and the wrapped model and the distributed sampler are not wanted.
    """

    strategy_name = "zo_ddp"

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        self.num_nodes = 1  # Lightning sets it

    @property
    def root_device(self) -> torch.device:
        """The CPU: the backend owns the accelerator."""
        return torch.device("cpu")

    @property
    def num_processes(self) -> int:
        """Ranks on this node."""
        return len(self.parallel_devices or ())

    def set_world_ranks(self) -> None:
        """Tell Lightning which rank this process is; Lightning calls it while the trainer is made."""
        environment = self._environment
        environment.set_global_rank(self.node_rank * self.num_processes + self.local_rank)
        environment.set_world_size(self.num_nodes * self.num_processes)
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    def attach(self, module: ZOModule) -> None:
        """Join the other ranks; the module's backend then answers for all of them."""
        if not isinstance(module.backend, ShardedBackend):
            module.backend = ShardedBackend(module.backend, self.ranks)

    @property
    def ranks(self) -> Ranks:
        """All ranks, joined."""
        environment = self._environment
        return connect(self.global_rank, self.world_size, environment.main_address, environment.main_port)

    def on_train_end(self) -> None:
        """Check that every rank ends with the same factors.

        Raises:
            RankError: if they differ.
        """
        assert isinstance(self._module.backend, ShardedBackend)
        self._module.backend.check_factors()

    def on_exception(self, exception: BaseException) -> None:
        """The other ranks must not wait for this one."""
        super().on_exception(exception)
        if isinstance(self._module.backend, ShardedBackend):
            self._module.backend.ranks.fail(exception)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks, but not on the way out of an error: the others may be elsewhere."""
        if sys.exc_info()[1] is None:
            self.ranks.gather(f"barrier {name}", None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of one rank."""
        return self.ranks.gather("broadcast", obj)[src]

    def all_gather(self, tensor: torch.Tensor, group: Any | None = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all ranks, stacked."""
        values = self.ranks.gather("all_gather", tensor.tolist())
        return torch.stack([torch.tensor(value, dtype=tensor.dtype) for value in values])

    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        """Sum or mean over the ranks; what is no tensor passes through."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        gathered = self.all_gather(tensor)
        return gathered.double().mean(0) if reduce_op in ("mean", "avg") else gathered.sum(0)

    def model_to_device(self) -> None:
        """The module holds counters, on the CPU already."""

    def _configure_launcher(self) -> None:
        self._launcher = _SubprocessScriptLauncher(self._environment, self.num_processes, self.num_nodes)

    @property
    def _environment(self) -> ClusterEnvironment:
        assert self.cluster_environment is not None
        return self.cluster_environment


for name in (ZODDPStrategy.strategy_name, "zo_ddp_sim"):  # the command line shares out devices by this name
    StrategyRegistry.register(name, ZODDPStrategy, description=ZODDPStrategy.__doc__, override=True)
