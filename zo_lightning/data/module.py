"""The data of a run for Lightning: train, dev and test examples that are in memory already."""

from __future__ import annotations

import warnings

import torch
from lightning.pytorch import LightningDataModule

from zo_lightning.core.types import Batch, Example, Workload
from zo_lightning.data.loader import ExampleLoader
from zo_lightning.errors import ConfigError, DataError


def check_batch_sizes(*, batch_size: int, eval_batch_size: int) -> None:
    """Raise ``ConfigError`` if a batch size is below 1."""
    for key, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
        if size < 1:
            raise ConfigError(f"`data.{key}` must be at least 1, not {size}")


class ExampleDataModule(LightningDataModule):
    """Loaders for training (shuffled), validation (dev) and test.

    Args:
        train: training examples.
        dev: examples for ``val/...``; may be empty.
        test: examples for ``test/...``; may be empty.
        batch_size: examples of a training batch.
        eval_batch_size: examples of a validation or test batch.
        seed: of the training order.

    Raises:
        ConfigError: if a batch size is below 1.
        DataError: if there is nothing to train on.
    """

    def __init__(
        self,
        *,
        train: tuple[Example, ...],
        dev: tuple[Example, ...] = (),
        test: tuple[Example, ...] = (),
        batch_size: int,
        eval_batch_size: int,
        seed: int,
    ) -> None:
        super().__init__()
        check_batch_sizes(batch_size=batch_size, eval_batch_size=eval_batch_size)
        if not train:
            raise DataError(f"there is no training example for `data.batch_size`={batch_size}: check `task.data_dir`")
        self.train, self.dev, self.test = train, dev, test
        self.batch_size, self.eval_batch_size, self.seed = batch_size, eval_batch_size, seed
        # Lightning advises worker processes; the examples are in memory and need none.
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")

    def train_dataloader(self) -> ExampleLoader:
        """A new order every epoch, but one order for ``overfit_batches``, whose batches must stay the same."""
        overfit = self.trainer is not None and self.trainer.overfit_batches > 0  # type: ignore[attr-defined]
        return ExampleLoader(self.train, self.batch_size, seed=self.seed, shuffle=not overfit)

    def val_dataloader(self) -> list[ExampleLoader]:
        """The dev examples in their order."""
        return self._ordered(self.dev)

    def test_dataloader(self) -> list[ExampleLoader]:
        """The test examples in their order."""
        return self._ordered(self.test)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """A batch holds plain numbers, which become tensors where they are used."""
        return batch

    def workloads(self, num_points: int) -> tuple[Workload, ...]:
        """The calls that training at ``num_points`` points at once, validation and test will make."""
        kinds = (
            Workload(examples=self.train, batch_size=self.batch_size, num_points=num_points),
            Workload(examples=self.dev + self.test, batch_size=self.eval_batch_size),
        )
        return tuple(kind for kind in kinds if kind.examples)

    def _ordered(self, examples: tuple[Example, ...]) -> list[ExampleLoader]:
        return [ExampleLoader(examples, self.eval_batch_size)] if examples else []
