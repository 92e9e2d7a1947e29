"""A run by backpropagation (``training=adamw``): the same data, trainer and folder, and no inference engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig

from zo_lightning.checkpoint.places import CHECKPOINT, STORE
from zo_lightning.cli.folder import newest_checkpoint, write_text
from zo_lightning.config import instantiate
from zo_lightning.core.types import Score

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

    from zo_lightning.cli.session import Session

log = logging.getLogger(__name__)


def train_by_gradients(
    config: DictConfig, output: Path, checkpoint: Path | None, loggers: list[Logger]
) -> float | None:
    """Train, test before and after, write ``results.json`` and say what was kept; returns ``optimized_metric``."""
    session = build(config, loggers)
    log.info("%s", session.describe())
    if checkpoint in (None, output / CHECKPOINT) and (output / STORE).is_dir():  # a newer snapshot may be on its way
        from zo_lightning.drain.restore import settle

        settle(output / STORE)
        checkpoint = newest_checkpoint(output)
    before = session.test(logged=False) if checkpoint is None else {}
    mirrors = (config.checkpoint or {}).get("mirrors") or ()
    session.fit(newest(checkpoint, mirrors))
    metrics = {name: float(value) for name, value in session.trainer.callback_metrics.items()}
    kept = _status(session)  # before the test, which sets the callbacks up anew
    after = session.test()
    metrics |= after
    results: dict[str, Any] = {
        "steps": session.trainer.global_step,
        "before": before,
        "after": after,
        "seconds_per_step": session.throughput.seconds_per_step,
        "tokens_per_second": session.throughput.tokens_per_second,
        "checkpoint": kept,
    }
    if checkpoint is not None and not session.throughput.seconds_per_step:
        log.warning(
            "no step was left to train: the run is at step %d already, see `trainer.max_steps`", results["steps"]
        )
    results |= _kept(output / "results.json", trained=bool(session.throughput.seconds_per_step))
    write_text(output / "results.json", json.dumps(results, indent=2) + "\n")
    for name, value in _flat(results):
        print(f"{name}: {value:,.6g}")
    print(f"written to {output}")
    return metrics.get(config.optimized_metric)


def _kept(file: Path, *, trained: bool) -> dict[str, Any]:
    """What earlier results of a run that goes on tell and these cannot."""
    earlier = json.loads(file.read_text()) if file.is_file() else {}
    names = ("before",) if trained else ("before", "seconds_per_step", "tokens_per_second", "checkpoint")
    return {name: earlier[name] for name in names if name in earlier}


def newest(checkpoint: Path | None, mirrors: Sequence[str] = ()) -> Path | None:
    """The file to go on from: of a run's store and its last checkpoint, whichever is further and whole.

    Raises:
        DrainError: if another process is still saving into the store.
        StoreError: if neither is whole.
    """
    if checkpoint is None or checkpoint.is_file():
        return checkpoint
    import torch

    from zo_lightning.checkpoint.store import StoreError
    from zo_lightning.drain.restore import restore
    from zo_lightning.strategies.checkpoint_io import check_file

    def step(path: Path) -> int:
        return int(torch.load(path, weights_only=True, mmap=True)["global_step"])

    last, whole, problems = checkpoint.with_name(CHECKPOINT.name), [], []
    try:
        whole.append(restore(checkpoint, mirrors=mirrors))
    except StoreError as error:
        problems.append(str(error))
    if last.is_file():
        try:
            check_file(last)
            whole.append(last)
        except StoreError as error:
            problems.append(str(error))
    if not whole:
        raise StoreError(f"nothing to go on from is whole: {'; '.join(problems)}")
    newest = max(whole, key=step)
    for problem in problems:
        log.warning("%s. The run goes on from %s, step %d", problem, newest, step(newest))
    return newest


def build(config: DictConfig, loggers: list[Logger], *callbacks: Callback) -> Session:
    """Check the configuration, then get model and data: cheap errors first.

    Raises:
        ConfigError: for a configuration that cannot run.
        DataError: for a model or data that cannot be had.
    """
    optimizer = instantiate(config.training.optimizer)
    scheduler = instantiate(config.scheduler) if config.scheduler else None

    import torch

    from zo_lightning.callbacks.throughput import Throughput
    from zo_lightning.cli.session import Session, load_data
    from zo_lightning.cli.trainer import new_trainer
    from zo_lightning.models import load_model
    from zo_lightning.modules import GradientModule
    from zo_lightning.strategies.checkpoint_io import RunCheckpointIO

    throughput = Throughput()
    trainer = new_trainer(config, throughput, *callbacks, loggers=loggers)
    trainer.strategy.checkpoint_io = RunCheckpointIO()
    model, examples, data = load_data(config)
    module = GradientModule(
        model=load_model(model.folder, dtype="float32", device=torch.device("cpu")),
        objective=Score(loss=config.objective.loss.value),
        num_labels=examples.num_labels,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    return Session(cast(Any, module), data, trainer, throughput, examples.num_truncated)


def _status(session: Session) -> dict[str, float]:
    from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint

    kept = [callback for callback in session.trainer.callbacks if isinstance(callback, ResilientCheckpoint)]  # type: ignore[attr-defined]
    return kept[0].status() if kept else {}


def _flat(results: dict[str, Any]) -> list[tuple[str, float]]:
    flat: list[tuple[str, float]] = []
    for name, value in results.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        flat += [(f"{name} {key}".strip(), number) for key, number in inner]
    return flat
