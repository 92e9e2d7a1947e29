"""Lightning strategies; importing this package registers ``Trainer(strategy="zo")``."""

from zo_lightning.strategies.zo_strategy import ZOStrategy

__all__ = ["ZOStrategy"]
