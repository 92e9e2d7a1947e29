"""What Lightning says about its own settings is a message for the user, as our errors are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException

from zo_lightning.errors import ConfigError

_WHERE = "Lightning refuses a setting of `trainer` or `callbacks`"


@contextmanager
def misconfigurations_named() -> Iterator[None]:
    """Turn settings that Lightning refuses into ``ConfigError``."""
    try:
        yield
    except MisconfigurationException as error:
        raise ConfigError(f"{_WHERE}: {error}") from None
    except InstantiationException as error:
        if isinstance(error.__cause__, MisconfigurationException | ValueError):
            raise ConfigError(f"{_WHERE}: {error.__cause__}") from None
        raise
