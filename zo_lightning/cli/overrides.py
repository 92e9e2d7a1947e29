"""The settings of a run that already is: its overrides come before those of the command line."""

from __future__ import annotations

import json
from pathlib import Path

from omegaconf import OmegaConf

from zo_lightning.config.resolvers import ABOUT


def with_saved_overrides(arguments: list[str]) -> list[str]:
    """Put the overrides of the run that ``ckpt_path`` names before the user's, but for those that the user gives.

    The folder of its own options, ``--config-dir``, comes back too.
    """
    own = [argument for argument in arguments if not argument.startswith("-")]
    given = dict(argument.split("=", 1) for argument in own if "=" in argument)
    folder = _run_folder(given.get("ckpt_path"))
    if folder is None:
        return arguments
    saved = [str(entry) for entry in OmegaConf.load(folder / ".hydra" / "overrides.yaml")]
    names = {_name(argument.split("=", 1)[0]) for argument in own} | {"ckpt_path"}
    kept = [entry for entry in saved if _name(entry.split("=", 1)[0]) not in names]
    first = next(i for i, argument in enumerate(arguments) if "=" in argument and not argument.startswith("-"))
    return [*_config_dir(folder, arguments), *arguments[:first], *kept, *arguments[first:]]


def _config_dir(folder: Path, arguments: list[str]) -> list[str]:
    about = folder / ABOUT
    saved = json.loads(about.read_text()).get("config_dir") if about.is_file() else None
    given = any(argument.split("=")[0] in ("--config-dir", "-cd") for argument in arguments)
    return [f"--config-dir={saved}"] if saved and not given else []


def _name(override: str) -> str:
    return override.lstrip("+~").partition("@")[0]


def _run_folder(ckpt_path: str | None) -> Path | None:
    if ckpt_path is None:
        return None
    path = Path(ckpt_path).expanduser().absolute()
    return next((folder for folder in (path, *path.parents) if (folder / ".hydra" / "overrides.yaml").is_file()), None)
