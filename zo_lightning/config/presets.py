"""Shipped options as plain settings, for code that builds one of them without a command line."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf


def preset(group: str, name: str) -> dict[str, Any]:
    """The settings that an option of a group names, without those of its schema.

    Examples:
        >>> preset("task", "copa")["candidates"]
        ['choice1', 'choice2']
    """
    loaded: Any = OmegaConf.to_container(OmegaConf.load(str(files("zo_lightning.conf") / group / f"{name}.yaml")))
    return {key: value for key, value in loaded.items() if key not in ("defaults", "_target_")}
