"""Lightning strategies; importing this package registers ``Trainer(strategy="zo")`` and ``zo_ddp``."""

from zo_lightning.strategies.base import ZOStrategyBase
from zo_lightning.strategies.zo_ddp_strategy import ZODDPStrategy
from zo_lightning.strategies.zo_strategy import ZOStrategy

__all__ = ["ZODDPStrategy", "ZOStrategy", "ZOStrategyBase"]
