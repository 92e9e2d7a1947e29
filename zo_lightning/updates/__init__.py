"""How an estimate changes the left factors."""

from zo_lightning.updates.sgd import Sgd

__all__ = ["Sgd"]
