"""Low-rank directions with a right factor of signs."""

from dataclasses import dataclass

import torch

from zo_lightning.core.types import DirectionKey, Layout
from zo_lightning.directions import LowRank


@dataclass(frozen=True, kw_only=True)
class Rademacher(LowRank):
    """``d = scale * U V^T`` with Gaussian U and entries of V that are -1 or 1."""

    def right(self, key: DirectionKey, layout: Layout, device: torch.device) -> torch.Tensor:
        """V_IR, float32 [layout.num_cols, rank]: the signs of the Gaussian factor."""
        return super().right(key, layout, device).sign()
