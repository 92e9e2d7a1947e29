"""The one way from configuration to objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from zo_lightning.config.plugins import plugins
from zo_lightning.errors import ConfigError, ZOError

ALLOWED = ("zo_lightning", "lightning", "torch", "torchmetrics")


def instantiate(config: Any, **runtime: Any) -> Any:
    """Build what ``_target_`` names, with plain Python containers as arguments.

    Args:
        config: a node with ``_target_``.
        **runtime: further keyword arguments. Dataclasses are refused: Hydra 1.3 silently turns them into
            DictConfig; use a ``_partial_`` node and call the result.

    Raises:
        ConfigError: for a target outside the allowed packages and the installed plug-ins.
        TypeError: for a dataclass among the runtime arguments.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as hydra_instantiate

    for name, value in runtime.items():
        if dataclasses.is_dataclass(value):
            raise TypeError(f"{name} is a dataclass, which Hydra would turn into a DictConfig: use `_partial_: true`")
    allowed = (*ALLOWED, *(plugin.package for plugin in plugins()))
    for target in _targets(config):
        if not any(target.startswith(f"{package}.") for package in allowed):
            raise ConfigError(f"`_target_: {target}` is outside {', '.join(allowed)}: it is not instantiated")
    try:
        return hydra_instantiate(config, **runtime, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ZOError):  # Hydra wraps what a constructor raises
            raise error.__cause__ from None
        raise


def _targets(config: Any) -> list[str]:
    if isinstance(config, Mapping):
        own = [str(config["_target_"])] if "_target_" in config else []
        return own + [target for key in config for target in _targets(config[key])]
    if isinstance(config, Sequence) and not isinstance(config, str):
        return [target for item in config for target in _targets(item)]
    return []
