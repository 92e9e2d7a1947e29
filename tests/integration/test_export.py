"""What is exported answers as the engine that trained it: in PEFT, in transformers and in vLLM without our worker."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.backends import TINY, Opened, Row, on_rows, prepared
from tests.trained import Scores, Trained, difference, scores
from zo_lightning.cli import export as zo_export
from zo_lightning.cli import train as zo_train
from zo_lightning.cli.overrides import with_saved_overrides
from zo_lightning.config import register
from zo_lightning.core.types import Example
from zo_lightning.errors import ConfigError
from zo_lightning.export.peft import served_rank
from zo_lightning.models import trainable_layout

TOLERANCE = 1e-4
MATTERS = 0.1  # how far the base alone must be from what was trained
SIZES = [(2, 1), (2, 3), (3, 4), (16, 4)]  # columns of a slot, slots: ranks 2, 6, 12 and 64


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


@pytest.mark.parametrize(("rank", "slots"), SIZES)
def test_peft_loads_the_adapter_at_any_rank(tmp_path: Path, rank: int, slots: int):
    run = Trained(tmp_path, rank=rank, slots=slots)
    base = load(run.model)
    assert difference(scores(base, run.examples), run.scores) > MATTERS
    model = PeftModel.from_pretrained(base, run.adapter())
    assert model.peft_config["default"].r == rank * slots
    hit = [name.removeprefix("base_model.model.") for name, part in model.named_modules() if hasattr(part, "lora_A")]
    assert hit == [matrix.name for matrix in run.layout.matrices]
    error = difference(scores(model, run.examples), run.scores)
    print(f"rank {rank * slots}: the adapter in PEFT against its engine {error:.1e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("model", TINY)
def test_transformers_loads_adapter_and_merged_model(tmp_path: Path, model: str):
    """Tied embeddings, untied ones, and biases."""
    run = Trained(tmp_path, model=model)
    base = difference(scores(load(run.model), run.examples), run.scores)
    adapter = difference(scores(PeftModel.from_pretrained(load(run.model), run.adapter()), run.examples), run.scores)
    merged = difference(scores(load(run.merged()), run.examples), run.scores)
    print(f"{model} against its engine: base {base:.1e}, adapter {adapter:.1e}, merged {merged:.1e}")
    assert base > MATTERS
    assert max(adapter, merged) < TOLERANCE
    old, new = load(run.model).config, load(tmp_path / "merged").config
    assert new.tie_word_embeddings == old.tie_word_embeddings
    text = "The plot is warm. It was great"
    old_ids, new_ids = (AutoTokenizer.from_pretrained(f)(text).input_ids for f in (run.model, tmp_path / "merged"))
    assert new_ids == old_ids


def test_a_merged_model_is_rounded_once_to_the_type_of_the_base(tmp_path: Path):
    """A base in bfloat16 and in shards, trained in float32."""
    half = tmp_path / "half"
    load(prepared("tiny-llama").folder).bfloat16().save_pretrained(half, max_shard_size="300KB")
    AutoTokenizer.from_pretrained(prepared("tiny-llama").folder).save_pretrained(half)
    run = Trained(tmp_path, path=half)
    before, after = load(half).state_dict(), load(run.merged()).state_dict()
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    expected = {
        f"{matrix.name}.weight": (before[f"{matrix.name}.weight"].float() + left_OR @ right_IR.T).bfloat16()
        for matrix, left_OR, right_IR in run.learned().factors()
    }
    assert before.keys() == after.keys()
    for name, tensor in (before | expected).items():
        assert torch.equal(after[name], tensor), name


def test_merged_weights_of_a_run_are_exported_and_no_adapter_is(tmp_path: Path):
    run = Trained(tmp_path, policy="merge", slots=2, stages=5)
    assert run.learned().bank.num_merged == 2
    assert difference(scores(load(run.merged()), run.examples), run.scores) < TOLERANCE
    with pytest.raises(ConfigError, match=r"bank\.policy=merge.*format=merged"):
        run.adapter()
    early = Trained(folder(tmp_path, "early"), policy="merge", slots=2, stages=2)  # nothing is merged yet
    model = PeftModel.from_pretrained(load(early.model), early.adapter())
    assert difference(scores(model, early.examples), early.scores) < TOLERANCE


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-opt"])
def test_all_parameters_are_exported_merged_and_as_no_adapter(tmp_path: Path, model: str):
    """Norms and tied embeddings; biases and learned positions."""
    run = Trained(tmp_path, model=model, trainable="all")
    assert difference(scores(load(run.merged()), run.examples), run.scores) < TOLERANCE
    before, after = load(run.model), load(tmp_path / "merged")
    changed = {name for name, value in before.named_parameters() if not torch.equal(value, after.get_parameter(name))}
    assert changed == {name for name, _ in before.named_parameters()}
    with pytest.raises(ConfigError, match=r"model\.trainable=all.*format=merged"):
        run.adapter()
    with pytest.raises(ConfigError, match=r"`model\.trainable`"):
        run.learned(layout=prepared(model).layout)


def test_another_base_is_refused(tmp_path: Path):
    run = Trained(tmp_path)
    other = tmp_path / "other"
    model = load(run.model)
    model.model.norm.weight.data[0] += 1e-6  # outside the matrices
    model.save_pretrained(other)
    with pytest.raises(ConfigError, match=r"digest.*`model\.path`"):
        run.learned(layout=trainable_layout(other))
    with pytest.raises(ConfigError, match="other matrices"):
        run.learned(layout=prepared("tiny-opt").layout)
    direction = replace(run.method.direction, scale="none")
    with pytest.raises(ConfigError, match=r"direction\.scale"):
        run.learned(method=replace(run.method, direction=direction))


def test_a_checkpoint_of_an_earlier_version_is_taken_with_a_warning(tmp_path: Path, caplog):
    run = Trained(tmp_path)
    saved = torch.load(run.checkpoint, weights_only=True)
    assert saved["zo_lightning"].pop("model_digest") == run.learned().base.digest
    torch.save(saved, run.checkpoint)
    assert run.learned().rank == 6
    assert "no digest" in caplog.text


def test_what_has_learned_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="nothing yet"):
        Trained(tmp_path, stages=0).learned()


def stock_vllm(examples: Sequence[Example], *engines: dict[str, Any]) -> list[list[Scores]]:
    """For each engine the scores by its model and by each of its adapters."""
    task = {"examples": [[example.prompt, example.options] for example in examples], "engines": engines}
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "stock_vllm.py")],
        input=json.dumps(task, default=str),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@on_rows(Row("vllm"))
def test_stock_vllm_answers_as_the_engine_that_trained(subject: Opened, tmp_path: Path):
    """The adapter of a vLLM run and adapters of every size in one engine, the merged model in another."""
    ours = Trained(folder(tmp_path, "ours"), backend=subject.backend, slots=4)
    runs = [ours, *(Trained(folder(tmp_path, f"{r * s}"), rank=r, slots=s) for r, s in SIZES)]
    (base, *tuned), (merged,) = stock_vllm(
        ours.examples,
        {"model": ours.model, "max_lora_rank": 64, "adapters": [run.adapter() for run in runs]},
        {"model": ours.merged(), "max_lora_rank": None, "adapters": []},
    )
    errors = [difference(found, run.scores) for found, run in zip(tuned, runs, strict=True)]
    error = difference(merged, ours.scores)
    print(f"stock vLLM: base {difference(base, ours.scores):.1e}, adapters {max(errors):.1e}, merged {error:.1e}")
    assert min(difference(base, run.scores) for run in runs) > MATTERS
    assert max(errors) < TOLERANCE
    assert error < TOLERANCE


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("model", TINY)
def test_stock_vllm_takes_every_model_at_the_rank_the_card_names(tmp_path: Path, model: str):
    sizes = SIZES if model == "tiny-llama" else [(3, 4)]
    runs = [Trained(folder(tmp_path, f"{r * s}"), model=model, rank=r, slots=s) for r, s in sizes]
    ranks = [served_rank(r * s) for r, s in sizes]
    engines = [
        {"model": run.model, "max_lora_rank": rank, "adapters": [run.adapter()]}
        for run, rank in zip(runs, ranks, strict=True)
    ]
    *served, (merged,) = stock_vllm(
        runs[0].examples, *engines, {"model": runs[0].merged(), "max_lora_rank": None, "adapters": []}
    )
    for run, rank, (base, tuned) in zip(runs, ranks, served, strict=True):
        print(f"{model}, --max-lora-rank {rank}: {difference(tuned, run.scores):.1e}")
        assert difference(base, run.scores) > MATTERS
        assert difference(tuned, run.scores) < TOLERANCE
    assert difference(merged, runs[0].scores) < TOLERANCE


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_serve_answers_by_the_adapter(tmp_path: Path):
    """The command of the model card, and the request of ``docs/how-to/export.md``."""
    run = Trained(tmp_path)
    adapter = run.adapter()
    (command,) = re.findall(r"^python -m vllm.*", (adapter / "README.md").read_text(), re.MULTILINE)
    _, *words = shlex.split(command.replace("/path/to/this/folder", str(adapter)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, *words, "--enforce-eager", f"--port={port}"],
        cwd=tmp_path,
        stdout=(tmp_path / "server.log").open("w"),
        stderr=subprocess.STDOUT,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1"},
    )
    try:
        prompt = "The plot is warm. It was"
        asked = {"model": "tuned", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
        answer = when_ready(f"http://127.0.0.1:{port}", asked, server)["choices"][0]
    finally:
        server.terminate()
        server.wait(60)
    ids = AutoTokenizer.from_pretrained(run.model)(prompt, return_tensors="pt").input_ids
    model = PeftModel.from_pretrained(load(run.model), adapter)
    best = float(model(input_ids=ids).logits[0, -1].log_softmax(-1).max())
    assert answer["logprobs"]["token_logprobs"][0] == pytest.approx(best, abs=TOLERANCE)


def when_ready(url: str, body: dict[str, Any], server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The server's answer to a completion request, once it is up."""
    deadline = time.monotonic() + 200
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health")
            break
        except urllib.error.URLError:
            time.sleep(1)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line that keeps its overrides."""
    root = tmp_path_factory.mktemp("command")
    overrides = [
        "model=tiny-llama",
        "backend=dense",
        "scheduler=constant",
        "update.lr=1e-3",
        "direction.refresh_every=2",
        "task.num_train=8",
        "task.num_dev=8",
        "task.num_test=8",
        "data.batch_size=4",
        "trainer.max_steps=4",
        "trainer.val_check_interval=4",
    ]
    out = root / "outputs" / "day" / "run"
    zo_train.run(composed("train", *overrides, f"paths.output_dir={out}"), overrides=overrides)
    return out


def composed(name: str, *overrides: str) -> DictConfig:
    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        return compose(name, list(overrides))


def export(*arguments: str | Path) -> None:
    """As the command does, with the settings of the run that ``ckpt_path`` names."""
    zo_export.run(composed("export", *with_saved_overrides([str(argument) for argument in arguments])))


def test_a_run_folder_a_file_and_last_are_one_export(run_folder: Path, tmp_path: Path, capsys):
    checkpoint = run_folder / "checkpoints" / "last.ckpt"
    export(f"ckpt_path={run_folder}", f"out={tmp_path / 'a'}")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["out"], told["rank"], told["max_lora_rank"]) == (str(tmp_path / "a"), 4, 8)
    assert told["base"] == str(prepared("tiny-llama").folder) and told["checkpoint"] == str(checkpoint)
    export(f"ckpt_path={checkpoint}", f"out={tmp_path / 'b'}")
    settings = [str(entry) for entry in with_saved_overrides([f"ckpt_path={run_folder}"])[:-1]]
    export(*settings, "ckpt_path=last", f"paths.root={run_folder.parents[2]}", f"out={tmp_path / 'c'}")
    first, *others = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "abc")
    assert all(other == first for other in others)


def test_the_command_ends_with_a_card_and_a_line_of_json(run_folder: Path, tmp_path: Path):
    command = [sys.executable, "-m", "zo_lightning.cli.export", f"ckpt_path={run_folder}", "format=merged", "out=m"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"})
    assert ran.returncode == 0, ran.stderr
    *card, told = ran.stdout.splitlines()
    assert "exported as merged" in card[0]
    assert json.loads(told) == {
        "out": str(tmp_path / "m"),
        **json.loads((tmp_path / "m" / "zo_lightning.json").read_text()),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert load(tmp_path / "m").dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ckpt_path=null", "out=x"], "`ckpt_path` is missing"),
        (["ckpt_path=/nowhere", "out=x"], "no such file"),
        (["ckpt_path={run}"], "`out` is missing"),
        (["ckpt_path={run}", "out={run}"], "there already"),
        (["ckpt_path={run}/results.json", "out=x"], "cannot be read as a checkpoint"),
        (["ckpt_path={tmp}/other.ckpt", "out=x"], "not a checkpoint of zo_lightning"),
        (["ckpt_path={run}", "out=x", "direction.rank=1"], "`direction.rank`=2, not 1"),
        (["ckpt_path={run}", "out=x", "model=tiny-opt"], "other matrices"),
        (["ckpt_path={run}", "out=x", "model=tiny-qwen3"], "not those that the checkpoint was trained on"),
    ],
    ids=lambda value: None if isinstance(value, list) else value,
)
def test_bad_input_is_told_and_leaves_nothing(
    run_folder: Path, tmp_path: Path, monkeypatch, capsys, arguments: list[str], said: str
):
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    monkeypatch.chdir(folder(tmp_path, "here"))
    with pytest.raises(SystemExit) as stop:
        export(*(argument.format(run=run_folder, tmp=tmp_path) for argument in arguments))
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(Path.cwd().iterdir())


def test_an_unknown_format_names_the_choices():
    with pytest.raises(ConfigCompositionException) as refused:
        composed("export", "format=gguf")
    assert "expected one of [peft, merged]" in str(refused.value.__cause__)


def test_the_settings_of_a_run_stay_as_they_are():
    """The schema of an export comes behind overlays, whose values it must not touch."""
    overlay = ["experiment=sst2_smollm2", "data.batch_size=3", "bank.policy=merge", "seed=7"]
    train, both = composed("train", *overlay), composed("export", *overlay)
    assert {key: both[key] for key in train if key != "paths"} == {key: train[key] for key in train if key != "paths"}
