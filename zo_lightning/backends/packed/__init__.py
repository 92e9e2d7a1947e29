"""All sequences of all points as one ragged batch in this process."""

from zo_lightning.backends.packed.backend import PackedBackend

__all__ = ["PackedBackend"]
