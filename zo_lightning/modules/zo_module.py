"""The LightningModule of every method: a training step asks the backend, the optimizer commits the answer.

The weights live in the backend, so this module holds one counter and the metrics. Every checkpoint of it stands at the
end of a step: micro-batches of an open accumulation window are not in it, and resuming asks them again.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zo_lightning.core.method import Method
from zo_lightning.core.roles import Backend
from zo_lightning.core.types import BankSpec, Batch, EvalRequest, Layout, Observation, Point, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.errors import ConfigError
from zo_lightning.modules.checkpoint import KEY, check_method, describe
from zo_lightning.modules.metrics import ScoreMetrics
from zo_lightning.optim.zo_optimizer import ZOOptimizer

log = logging.getLogger(__name__)

Answers = tuple[tuple[EvalRequest, ...], tuple[Observation, ...], int]


class ZOModule(LightningModule):
    """Fine-tunes the model of a backend with one method, under automatic optimization and ``strategy="zo"``.

    Args:
        method: direction, query, estimator and update.
        backend: evaluates and commits; the strategy opens it unless it is open already.
        objective: what is scored.
        layout: the frozen base by name and its trainable matrices.
        bank: size and policy of the factor bank.
        seed: seed of all directions.
        num_labels: options of an example, at most.
        scheduler: makes a learning rate schedule that advances every step.
        max_skipped: skipped steps in a row that end the run.
    """

    def __init__(
        self,
        *,
        method: Method,
        backend: Backend,
        objective: Score,
        layout: Layout,
        bank: BankSpec,
        seed: int,
        num_labels: int,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        max_skipped: int = 10,
    ) -> None:
        super().__init__()
        self.method, self.backend, self.objective, self.layout, self.bank = method, backend, objective, layout, bank
        self.seed, self.num_labels, self.scheduler, self.max_skipped = seed, num_labels, scheduler, max_skipped
        self.version = nn.Parameter(torch.zeros((), dtype=torch.int64), requires_grad=False)
        self.scores = nn.ModuleDict({stage: ScoreMetrics(num_labels) for stage in ("val", "test")})
        self._answers: Answers = ((), (), 0)
        self._kept: dict[str, Any] | None = None  # the bank while the backend is closed
        self._step_end: dict[str, Any] | None = None  # loop progress at the end of the last step
        self._step_end_version = -1

    def open_backend(self) -> None:
        """Open the backend for this run and its data, with the factors it had when it was last closed.

        Raises:
            ConfigError: if the backend cannot run the method.
        """
        self.method.check(self.backend.capabilities, self.bank, max_steps=max(self.trainer.max_steps, 0))
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        workloads = data.workloads(self.method.query.max_points) if isinstance(data, ExampleDataModule) else ()
        self.backend.open(self.layout, self.method.direction, self.method.update, self.bank, workloads)
        if self._kept is not None:
            self.backend.load(self._kept)
            self._kept = None

    def close_backend(self, *, keep: bool) -> None:
        """Close the backend; ``keep`` remembers its factors, so that ``fit`` and then ``test`` is one model."""
        try:
            if keep:
                self._kept = self.backend.snapshot()
        finally:
            self.backend.close()

    def take_answers(self) -> Answers:
        """Requests and observations of the last training step and the number of its examples, once."""
        answers, self._answers = self._answers, ((), (), 0)
        return answers

    def setup(self, stage: str) -> None:
        """Forget the loops of an earlier trainer."""
        self._step_end, self._step_end_version = None, -1

    def on_fit_start(self) -> None:
        """Say what is trained and what is not."""
        rank_zero_info(self.extra_repr())

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Ask all requests of the step; micro-batches of one accumulation window search the same directions.

        Nothing is asked for a step that the journal holds: its loss is the recorded one.
        """
        optimizer = cast(ZOOptimizer, self.optimizers(use_pl_optimizer=False))
        if (entry := optimizer.recorded) is not None:
            self._answers = ((), (), len(batch.examples))
            loss = torch.tensor(entry.loss)
            self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.examples))
            return loss
        started = time.perf_counter()
        keys = self.method.direction.keys(seed=self.seed, step=self.trainer.global_step)
        requests = self.method.query.plan(keys, batch.examples, self.backend.version, self.objective)
        observations = self.backend.evaluate(requests)
        while further := self.method.query.follow(requests, observations):
            requests, observations = requests + further, observations + self.backend.evaluate(further)
        seconds = time.perf_counter() - started
        self._answers = (requests, observations, len(batch.examples))
        loss = torch.tensor(math.fsum(o.value for o in observations) / len(observations))
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.examples))
        self.log("train/tokens_per_second", sum(o.tokens for o in observations) / seconds, batch_size=1)
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the estimate before it is clipped: the mean projected gradient over the step's directions."""
        zo = cast(ZOOptimizer, optimizer)
        if zo.estimate.is_finite:
            self.log("train/projected_grad", math.fsum(c for _, c in zo.estimate.terms), batch_size=1)
        self.log("train/skipped", float(zo.num_skipped + (not zo.estimate.is_finite)), batch_size=1)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip projected gradients: ``norm`` (the default) their vector, ``value`` each."""
        if gradient_clip_val:
            cast(ZOOptimizer, optimizer).clip(gradient_clip_val, gradient_clip_algorithm or "norm")

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Remember where the loops stand at the end of a step."""
        if self.backend.version != self._step_end_version:
            self._step_end, self._step_end_version = self.trainer.fit_loop.state_dict(), self.backend.version

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch at the current parameters."""
        self._score("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch at the current parameters."""
        self._score("test", batch)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig | Optimizer:
        """One optimizer, and the schedule by steps."""
        optimizer = ZOOptimizer(
            [self.version],
            lr=self.method.update.lr,
            backend=self.backend,
            direction=self.method.direction,
            estimator=self.method.estimator,
            max_skipped=self.max_skipped,
        )
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the bank, and put the loops back to the end of the last step if one is under way."""
        bank = self.backend.snapshot() if self.backend.is_open else self._kept
        assert bank is not None  # Lightning saves once a run has begun, and `close_backend` keeps what the run learned
        model = {"model": self.layout.model, "model_digest": self.model_digest, "seed": self.seed}
        checkpoint[KEY] = {**model, "method": describe(self.method), "bank": bank}
        if self._step_end is not None and self._step_end_version == bank["version"]:
            checkpoint["loops"]["fit_loop"] = self._step_end

    @functools.cached_property
    def model_digest(self) -> str | None:
        """Digest of the model folder's weights, which names the base to an export; None without a folder."""
        from zo_lightning.models import weights_digest

        folder = Path(self.layout.model)
        return weights_digest(folder) if folder.is_dir() else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the bank.

        Raises:
            ConfigError: if the checkpoint is of another method, seed, layout or bank.
        """
        if KEY not in checkpoint:
            raise ConfigError("`ckpt_path` is not a checkpoint of zo_lightning")
        saved = checkpoint[KEY]
        self.backend.load(
            saved["bank"]
        )  # first: it names `bank.capacity`, from which a cyclic direction's cycle follows
        check_method(saved["method"], self.method)
        if self.trainer.state.fn == "fit" and saved["seed"] != self.seed:
            raise ConfigError(f"the checkpoint was trained with `seed`={saved['seed']}, not {self.seed}: set it so")
        if saved["model"] != self.layout.model:
            rank_zero_warn(f"the checkpoint was trained on {saved['model']}; this run has {self.layout.model}")
        self._step_end, self._step_end_version = checkpoint["loops"]["fit_loop"], self.backend.version
        if self.trainer.state.fn == "fit":
            log.info("going on from step %d", checkpoint["global_step"])

    def extra_repr(self) -> str:
        """The frozen base by name and the size of the bank."""
        numbers = (self.layout.num_rows + self.layout.num_cols) * self.bank.capacity
        return (
            f"frozen base {self.layout.model}: {self.layout.num_parameters:,} parameters; bank of rank "
            f"{self.bank.capacity} ({self.bank.num_slots} slots, {self.bank.policy}) on "
            f"{len(self.layout.matrices)} matrices: {numbers:,} numbers"
        )

    def _score(self, stage: str, batch: Batch) -> None:
        point = Point(version=self.backend.version)
        request = EvalRequest(point=point, examples=batch.examples, objective=self.objective)
        (seen,) = self.backend.evaluate((request,))
        metrics = cast(ScoreMetrics, self.scores[stage])
        metrics.update(batch.examples, seen)
        size = len(batch.examples)
        self.log(f"{stage}/loss", metrics.loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)
        self.log(f"{stage}/accuracy", metrics.accuracy, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)
