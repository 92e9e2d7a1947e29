"""The error of a drain that cannot do what it was asked."""

from __future__ import annotations

from zo_lightning.errors import ZOError


class DrainError(ZOError):
    """An optimizer that cannot be drained, or a replay that would not be exact; the message names the way out."""
