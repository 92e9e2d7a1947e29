"""Hydra's launchers and sweepers that come in packages of their own: a missing one is told with its extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from zo_lightning.errors import ConfigError

# what an argument asks for: the package and the extra that has it
_PLUGINS = {
    "hydra/launcher=joblib": ("hydra_joblib_launcher", "sweeps"),
    "hydra/launcher=submitit_local": ("hydra_submitit_launcher", "sweeps"),
    "hydra/launcher=submitit_slurm": ("hydra_submitit_launcher", "sweeps"),
    "hydra/launcher=ray": ("hydra_ray_launcher", "ray"),
    "hydra/sweeper=optuna": ("hydra_optuna_sweeper", "sweeps"),
    "sweep=optuna_lr": ("hydra_optuna_sweeper", "sweeps"),
}


def check_launchers(arguments: Sequence[str]) -> None:
    """Refuse what needs a package that is not there; Hydra would only say that it finds no such choice.

    Raises:
        ConfigError: with the extra to install.
    """
    for argument in arguments:
        package, extra = _PLUGINS.get(argument, (None, None))
        if package is not None and not _is_installed(package):
            raise ConfigError(f"`{argument}` needs a package: `pip install zo-lightning[{extra}]`")


def _is_installed(package: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.{package}") is not None
