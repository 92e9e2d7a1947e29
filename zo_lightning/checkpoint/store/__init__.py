"""The store: checkpoints of plain containers and tensors, verified when loaded, in one or more places."""

from zo_lightning.checkpoint.store.errors import ManifestError, StoreError, UnsupportedTypeError
from zo_lightning.checkpoint.store.results import Loaded, Receipt
from zo_lightning.checkpoint.store.store import Store
from zo_lightning.checkpoint.store.verification import Checked

__all__ = ["Checked", "Loaded", "ManifestError", "Receipt", "Store", "StoreError", "UnsupportedTypeError"]
