"""The settings of a run that already is: its overrides come before those of the command line."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf


def with_saved_overrides(arguments: list[str]) -> list[str]:
    """Put the overrides of the run that ``ckpt_path`` names before the user's, but for those that the user gives."""
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument and not argument.startswith("-"))
    folder = _run_folder(given.get("ckpt_path"))
    if folder is None:
        return arguments
    saved = [str(entry) for entry in OmegaConf.load(folder / ".hydra" / "overrides.yaml")]
    names = {_name(argument) for argument in given} | {"ckpt_path"}
    kept = [entry for entry in saved if _name(entry.split("=", 1)[0]) not in names]
    first = next(i for i, argument in enumerate(arguments) if "=" in argument and not argument.startswith("-"))
    return [*arguments[:first], *kept, *arguments[first:]]


def _name(override: str) -> str:
    return override.lstrip("+~").partition("@")[0]


def _run_folder(ckpt_path: str | None) -> Path | None:
    if ckpt_path is None:
        return None
    path = Path(ckpt_path).expanduser().absolute()
    return next((folder for folder in (path, *path.parents) if (folder / ".hydra" / "overrides.yaml").is_file()), None)
