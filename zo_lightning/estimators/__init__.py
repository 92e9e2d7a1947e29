"""From observations to a gradient estimate."""

from zo_lightning.estimators.spsa import Spsa

__all__ = ["Spsa"]
