"""Which parameter points a step evaluates."""

from zo_lightning.queries.antithetic import Antithetic

__all__ = ["Antithetic"]
