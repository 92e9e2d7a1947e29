"""Loaders of examples for Lightning."""

from zo_lightning.data.loader import ExampleLoader
from zo_lightning.data.module import ExampleDataModule

__all__ = ["ExampleDataModule", "ExampleLoader"]
