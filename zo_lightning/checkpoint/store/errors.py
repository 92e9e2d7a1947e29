"""What can be wrong with a checkpoint, told to a person."""

from __future__ import annotations

from zo_lightning.errors import ZOError


class StoreError(ZOError):
    """Nothing could be saved, or nothing sound is left to load; the message names every file and cause."""


class UnsupportedTypeError(StoreError):
    """A checkpoint holds an object that is no plain container, number, string or tensor; the message says where."""


class ManifestError(StoreError):
    """A manifest is not what was written, or of a format that this version does not know."""
