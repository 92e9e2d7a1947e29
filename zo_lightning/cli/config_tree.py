"""The configuration of a run as a tree: on the terminal and in ``config_tree.log``."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.syntax import Syntax
from rich.tree import Tree


def config_tree(config: DictConfig) -> Tree:
    """One branch for each group with its resolved settings.

    Examples:
        >>> tree = config_tree(OmegaConf.create({"seed": 42, "query": {"eps": 1e-3}}))
        >>> len(tree.children), tree.children[1].label
        (2, 'query')
    """
    tree = Tree("configuration", guide_style="dim")
    for key in config:
        node = config[key]
        if OmegaConf.is_config(node):
            tree.add(str(key), style="bold").add(_yaml(OmegaConf.to_yaml(node, resolve=True)))
        else:
            tree.add(_yaml(OmegaConf.to_yaml({key: node})))
    return tree


def show_config(config: DictConfig, folder: Path, *, show: bool) -> None:
    """Write ``config_tree.log`` into the run's folder, and the same on standard error if it is to be shown."""
    tree = config_tree(config)
    with (folder / "config_tree.log").open("w") as file:
        Console(file=file, width=200).print(tree)
    if show:
        Console(stderr=True).print(tree)


def _yaml(text: str) -> Syntax:
    return Syntax(text.rstrip(), "yaml", background_color="default", theme="ansi_dark")
