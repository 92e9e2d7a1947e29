"""The ranks of a data-parallel run: one process each, the first is the one that the user started.

The others get the run's resolved configuration from it, do the same and write nothing but a log. ``torchrun`` may start
all of them; then the first one does what the user asked and the others follow it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.errors import reported
from zo_lightning.cli.processes import end_with_the_first_rank, started
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from zo_lightning.backends.ranks import Ranks

Job = Literal["train", "test"]
_GPUS, _PROCESSOR = "zo_ddp", "zo_ddp_sim"  # what the ranks of each strategy share out


def is_follower() -> bool:
    """Whether ``torchrun`` started this process as another rank than the first."""
    return _is_given() and os.environ["RANK"] != "0"


def _is_given() -> bool:
    return {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def check_ranks(config: DictConfig, *, sweep: bool) -> None:
    """Refuse what cannot be launched.

    Raises:
        ConfigError: with the way out.
    """
    given = int(os.environ["WORLD_SIZE"]) if _is_given() else 0
    if given and sweep:
        raise ConfigError("torchrun starts the ranks of one run, not of a sweep: without it, `-m` starts those of each")
    if given > 1 and given != num_ranks(config):
        raise ConfigError(
            f"torchrun started {given} ranks, the configuration asks for {num_ranks(config)}: set `trainer=ddp` with "
            "`trainer.devices` and `trainer.num_nodes`"
        )
    if not given and num_ranks(config) > 1 and _num_nodes(config) > 1:
        raise ConfigError(
            f"`trainer.num_nodes`={_num_nodes(config)}: start the ranks of several machines with torchrun"
        )


def num_ranks(config: DictConfig) -> int:
    """Processes of the run."""
    if config.trainer.strategy not in (_GPUS, _PROCESSOR):
        return 1
    return int(config.trainer.devices) * _num_nodes(config)


def _num_nodes(config: DictConfig) -> int:
    return int(config.trainer.get("num_nodes") or 1)


@contextmanager
def all_ranks(config: DictConfig, checkpoint: Path | None, job: Job) -> Iterator[None]:
    """The other ranks of a run do ``job`` while the block runs in this one; at its end they are gone.

    Args:
        config: the run's.
        checkpoint: where the run goes on from.
        job: what they do.

    Raises:
        ConfigError: if there are fewer GPUs than ranks.
        RankError: if a rank fails.
    """
    if num_ranks(config) == 1:
        yield
        return
    if config.trainer.strategy == _GPUS:
        _gpus(config)  # before anything starts
    with ExitStack() as stack:
        if not _is_given():
            stack.enter_context(started(num_ranks(config), Path(config.paths.output_dir)))
        stack.enter_context(_own_share(config))  # after the others have started, which would inherit it
        ranks = _connected()
        resolved = config.copy()
        OmegaConf.resolve(resolved)
        ranks.gather("run", (resolved, checkpoint, job))
        with ranks.telling():
            yield


def follow() -> None:
    """Be one of the other ranks: do what the first one does."""
    from zo_lightning.cli.terminal import quiet_libraries

    quiet_libraries()
    from zo_lightning.cli.session import build
    from zo_lightning.cli.train import Base, measured

    ranks = _connected()
    with reported(), ranks.telling():
        config, checkpoint, job = ranks.gather("run", None)[0]
        with _own_share(config):
            session = build(config)
            with session.engine():
                if job == "train":
                    measured(session, Base.of(session), checkpoint, config.optimized_metric)
                else:
                    session.test(checkpoint)


@contextmanager
def _own_share(config: DictConfig) -> Iterator[None]:
    local_rank, size = int(os.environ["LOCAL_RANK"]), int(config.trainer.devices)
    if config.trainer.strategy == _GPUS:
        gpus, per_rank = _gpus(config), _gpus_per_rank(config)
        if local_rank:  # the first rank takes the first ones anyway, and its CUDA may have started
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[local_rank * per_rank :][:per_rank])
        yield
    elif hasattr(os, "sched_setaffinity"):
        with _cores(local_rank, size):
            yield
    else:
        yield


def _gpus_per_rank(config: DictConfig) -> int:
    return int((config.backend.get("engine") or {}).get("tensor_parallel_size", 1))


def _gpus(config: DictConfig) -> list[str]:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus, wanted = visible.split(",") if visible else [], int(config.trainer.devices) * _gpus_per_rank(config)
    if len(gpus) < wanted:
        raise ConfigError(
            f"`trainer=ddp` needs {wanted} GPUs for `trainer.devices`={config.trainer.devices}, there are {len(gpus)}: "
            "lower it, or try `trainer=ddp_sim`, which runs on the processor"
        )
    return gpus


@contextmanager
def _cores(local_rank: int, size: int) -> Iterator[None]:
    """Threads of two engines on one core would wait for each other."""
    import torch

    from zo_lightning.backends.shares import share_of_cores

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    own = share_of_cores(tuple(sorted(cores)), local_rank, size)
    os.sched_setaffinity(0, own)
    torch.set_num_threads(min(threads, len(own)))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def _connected() -> Ranks:
    from zo_lightning.backends.ranks import connect

    value = os.environ
    return connect(int(value["RANK"]), int(value["WORLD_SIZE"]), value["MASTER_ADDR"], int(value["MASTER_PORT"]))


if __name__ == "__main__":
    end_with_the_first_rank()
    follow()
