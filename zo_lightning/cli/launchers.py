"""Hydra's launchers and sweepers that come in packages of their own: a missing one is told by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from zo_lightning.errors import ConfigError

_PACKAGES = {  # by what asks for it
    "hydra/launcher=joblib": "hydra_joblib_launcher",
    "hydra/launcher=submitit_local": "hydra_submitit_launcher",
    "hydra/launcher=submitit_slurm": "hydra_submitit_launcher",
    "hydra/launcher=ray": "hydra_ray_launcher",
    "hydra/sweeper=optuna": "hydra_optuna_sweeper",
    "sweep=optuna_lr": "hydra_optuna_sweeper",
}


def check_launchers(arguments: Sequence[str]) -> None:
    """Refuse what needs a package that is not there; Hydra would only say that it finds no such choice.

    Raises:
        ConfigError: with the package to install.
    """
    for argument in arguments:
        package = _PACKAGES.get(argument)
        if package is not None and not _is_installed(package):
            raise ConfigError(f"`{argument}` needs a package: `pip install {package.replace('_', '-')}`")


def _is_installed(package: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.{package}") is not None
