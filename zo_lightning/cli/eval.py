"""``zo-eval``: score a checkpoint on the test split with the settings it was trained with."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from zo_lightning.cli.errors import reported
from zo_lightning.cli.folder import resolve_checkpoint
from zo_lightning.cli.terminal import quiet_libraries
from zo_lightning.config import register
from zo_lightning.errors import ConfigError

register()


def main() -> None:
    """Compose with the run's own overrides first, so that ``ckpt_path`` alone is enough."""
    sys.argv[1:] = with_saved_overrides(sys.argv[1:])
    _main()


def with_saved_overrides(arguments: list[str]) -> list[str]:
    """Put the overrides of the checkpoint's run before the user's, but for those that the user gives."""
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument and not argument.startswith("-"))
    folder = _run_folder(given.get("ckpt_path"))
    if folder is None:
        return arguments
    saved = OmegaConf.load(folder / ".hydra" / "overrides.yaml")
    names = {_name(argument) for argument in given} | {"ckpt_path"}
    return [str(entry) for entry in saved if _name(str(entry).split("=", 1)[0]) not in names] + arguments


def _name(override: str) -> str:
    return override.lstrip("+~").partition("@")[0]


def _run_folder(ckpt_path: str | None) -> Path | None:
    if ckpt_path is None:
        return None
    path = Path(ckpt_path).expanduser().absolute()
    return next((folder for folder in (path, *path.parents) if (folder / ".hydra" / "overrides.yaml").is_file()), None)


@hydra.main(version_base="1.3", config_path="pkg://zo_lightning.conf", config_name="eval")
def _main(config: DictConfig) -> None:
    run(config)


def run(config: DictConfig) -> None:
    """Score the checkpoint and print one line of JSON."""
    with reported():
        checkpoint, _ = resolve_checkpoint(config, Path(config.paths.root))
        if checkpoint is None:
            raise ConfigError("`ckpt_path` is missing: name a .ckpt file, a run's folder, or `last`")
        quiet_libraries()
        from zo_lightning.cli.report import Scores
        from zo_lightning.cli.session import build

        session = build(config)
        with session.engine():
            scores = Scores.of(session.test(checkpoint), len(session.data.test))
        text = json.dumps({"checkpoint": str(checkpoint), "test": asdict(scores)})
        (Path(config.paths.output_dir) / "results.json").write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    main()
