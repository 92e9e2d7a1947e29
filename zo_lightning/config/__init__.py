"""Configuration: schemas that Hydra checks while composing, and the one way to instantiate."""

from zo_lightning.config.instantiate import instantiate
from zo_lightning.config.schemas import register

__all__ = ["instantiate", "register"]
