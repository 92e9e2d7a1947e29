"""A short run whose checkpoint is exported: what its engine answers at the end is what an export must answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

import zo_lightning.strategies  # noqa: F401  registers "zo"
from tests.backends import prepared
from tests.examples import mixed_examples
from zo_lightning.backends.dense import DenseBackend
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, EvalRequest, Example, Point, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.export import Learned, read_checkpoint, write_adapter, write_merged
from zo_lightning.models import trainable_layout
from zo_lightning.modules import ZOModule
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

Scores = Sequence[Sequence[float]]

_REFRESH_EVERY = 2


class Trained:
    """A run of two large steps a stage, which change the weights by about a fifth of their norm.

    Steps twenty times as large would make a model whose float32 answers are 1e-4 from its float64 ones.

    Args:
        folder: gets the checkpoint and, by ``adapter`` and ``merged``, the exports.
        model: a tiny model.
        path: a model folder in its place.
        rank: columns of a slot.
        slots: of the bank.
        stages: of the run; as many as there are slots, if nothing else is asked.
        policy: of a full bank.
        backend: an open one; otherwise a dense one.
        trainable: which parameters.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str = "tiny-llama",
        path: Path | None = None,
        rank: int = 2,
        slots: int = 3,
        stages: int | None = None,
        policy: str = "cyclic",
        backend: Any = None,
        trainable: str = "linear",
    ) -> None:
        found = prepared(model)
        self.folder, self.model = folder, path or found.folder
        self.layout, self.examples = trainable_layout(self.model, trainable), mixed_examples(found.folder)
        cycle = slots if policy == "cyclic" else None
        self.method = Method(
            direction=LowRank(rank=rank, refresh_every=_REFRESH_EVERY, cycle=cycle, scale="1/sqrt(r)"),
            query=Antithetic(eps=1e-3),
            estimator=Spsa(),
            update=Sgd(lr=5e-4),
        )
        self.bank = BankSpec(rank=rank, capacity=rank * slots, policy=policy)  # type: ignore[arg-type]
        self.backend = backend or DenseBackend(dtype="float32", device="cpu")
        if not self.backend.is_open:
            self.backend.open(self.layout, self.method.direction, self.method.update, self.bank)
        self.checkpoint = folder / "trained.ckpt"
        self._train(_REFRESH_EVERY * (slots if stages is None else stages))
        point = Point(version=self.backend.version)
        (seen,) = self.backend.evaluate([EvalRequest(point=point, examples=self.examples, objective=Score())])
        self.scores: Scores = seen.scores

    def learned(self, **changes: Any) -> Learned:
        """The checkpoint, read as an export does."""
        settings = {"name": str(self.model), "revision": None, "layout": self.layout, "method": self.method}
        return read_checkpoint(self.checkpoint, **(settings | changes))

    def adapter(self) -> Path:
        """The folder of the exported adapter."""
        out = self.folder / "adapter"
        out.mkdir()
        write_adapter(out, self.learned())
        return out

    def merged(self) -> Path:
        """The folder of the exported merged model."""
        out = self.folder / "merged"
        out.mkdir()
        write_merged(out, self.learned())
        return out

    def _train(self, steps: int) -> None:
        module = ZOModule(
            method=self.method,
            backend=self.backend,
            objective=Score(),
            layout=self.layout,
            bank=self.bank,
            seed=42,
            num_labels=3,
        )
        trainer = Trainer(
            strategy="zo",
            max_steps=steps,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
        )
        trainer.fit(module, ExampleDataModule(train=self.examples, batch_size=5, eval_batch_size=5, seed=42))
        trainer.save_checkpoint(self.checkpoint)


@torch.no_grad()
def scores(model: Any, examples: Sequence[Example]) -> Scores:
    """Mean token log-probability of each option by a transformers or PEFT model, one sequence after another."""
    found = []
    for example in examples:
        means = []
        for option in example.options:
            logits = model(input_ids=torch.tensor([example.prompt + option])).logits[0]
            logprobs = logits[-len(option) - 1 : -1].float().log_softmax(-1)
            means.append(float(logprobs.gather(-1, torch.tensor(option)[:, None]).mean()))
        found.append(means)
    return found


def difference(left: Scores, right: Scores) -> float:
    """Largest difference of two scores."""
    return max(abs(a - b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))
