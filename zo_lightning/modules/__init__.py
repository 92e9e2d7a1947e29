"""The LightningModule that every method shares."""

from zo_lightning.modules.zo_module import ZOModule

__all__ = ["ZOModule"]
