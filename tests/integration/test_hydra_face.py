"""What users of Hydra expect of a command, asked as they would ask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from zo_lightning.cli import eval as zo_eval
from zo_lightning.cli import train as zo_train

Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """What ``zo-train`` prints in an empty folder; errors too."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, main: Callable[[], None] = zo_train.main, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["zo-train", *arguments])
        ended = 0
        try:
            main()
        except SystemExit as end:
            ended = end.code
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.out + said.err

    return run


def test_a_job_is_shown_resolved_before_it_has_a_folder(ask: Ask):
    config = OmegaConf.create(ask("--cfg", "job", "--resolve", "model=tiny-llama"))
    assert config.paths.output_dir is None
    assert config["update"].lr == config.model.lr == 1e-6
    assert not list(Path().iterdir())


@pytest.mark.parametrize("kind", ["hydra", "all"])
def test_the_rest_of_the_configuration_is_shown(ask: Ask, kind: str):
    assert "sweep:" in ask("--cfg", kind)


def test_a_part_is_shown(ask: Ask):
    assert ask("--cfg", "job", "--package", "query").splitlines()[1:] == [
        "_target_: zo_lightning.queries.Antithetic",
        "eps: 0.001",
    ]


def test_the_search_path_begins_with_our_package(ask: Ask):
    assert "| main     | pkg://zo_lightning.conf |" in ask("--info", "searchpath")


def test_help_lists_choices_and_flags_and_no_schema(ask: Ask):
    text = ask("--help")
    assert text.startswith("zo-train, of zo-lightning")
    assert "\nbackend: dense, fake, packed, vllm\n" in text
    assert "base_" not in text
    assert "--config-dir" in text
    assert ask("--help", main=zo_eval.main).startswith("zo-eval, of zo-lightning")


def test_a_mistyped_option_lists_the_options(ask: Ask):
    text = ask("backend=vlm", code=1)
    assert "Available options in 'backend':\n\tdense\n\tfake\n\tpacked\n\tvllm\n" in text


@pytest.mark.parametrize(
    ("override", "known"),
    [
        ("query.epss=1", "`query` has the keys _target_, eps"),
        ("data.batchsize=1", "`data` has the keys batch_size, eval_batch_size"),
        ("callbacks.progres_bar.log_every=9", "`callbacks` has the keys goodput, interrupt_checkpoint, progress_bar"),
        ("modle=tiny-llama", "the configuration has the keys backend, bank, "),
    ],
)
def test_a_mistyped_key_lists_the_keys(ask: Ask, override: str, known: str):
    assert known in ask(override, code=1)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("model=tiny", "model=tiny-llama model=tiny-opt model=tiny-qwen3"),
        ("direction=", "direction=low_rank"),
        ("data.", "data.batch_size= data.eval_batch_size="),
        ("debug=", "debug=fdr"),
    ],
)
def test_the_shell_completes(ask: Ask, monkeypatch: pytest.MonkeyPatch, typed: str, offered: str):
    line = f"zo-train {typed}"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert ask("-sc", "query=bash").split() == offered.split()


def test_completion_is_installed_for_the_command(ask: Ask):
    assert "complete -o nospace -o default -F hydra_bash_completion zo-train" in ask("-sc", "install=bash")


def test_overlays_compose_and_the_command_line_wins(ask: Ask):
    config = OmegaConf.create(ask("experiment=sst2_smollm2", "debug=fdr", "model=tiny-opt", "--cfg", "job"))
    assert config.task.test_sampling == "first"
    assert config.trainer.fast_dev_run is True and config.checkpoint is None
    assert config.model.name == "tiny-opt"


def test_a_callback_is_deleted(ask: Ask):
    config = OmegaConf.create(ask("~callbacks.progress_bar", "--cfg", "job"))
    assert set(config.callbacks) == {"goodput", "interrupt_checkpoint"}


def test_a_folder_of_settings_brings_options_and_what_holds_on_this_machine(ask: Ask):
    files = {
        "local/default.yaml": "# @package _global_\ndefaults: [override /backend: dense]\ntrainer: {max_steps: 7}\n",
        "task/support.yaml": "defaults: [jsonl, _self_]\nname: support\ntemplate: x\nverbalisers: {a: ' a', b: ' b'}\n",
    }
    for name, text in files.items():
        file = Path("mine") / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    config = OmegaConf.create(ask("--config-dir", "mine", "task=support", "--cfg", "job"))
    assert config.backend._target_.endswith("DenseBackend")
    assert config.trainer.max_steps == 7
    assert config.task.name == "support" and config.task.num_train == 1000
    config = OmegaConf.create(ask("--config-dir", "mine", "backend=fake", "trainer.max_steps=9", "--cfg", "job"))
    assert config.backend._target_.endswith("FakeBackend") and config.trainer.max_steps == 9
