"""What a run is made of, built from its configuration in a fixed order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from zo_lightning.cli.errors import PREEMPTED, TERMINATED
from zo_lightning.cli.trainer import build_trainer, num_steps
from zo_lightning.config import instantiate
from zo_lightning.core.method import Method
from zo_lightning.core.roles import Direction
from zo_lightning.core.types import BankSpec, Capabilities, Score
from zo_lightning.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import Logger

    from zo_lightning.callbacks.throughput import Throughput
    from zo_lightning.data import ExampleDataModule
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
