"""Every option of every group composes, and what it names can be built."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

import zo_lightning
from zo_lightning.cli.trainer import build_trainer
from zo_lightning.config import instantiate, register

CONF = Path(zo_lightning.__file__).parent / "conf"
FILES = sorted(file.relative_to(CONF).with_suffix("") for file in CONF.rglob("*/*.yaml"))
OPTIONS = [str(file) for file in FILES if file.parts[0] != "local"]
NEEDS = {"backend/vllm": "vllm", "logger/wandb": "wandb", "logger/many": "wandb", "logger/tensorboard": "tensorboard"}
# What a user must add to an option, because it leaves settings open.
SETTINGS = {
    "task/jsonl": ["task.template='{{ text }} It is'", "task.verbalisers={low: ' calm', high: ' urgent'}"],
    "goodput/default": ["command=table"],
    "goodput/post": ["command=table"],
}
ROOTS = {"goodput": "goodput"}  # groups of another program than zo-train


def composed(option: str, folder: Path) -> DictConfig:
    """A run with one option chosen; no reference in it leads nowhere."""
    group, name = option.rsplit("/", 1)
    paths = [f"paths.root={folder}", f"paths.output_dir={folder}"]
    register()
    with initialize_config_module("zo_lightning.conf", version_base="1.3"):
        config = compose(ROOTS.get(group, "train"), [f"{group}={name}", *SETTINGS.get(option, []), *paths])
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return config


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_and_is_built(option: str, tmp_path: Path):
    config, group = composed(option, tmp_path), option.split("/")[0]
    needed = NEEDS.get(option)
    if needed and find_spec(needed) is None:
        pytest.skip(f"composes; to be built it needs {needed}")
    if option == "trainer/gpu" and not torch.cuda.is_available():
        pytest.skip("composes; to be built it needs a GPU")
    if group in ("trainer", "callbacks", "logger", "failure"):
        trainer = build_trainer(config)
        assert trainer.default_root_dir == str(tmp_path)
    elif "_target_" in (config.get(group) or {}):
        assert instantiate(config[group]) is not None


def test_a_run_names_every_group():
    groups = {str(file.parent) for file in FILES if file.parts[0] not in ("hydra", "local", *ROOTS)}
    listed = {
        key.removeprefix("optional ")
        for entry in OmegaConf.load(CONF / "train.yaml").defaults
        for key in entry
        if isinstance(entry, DictConfig)
    }
    assert groups <= listed
