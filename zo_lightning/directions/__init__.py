"""Search directions."""

from zo_lightning.directions.low_rank import LowRank

__all__ = ["LowRank"]
