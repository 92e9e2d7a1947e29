"""The LightningModules: one for every zeroth-order method, and one for backpropagation."""

from zo_lightning.modules.gradient_module import GradientModule
from zo_lightning.modules.zo_module import ZOModule

__all__ = ["GradientModule", "ZOModule"]
