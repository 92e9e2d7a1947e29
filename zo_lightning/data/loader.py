"""A loader whose position can be saved: resuming in mid-epoch repeats no example and drops none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from zo_lightning.core import rng
from zo_lightning.core.types import Batch, Example


class EpochSampler(SequentialSampler):
    """Indices in an order that depends on (seed, epoch) alone; Lightning calls ``set_epoch``.

    It counts as sequential, since ``overfit_batches`` makes Lightning replace any other kind.

    Examples:
        >>> sampler = EpochSampler(4, seed=7, shuffle=True)
        >>> sampler.set_epoch(3)
        >>> list(sampler) == rng.permutation(7, 4, epoch=3)
        True
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool) -> None:
        super().__init__(range(size))
        self.epoch = 0
        self._size, self._seed, self._shuffle = size, seed, shuffle

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            return iter(rng.permutation(self._seed, self._size, epoch=self.epoch))
        return iter(range(self._size))


class ExampleLoader(DataLoader[Example]):
    """Batches of examples; batch k of epoch e is a pure function of (seed, e, k). The last one may be smaller.

    Args:
        examples: the data, in memory.
        batch_size: examples of a batch.
        seed: of the order.
        shuffle: a new order every epoch, or the examples' own.
    """

    def __init__(self, examples: Sequence[Example], batch_size: int, *, seed: int = 0, shuffle: bool = False) -> None:
        self._order = EpochSampler(len(examples), seed=seed, shuffle=shuffle)
        self._position = self._resume = (0, 0)  # epoch, batches handed out in it
        super().__init__(examples, batch_size, sampler=self._order, collate_fn=_collate)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator: Lightning makes it before it has set the epoch, and the epoch is read at the first batch.
        # A position counts in its own epoch only: one that was saved at an epoch's end starts the next from its top.
        epoch, batches = self._resume
        skip = batches if epoch == self._order.epoch else 0
        self._position, self._resume = (self._order.epoch, skip), (0, 0)
        for number, batch in enumerate(islice(super().__iter__(), skip, None), start=skip + 1):
            self._position = (self._order.epoch, number)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of batches that were handed out in it."""
        return {"epoch": self._position[0], "batches": self._position[1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches of ``state_dict``."""
        self._resume = (state_dict["epoch"], state_dict["batches"])


def _collate(examples: list[Example]) -> Batch:
    return Batch(examples=tuple(examples))
