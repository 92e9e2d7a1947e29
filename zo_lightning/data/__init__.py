"""Loaders of examples for Lightning."""

from zo_lightning.data.loader import ExampleLoader
from zo_lightning.data.module import ExampleDataModule, check_batch_sizes

__all__ = ["ExampleDataModule", "ExampleLoader", "check_batch_sizes"]
