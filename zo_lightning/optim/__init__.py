"""The torch optimizer that Lightning steps."""

from zo_lightning.optim.zo_optimizer import ZOOptimizer

__all__ = ["ZOOptimizer"]
