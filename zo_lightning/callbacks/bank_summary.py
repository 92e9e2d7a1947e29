"""What a run trains and what it leaves alone, as a table when training starts."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary
from rich.console import Console
from rich.table import Table

from zo_lightning.modules import ZOModule


class BankSummary(ModelSummary):
    """Lightning's own summary would list one parameter, the version counter; this one asks the module's layout."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table."""
        if trainer.is_global_zero:
            Console(stderr=True).print(_table(cast(ZOModule, pl_module)))


def _table(module: ZOModule) -> Table:
    layout, bank = module.layout, module.bank
    adapted = sum(matrix.rows * matrix.cols for matrix in layout.matrices)
    size = (layout.num_rows + layout.num_cols) * bank.capacity
    table = Table("", "what", "numbers")
    table.columns[2].justify = "right"
    table.add_row("frozen base", layout.model, f"{layout.num_parameters:,}")
    table.add_row("  adapted", f"{len(layout.matrices)} matrices", f"{adapted:,}")
    table.add_row("bank", f"rank {bank.capacity}: {bank.num_slots} slots, {bank.policy}", f"{size:,}")
    table.add_row("  trained", f"left factors, {bank.rank} columns a stage", f"{layout.num_rows * bank.capacity:,}")
    return table
