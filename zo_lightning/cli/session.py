"""What a run is made of, built from its configuration in a fixed order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from zo_lightning.cli.errors import PREEMPTED, TERMINATED
from zo_lightning.cli.loggers import build_loggers
from zo_lightning.config import instantiate
from zo_lightning.core.method import Method
from zo_lightning.core.roles import Direction
from zo_lightning.core.types import BankSpec, Capabilities, Score
from zo_lightning.errors import ConfigError
from zo_lightning.supervisor import heartbeat

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import Logger

    from zo_lightning.callbacks.throughput import Throughput
    from zo_lightning.data import ExampleDataModule
    from zo_lightning.failure import Failures
    from zo_lightning.models.prepare import PreparedModel
    from zo_lightning.modules import ZOModule
    from zo_lightning.tasks.encoding import TaskData

log = logging.getLogger(__name__)

# The bank's columns when nobody asks for a number. On GPU and in half precision each costs time in every step; on CPU
# in float32 only those of the stages at hand do.
_DEFAULT_COLUMNS = 64


@dataclass(slots=True)
class Session:
    """Module, data and trainer of one run; the module holds the backend, not yet open."""

    module: ZOModule
    data: ExampleDataModule
    trainer: Trainer
    throughput: Throughput
    num_truncated: int

    def describe(self) -> str:
        """What is trained, and on how many examples."""
        sizes = ", ".join(f"{len(getattr(self.data, name)):,} {name}" for name in ("train", "dev", "test"))
        return f"{self.module.extra_repr()}\nexamples: {sizes}"

    @contextmanager
    def engine(self) -> Iterator[None]:
        """The backend, open: one engine serves every test and fit of the run."""
        module = self.module
        log.info("starting %s", type(module.backend).__name__)
        self.trainer.strategy.attach(module)  # type: ignore[attr-defined]
        try:
            workloads = self.data.workloads(module.method.query.max_points)
            module.backend.open(module.layout, module.method.direction, module.method.update, module.bank, workloads)
            yield
        finally:
            module.backend.close()

    def warm_up(self) -> None:
        """Ask one step's requests of the base, which changes nothing: what is made at a first use is made."""
        module, examples = self.module, self.data.train[: self.data.batch_size]
        keys = module.method.direction.keys(seed=module.seed, step=0)
        module.backend.evaluate(module.method.query.plan(keys, examples, module.backend.version, module.objective))

    def fit(self, checkpoint: Path | None) -> None:
        """Train, from a checkpoint if there is one.

        Raises:
            ConfigError: for a setting that Lightning refuses.
            KeyboardInterrupt: after Ctrl-C, once the checkpoint is written.
            SystemExit: after SIGTERM and SIGUSR1, likewise.
        """
        from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
        from zo_lightning.cli.lightning_errors import misconfigurations_named

        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ResilientCheckpoint):
                checkpoint = callback.restorable(checkpoint)
        with misconfigurations_named(), self._interruptible():
            self.trainer.fit(self.module, datamodule=self.data, ckpt_path=checkpoint, weights_only=True)

    def test(self, checkpoint: Path | None = None, *, logged: bool = True) -> dict[str, float]:
        """Metrics of the test split at the current parameters or a checkpoint's, for the loggers too or not."""
        with self._interruptible(), nullcontext() if logged else self._unlogged():
            self.trainer.test(self.module, self.data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        return {name: float(self.trainer.callback_metrics[name]) for name in ("test/loss", "test/accuracy")}

    @property
    def num_scored(self) -> int:
        """Test examples that the last test scored: ``trainer.limit_test_batches`` may leave some out."""
        batches = sum(int(count) for count in self.trainer.num_test_batches)
        return min(len(self.data.test), batches * self.data.eval_batch_size)

    @contextmanager
    def _unlogged(self) -> Iterator[None]:
        loggers, self.trainer.loggers = self.trainer.loggers, []
        try:
            yield
        finally:
            self.trainer.loggers = loggers

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        from zo_lightning.callbacks.interrupt_checkpoint import Preempted

        # Lightning ends an interrupted run with exit code 1 and a terminated one with 0: neither says what happened.
        try:
            yield
        except SystemExit as end:
            if not self.trainer.interrupted:
                raise
            if isinstance(end.__context__, Preempted):
                raise SystemExit(PREEMPTED) from None
            if not self.trainer.received_sigterm:
                raise KeyboardInterrupt from None
        if self.trainer.received_sigterm:  # even in the last batch, after which Lightning forgets it
            raise SystemExit(TERMINATED)


def build(config: DictConfig, loggers: Sequence[Logger] | None = None) -> Session:
    """Check the configuration, then get model and data: cheap errors first, nothing is opened.

    Args:
        config: the run's.
        loggers: instead of the configured ones.

    Raises:
        ConfigError: for a configuration that cannot run.
        DataError: for a model or data that cannot be had.
    """
    backend = instantiate(config.backend)
    import torch

    method, bank = build_method(config, backend.capabilities)
    scheduler = instantiate(config.scheduler) if config.scheduler else None
    if scheduler is not None:
        scheduler(torch.optim.SGD([torch.zeros(1)], lr=1.0))  # so that a wrong setting shows now

    from zo_lightning.callbacks.throughput import Throughput
    from zo_lightning.modules import ZOModule

    throughput = Throughput()
    trainer = build_trainer(config, throughput, loggers=loggers)
    model, examples, data = load_data(config)
    module = ZOModule(
        method=method,
        backend=backend,
        objective=Score(loss=config.objective.loss.value),
        layout=model.layout,
        bank=bank,
        seed=config.seed,
        num_labels=examples.num_labels,
        scheduler=scheduler,
        max_skipped=config.max_skipped,
    )
    return Session(module, data, trainer, throughput, examples.num_truncated)


def load_data(config: DictConfig) -> tuple[PreparedModel, TaskData, ExampleDataModule]:
    """The model's folder, the task's examples for it, and their loaders; the task's texts are read first.

    Raises:
        ConfigError: for a batch size that cannot be.
        DataError: for a model or data that cannot be had.
    """
    from zo_lightning.data import ExampleDataModule, check_batch_sizes
    from zo_lightning.models import load_tokenizer

    check_batch_sizes(**config.data)
    texts = instantiate(config.task).texts()
    model = prepared_model(config)
    examples = texts.encode(load_tokenizer(model.folder), max_length=max_length(config, model))
    data = ExampleDataModule(
        train=examples.train, dev=examples.dev, test=examples.test, seed=config.seed, **config.data
    )
    return model, examples, data


def prepared_model(config: DictConfig) -> PreparedModel:
    """The model's folder on this machine, made or fetched where it is not there yet."""
    from zo_lightning.models import prepare_model

    keys = ("name", "path", "source", "revision", "max_length", "cache_dir")
    return prepare_model(**{key: config.model[key] for key in keys}, trainable=config.model.trainable.value)


def max_length(config: DictConfig, model: PreparedModel) -> int:
    """Tokens that an example may have: as many as the model takes, or fewer by the backend's own limit."""
    return min(model.max_length, config.backend.get("max_length") or model.max_length)


def build_method(config: DictConfig, capabilities: Capabilities) -> tuple[Method, BankSpec]:
    """The four roles and the bank, checked against each other and the backend."""
    if config.model.trainable.value == "all" and "vectors" not in capabilities.provides:
        raise ConfigError(
            "`model.trainable=all` changes norms, biases and embeddings, which this `backend` cannot: set "
            "`backend=packed` or `backend=dense`, or leave `model.trainable=linear`"
        )
    direction = instantiate(config.direction)
    bank = bank_spec(config, direction, capabilities)
    method = Method(
        direction=replace(direction, cycle=bank.num_slots) if bank.policy == "cyclic" else direction,
        query=instantiate(config.query),
        estimator=instantiate(config.estimator),
        update=instantiate(config["update"]),  # config.update is a method of DictConfig
    )
    method.check(capabilities, bank, max_steps=max(num_steps(config), 0))
    return method, bank


def bank_spec(config: DictConfig, direction: Direction, capabilities: Capabilities) -> BankSpec:
    """The bank's size: as asked, or every stage of the run up to a limit."""
    rank, policy = direction.rank, config.bank.policy.value
    capacity = config.bank.capacity
    if capacity is None:
        probes = rank if capabilities.probe_columns else 0
        stages = -(-num_steps(config) // direction.refresh_every)
        limit = max((min(_DEFAULT_COLUMNS, capabilities.max_rank) - probes) // rank, 1)
        capacity = rank * (min(stages, limit) if num_steps(config) > 0 else limit)
    return BankSpec(rank=rank, capacity=capacity, policy=policy)


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
