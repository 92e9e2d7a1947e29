"""Plug-ins: installed packages of others that bring options of their own.

A plug-in is a distribution with the entry point ``<name> = "<package>"`` in the group ``zo_lightning.plugins``. Its
options are the YAML files of the package ``<package>.conf``, and `instantiate` may build what the package holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import NamedTuple

from zo_lightning.errors import ConfigError

ENTRY_POINTS = "zo_lightning.plugins"


class Plugin(NamedTuple):
    """Who offers options: the name of the entry point and the package it names.

    Examples:
        >>> str(Plugin("sparse", "zo_sparse"))
        'sparse (zo_sparse.conf)'
    """

    name: str
    package: str

    @property
    def conf(self) -> str:
        """The package of the options."""
        return f"{self.package}.conf"

    def __str__(self) -> str:
        return f"{self.name} ({self.conf})"


OURSELVES = Plugin("zo-lightning", "zo_lightning")


def plugins() -> list[Plugin]:
    """The installed plug-ins by name; none of them is imported."""
    return sorted(Plugin(entry.name, entry.module) for entry in entry_points(group=ENTRY_POINTS))


def checked_plugins() -> list[Plugin]:
    """The installed plug-ins, once it is clear that each option has one provider.

    Raises:
        ConfigError: for a plug-in without options, or an option that two providers offer.
    """
    found = plugins()
    for plugin in found:
        spec = find_spec(plugin.conf)
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"plug-in {plugin} has no such package with an __init__.py: mend its entry point in the group "
                f"{ENTRY_POINTS}, or uninstall it"
            )
    if found:
        _refuse_clash([OURSELVES, *found])
    return found


def _refuse_clash(providers: Iterable[Plugin]) -> None:
    owners: dict[str, Plugin] = {}
    for provider in providers:
        for option in _options(files(provider.conf)):
            if option in owners:
                raise ConfigError(
                    f"{owners[option]} and {provider} both offer {option}: uninstall one of them, or give the "
                    "option of yours another name"
                )
            owners[option] = provider


def _options(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _options(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name
