"""What Lightning puts into a checkpoint goes into the store, and a trainer goes on from what comes out."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from tests.stores import same
from zo_lightning.checkpoint.store import Store

SCHEDULES = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "multistep": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4]),
    "onecycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer),
}


class Linear(LightningModule):
    def __init__(self, schedule: str, width: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        scheduler = {"scheduler": SCHEDULES[self.hparams.schedule](optimizer), "monitor": "loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def fit(folder, schedule, epochs, **settings):
    torch.manual_seed(0)
    module = Linear(schedule)
    callbacks = [ModelCheckpoint(folder / "files", monitor="loss"), EarlyStopping("loss")]
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    trainer = Trainer(max_epochs=epochs, callbacks=callbacks, log_every_n_steps=1, **quiet)
    trainer.fit(module, DataLoader(torch.ones(8, 3), batch_size=2), **settings)
    return trainer


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_first_order_checkpoint_goes_through_the_store(tmp_path, schedule):
    trainer = fit(tmp_path, schedule, 2)
    trainer.save_checkpoint(tmp_path / "stock.ckpt")
    stock = torch.load(tmp_path / "stock.ckpt", weights_only=True)
    Store([tmp_path / "store"]).save(trainer.global_step, stock, "digest")
    loaded = Store([tmp_path / "store"]).load().tree
    assert same(loaded, stock)
    torch.save(loaded, tmp_path / "back.ckpt")
    one = fit(tmp_path, schedule, 4, ckpt_path=tmp_path / "back.ckpt")
    two = fit(tmp_path, schedule, 4, ckpt_path=tmp_path / "stock.ckpt")
    assert one.global_step == two.global_step == 16
    assert same(dict(one.model.state_dict()), dict(two.model.state_dict()))
