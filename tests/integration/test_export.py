"""What is exported answers as the engine that trained it: in PEFT, in transformers and in vLLM without our worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from peft import PeftModel
from transformers import AutoModelForCausalLM

import zo_lightning.strategies  # noqa: F401  registers "zo"
from tests.backends import TINY, Opened, Row, on_rows, prepared
from tests.examples import mixed_examples
from zo_lightning.backends.dense import DenseBackend
from zo_lightning.core.method import Method
from zo_lightning.core.types import BankSpec, EvalRequest, Example, Point, Score
from zo_lightning.data import ExampleDataModule
from zo_lightning.directions import LowRank
from zo_lightning.estimators import Spsa
from zo_lightning.export import Learned, read_checkpoint, write_adapter, write_merged
from zo_lightning.export.peft import served_rank
from zo_lightning.models import linear_layout
from zo_lightning.modules import ZOModule
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd

Scores = Sequence[Sequence[float]]

TOLERANCE = 1e-4
MATTERS = 1e-2  # how far the base alone must be from what was trained
SIZES = [(2, 1), (2, 3), (3, 4), (16, 4)]  # columns of a slot, slots: ranks 2, 6, 12 and 64


class Trained:
    """A run of a few large steps, its checkpoint, and the answers of its engine at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        model: str = "tiny-llama",
        rank: int = 2,
        slots: int = 3,
        policy: str = "cyclic",
        steps: int | None = None,
        backend: Any = None,
        path: Path | None = None,
    ) -> None:
        found = prepared(model)
        self.folder = path or found.folder
        self.layout = linear_layout(self.folder)
        self.examples = mixed_examples(found.folder)
        self.method = Method(
            direction=LowRank(
                rank=rank, refresh_every=2, cycle=slots if policy == "cyclic" else None, scale="1/sqrt(r)"
            ),
            query=Antithetic(eps=1e-3),
            estimator=Spsa(),
            update=Sgd(lr=1e-2),
        )
        self.bank = BankSpec(rank=rank, capacity=rank * slots, policy=policy)  # type: ignore[arg-type]
        self.backend = backend or DenseBackend(dtype="float32", device="cpu")
        self.checkpoint = folder / "trained.ckpt"
        self._train(folder, steps or 2 * slots)

    def _train(self, folder: Path, steps: int) -> None:
        module = ZOModule(
            method=self.method,
            backend=self.backend,
            objective=Score(),
            layout=self.layout,
            bank=self.bank,
            seed=42,
            num_labels=3,
        )
        if not self.backend.is_open:
            self.backend.open(self.layout, self.method.direction, self.method.update, self.bank)
        trainer = Trainer(
            strategy="zo",
            max_steps=steps,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(module, ExampleDataModule(train=self.examples, batch_size=5, eval_batch_size=5, seed=42))
        trainer.save_checkpoint(self.checkpoint)
        request = EvalRequest(point=Point(version=self.backend.version), examples=self.examples, objective=Score())
        (seen,) = self.backend.evaluate([request])
        self.scores: Scores = seen.scores

    def learned(self) -> Learned:
        return read_checkpoint(
            self.checkpoint, name=str(self.folder), revision=None, layout=self.layout, method=self.method
        )

    def adapter(self) -> Path:
        return self._written(write_adapter, "adapter")

    def merged(self) -> Path:
        return self._written(write_merged, "merged")

    def _written(self, write: Any, name: str) -> Path:
        out = self.checkpoint.with_name(name)
        out.mkdir()
        write(out, self.learned())
        return out


@torch.no_grad()
def scores(model: Any, examples: Sequence[Example]) -> Scores:
    """Mean token log-probability of each option, one sequence after another."""
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
    pairs = zip(left, right, strict=True)
    return max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True))


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


@pytest.mark.parametrize(("rank", "slots"), SIZES)
def test_peft_loads_the_adapter_at_any_rank(tmp_path: Path, rank: int, slots: int):
    run = Trained(tmp_path, rank=rank, slots=slots)
    base = load(run.folder)
    assert difference(scores(base, run.examples), run.scores) > MATTERS
    model = PeftModel.from_pretrained(base, run.adapter())
    assert model.peft_config["default"].r == rank * slots
    error = difference(scores(model, run.examples), run.scores)
    print(f"rank {rank * slots}: the adapter in PEFT against its engine {error:.1e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("model", TINY)
def test_transformers_loads_adapter_and_merged_model(tmp_path: Path, model: str):
    """Tied embeddings, untied ones, and biases."""
    run = Trained(tmp_path, model=model)
    before = scores(load(run.folder), run.examples)
    adapter = scores(PeftModel.from_pretrained(load(run.folder), run.adapter()), run.examples)
    merged = scores(load(run.merged()), run.examples)
    errors = difference(adapter, run.scores), difference(merged, run.scores)
    print(f"{model}: base {difference(before, run.scores):.1e}, adapter and merged {errors[0]:.1e} {errors[1]:.1e}")
    assert difference(before, run.scores) > MATTERS
    assert max(errors) < TOLERANCE
    tied = load(run.folder).config.tie_word_embeddings
    assert load(tmp_path / "merged").config.tie_word_embeddings == tied


def test_the_adapter_hits_the_matrices_of_the_bank_and_no_others(tmp_path: Path):
    run = Trained(tmp_path)
    model = PeftModel.from_pretrained(load(run.folder), run.adapter())
    hit = [name.removeprefix("base_model.model.") for name, part in model.named_modules() if hasattr(part, "lora_A")]
    assert hit == [matrix.name for matrix in run.layout.matrices]


def stock_vllm(examples: Sequence[Example], *engines: dict[str, Any]) -> list[list[Scores]]:
    task = {"examples": [[example.prompt, example.options] for example in examples], "engines": engines}
    script = Path(__file__).parents[1] / "stock_vllm.py"
    ran = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(task, default=str),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@on_rows(Row("vllm"))
def test_stock_vllm_answers_as_the_engine_that_trained(subject: Opened, tmp_path: Path):
    """The adapter of a vLLM run and adapters of every size in one engine, the merged model in another."""
    ours = Trained(folder(tmp_path, "vllm"), backend=subject.backend, rank=2, slots=4)
    others = [Trained(folder(tmp_path, f"{r * s}"), rank=r, slots=s) for r, s in SIZES]
    adapters = [run.adapter() for run in (ours, *others)]
    (base, *tuned), (merged,) = stock_vllm(
        ours.examples,
        {"model": ours.folder, "max_lora_rank": 64, "adapters": adapters},
        {"model": ours.merged(), "max_lora_rank": None, "adapters": []},
    )
    errors = [difference(found, run.scores) for found, run in zip(tuned, (ours, *others), strict=True)]
    print(f"base {difference(base, ours.scores):.1e}; adapters {errors}; merged {difference(merged, ours.scores):.1e}")
    assert all(difference(base, run.scores) > MATTERS for run in (ours, *others))
    assert max(errors) < TOLERANCE
    assert difference(merged, ours.scores) < TOLERANCE


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made
