"""The ordinary way: a transformers model in this process, backpropagation and a torch optimizer.

Shapes: R = rows, one for each option of each example; T = tokens of the longest row; V = vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zo_lightning.core.objective import observe
from zo_lightning.core.types import Batch, Score
from zo_lightning.modules.metrics import ScoreMetrics


class GradientModule(LightningModule):
    """Fine-tunes all weights of a model on the loss that zeroth-order runs use, which needs nothing of this project.

    Args:
        model: a causal language model of transformers.
        objective: what is scored.
        num_labels: options of an example, at most.
        optimizer: makes the optimizer from parameter groups; vectors get no weight decay.
        scheduler: makes a learning rate schedule that advances every step.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        objective: Score,
        num_labels: int,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    ) -> None:
        super().__init__()
        self.model = model.requires_grad_(True).train()
        self.objective, self.optimizer, self.scheduler = objective, optimizer, scheduler
        self.scores = nn.ModuleDict({stage: ScoreMetrics(num_labels) for stage in ("val", "test")})

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """The objective's loss, averaged as zeroth-order runs average it."""
        started = time.perf_counter()
        totals, num_tokens = self._logprobs(batch)
        losses, weights = [], []
        for example, total in zip(batch.examples, totals, strict=True):
            lengths = total.new_tensor([len(option) for option in example.options])
            scores = total / lengths
            candidates = self.objective.loss == "candidates"
            losses.append(-(scores.log_softmax(0) if candidates else scores)[example.label])
            weights.append(torch.ones(()) if candidates else lengths[example.label])
        loss_weights = torch.stack(weights).to(totals[0])
        loss = (torch.stack(losses) * loss_weights).sum() / loss_weights.sum()
        size = len(batch.examples)
        self.log("train/loss", loss, prog_bar=True, batch_size=size)
        self.log("train/tokens_per_second", num_tokens / (time.perf_counter() - started), batch_size=1)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch."""
        self._score("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score a batch."""
        self._score("test", batch)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig | Optimizer:
        """Two groups, matrices and vectors, and the schedule by steps."""
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        optimizer = self.optimizer([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}

    def extra_repr(self) -> str:
        """How many parameters are trained."""
        return f"backpropagation through {sum(p.numel() for p in self.model.parameters()):,} parameters"

    def _score(self, stage: str, batch: Batch) -> None:
        totals, num_tokens = self._logprobs(batch)
        logprobs = [total.tolist() for total in totals]
        seen = observe(self.objective, batch.examples, logprobs, tokens=num_tokens, seconds=0.0)
        metrics = cast(ScoreMetrics, self.scores[stage])
        metrics.update(batch.examples, seen)
        size = len(batch.examples)
        self.log(f"{stage}/loss", metrics.loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)
        self.log(f"{stage}/accuracy", metrics.accuracy, on_step=False, on_epoch=True, prog_bar=True, batch_size=size)

    def _logprobs(self, batch: Batch) -> tuple[list[torch.Tensor], int]:
        """For each example the sum of each option's token log-probabilities, and the number of tokens that ran."""
        rows = [(example.prompt + option, len(option)) for example in batch.examples for option in example.options]
        longest = max(len(tokens) for tokens, _ in rows)
        ids_RT = torch.zeros(len(rows), longest, dtype=torch.int64)
        mask_RT = torch.zeros_like(ids_RT)
        option_RT = torch.zeros(len(rows), longest - 1, dtype=torch.bool)
        for row, (tokens, length) in enumerate(rows):
            ids_RT[row, : len(tokens)] = torch.tensor(tokens)
            mask_RT[row, : len(tokens)] = 1
            option_RT[row, len(tokens) - length - 1 : len(tokens) - 1] = True
        ids_RT, mask_RT, option_RT = (tensor.to(self.device) for tensor in (ids_RT, mask_RT, option_RT))
        logits_RTV = self.model(input_ids=ids_RT, attention_mask=mask_RT).logits[:, :-1].float()
        taken_RT = logits_RTV.log_softmax(-1).gather(2, ids_RT[:, 1:, None]).squeeze(2)
        totals_R = (taken_RT * option_RT).sum(1)
        totals = torch.split(totals_R, [len(example.options) for example in batch.examples])
        return list(totals), int(mask_RT.sum())
