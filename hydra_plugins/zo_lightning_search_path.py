"""Hydra loads this module in every application of an environment: it brings in nothing until the run is ours."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class ZOLightningSearchPath(SearchPathPlugin):
    """Adds the configurations of zo-lightning's plug-ins where zo-lightning's own is the primary one."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append ``pkg://<package>.conf`` of every plug-in."""
        primary = [element.path for element in search_path.get_path() if element.provider == "main"]
        if primary == ["pkg://zo_lightning.conf"]:
            from zo_lightning.config.plugins import checked_plugins

            for plugin in checked_plugins():
                search_path.append(provider=plugin.name, path=f"pkg://{plugin.conf}")
