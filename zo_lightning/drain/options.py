"""Settings of the drain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from zo_lightning.drain.messages import Rollback
from zo_lightning.drain.plan import Mode
from zo_lightning.drain.window import Target
from zo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """How a first-order run is kept.

    Attributes:
        folder: of the store.
        mirrors: further places for snapshots, paths or fsspec URLs.
        keep: snapshots that stay.
        mode: plain snapshots, a drain, or whichever fits.
        target: version that a drain's shards are brought to.
        rollback: how steps are taken back, for another target than ``newest``.
        tolerance: largest relative error that a guarded rollback may leave.
        tax: share of a step's time that copying may take, on average.
        max_stall: seconds that training waits in one window for a slow host process, at most.
        num_shards: of a drain, instead of what follows from ``tax``.

    Raises:
        ConfigError: for a setting that is not one of these.
    """

    folder: Path
    mirrors: tuple[str, ...] = ()
    keep: int = 2
    mode: Mode = "auto"
    target: Target = "newest"
    rollback: Rollback = "guarded"
    tolerance: float = 1e-4
    tax: float = 0.03
    max_stall: float = 1.0
    num_shards: int | None = None

    def __post_init__(self) -> None:
        for key, choices in (("mode", Mode), ("target", Target), ("rollback", Rollback)):
            if getattr(self, key) not in get_args(choices):
                raise ConfigError(
                    f"`checkpoint.drain.{key}`={getattr(self, key)}: choose one of {', '.join(get_args(choices))}"
                )
        if not 0 < self.tax <= 1:
            raise ConfigError(f"`checkpoint.drain.tax`={self.tax}: a share of a step, above 0 and at most 1")
        if not self.tolerance > 0:
            raise ConfigError(f"`checkpoint.drain.tolerance`={self.tolerance}: a relative error, above 0")
        if self.num_shards is not None and self.num_shards < 2:
            raise ConfigError(
                f"`checkpoint.drain.num_shards`={self.num_shards}: 2 or more; one is `checkpoint.drain.mode=snapshot`"
            )
