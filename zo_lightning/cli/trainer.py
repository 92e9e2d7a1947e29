"""Lightning's trainer for a run: its callbacks, what keeps it, and what is to go wrong in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from zo_lightning.cli.loggers import build_loggers
from zo_lightning.config import instantiate
from zo_lightning.errors import ConfigError
from zo_lightning.supervisor import heartbeat

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import Logger

    from zo_lightning.failure import Failures


def build_failures(config: DictConfig) -> Failures | None:
    """What is to go wrong in the run; None for nothing, and on ranks other than the first."""
    if not config.failure or os.environ.get("RANK", "0") != "0":
        return None
    from zo_lightning.failure import Failures

    failures = Failures([instantiate(node) for node in config.failure.values()], Path(config.paths.output_dir))
    if config.training.kind.value == "adamw":
        _check_without_engine(failures)
    return failures


def _check_without_engine(failures: Failures) -> None:
    engine = [fault.name for fault in failures.of_process if fault.needs_engine]
    if engine:
        raise ConfigError(f"`failure={engine[0]}` strikes at an engine, which `training=adamw` has not: leave it out")
    if failures.of_files:
        name = failures.of_files[0].name
        key = f"failure.{name}.byte" if name == "kill" else f"failure={name}"
        raise ConfigError(
            f"`{key}` strikes at what this process writes; with `training=adamw` another process writes: leave it out"
        )


def build_checkpoint(config: DictConfig, failures: Failures | None) -> Callback:
    """What keeps the run, on disks that fail as ``failure`` says."""
    from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
    from zo_lightning.failure import files_for

    checkpoint: Callback = instantiate(config.checkpoint)
    if failures is not None and failures.of_files:
        if not isinstance(checkpoint, ResilientCheckpoint):
            name = failures.of_files[0].name
            raise ConfigError(f"`failure={name}` strikes at journal and snapshots: it needs `checkpoint=resilient`")
        checkpoint.files = files_for(failures)
    return checkpoint


def num_steps(config: DictConfig) -> int:
    """Steps of the run; -1 where something else ends it."""
    return -1 if config.trainer.max_steps is None else int(config.trainer.max_steps)


def build_trainer(config: DictConfig, *callbacks: Callback, loggers: Sequence[Logger] | None = None) -> Trainer:
    """A trainer of zeroth-order steps: ``new_trainer``, checked."""
    from zo_lightning.strategies import ZOStrategyBase
    from zo_lightning.strategies.refused import check_callbacks

    trainer = new_trainer(config, *callbacks, loggers=loggers)
    if not isinstance(trainer.strategy, ZOStrategyBase):
        raise ConfigError(
            f"`trainer.strategy`={config.trainer.strategy} cannot run these steps: leave it at zo, or zo_ddp for "
            "several ranks"
        )
    trainer.strategy.check_precision()
    check_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
    return trainer


def new_trainer(config: DictConfig, *callbacks: Callback, loggers: Sequence[Logger] | None = None) -> Trainer:
    """Lightning's trainer with the configured callbacks, further ones, and the given or configured loggers."""
    from lightning.pytorch import seed_everything
    from lightning.pytorch.callbacks import Checkpoint

    from zo_lightning.callbacks.bank_summary import BankSummary
    from zo_lightning.callbacks.failure_injection import FailureInjection
    from zo_lightning.callbacks.heartbeats import Heartbeats
    from zo_lightning.cli.lightning_errors import misconfigurations_named

    seed_everything(config.seed, workers=True, verbose=False)
    beats = [Heartbeats(heartbeat())] if heartbeat().is_supervised else []
    failures = build_failures(config)
    injection = [FailureInjection(failures)] if failures else []
    summary = [BankSummary()] if config.trainer.enable_model_summary else []
    nodes = [node for node in (config.callbacks or {}).values() if node]
    keeping = [build_checkpoint(config, failures)] if config.checkpoint else []
    all_callbacks = [*beats, *keeping, *map(instantiate, nodes), *callbacks, *summary, *injection]
    saves = any(isinstance(callback, Checkpoint) for callback in all_callbacks)
    with misconfigurations_named():
        trainer: Trainer = instantiate(
            config.trainer,
            max_steps=num_steps(config),
            callbacks=all_callbacks,
            enable_checkpointing=saves,  # else Lightning adds one of its own
            logger=list(build_loggers(config) if loggers is None else loggers) or False,
        )
    return trainer
