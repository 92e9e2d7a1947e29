"""A first-order run on a small network, with the keeper in a callback of its own; also a process to be killed.

``python -m tests.first_order FOLDER STEPS`` trains from the newest snapshot in FOLDER, if there is one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
from zo_lightning.drain.keeper import DrainKeeper
from zo_lightning.drain.restore import restore

ROLES = ("param", "exp_avg", "exp_avg_sq")
Triples = list[dict[str, torch.Tensor]]


class Loader(DataLoader):
    """Batches that are a function of their number, and a cursor that can be saved."""

    def __init__(self, num_batches: int = 40) -> None:
        self._num_batches, self._next, self._at = num_batches, 0, 0
        super().__init__(range(num_batches), batch_size=None)

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self._next = self._next % self._num_batches, 0
        for number in range(first, self._num_batches):
            self._at = number + 1
            yield torch.randn(8, 16, generator=torch.Generator().manual_seed(number))

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["at"]


class Net(LightningModule):
    """Two parameter groups, a warm-up, dropout, a parameter that a part of the steps leaves out."""

    def __init__(self, *, foreach: bool | None = None, pause: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 50), nn.LayerNorm(50), nn.Tanh(), nn.Dropout(0.1), nn.Linear(50, 3))
        self.rare = nn.Parameter(torch.ones(3))
        self.foreach, self.pause = foreach, pause

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(self.pause)
        out = self.body(batch)
        out = out * self.rare if batch_idx % 3 == 0 else out
        return (out.float() - batch[:, :3]).square().mean()

    def configure_optimizers(self) -> Any:
        weights = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim == 1]
        groups = [{"params": weights}, {"params": others, "weight_decay": 0.0, "lr": 2e-3, "betas": (0.8, 0.99)}]
        optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=self.foreach)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Keep(ResilientCheckpoint):
    """The callback, which waits for the host process: a run of two seconds would be over before it is there."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        super().on_train_batch_end(trainer, pl_module)
        assert isinstance(self.keeper, DrainKeeper)
        if self.keeper.plan is not None:
            self.keeper.wait_ready(60)


class Watch(Callback):
    """Copies parameters and moments after every step, and the gradients the optimizer saw, by itself."""

    def __init__(self) -> None:
        self.states: dict[int, Triples] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.states[trainer.global_step] = triples(trainer.optimizers[0])


def triples(optimizer: torch.optim.Optimizer) -> Triples:
    """Copies of parameter and moments of each parameter that has any."""
    return [
        {"param": p.detach().clone(), **{role: optimizer.state[p][role].clone() for role in ROLES[1:]}}
        for group in optimizer.param_groups
        for p in group["params"]
        if "exp_avg" in optimizer.state[p]
    ]


def saved_triples(checkpoint: dict[str, Any], net: Net) -> Triples:
    """The same of a checkpoint."""
    twin = Net(foreach=net.foreach)
    twin.load_state_dict(checkpoint["state_dict"])
    optimizer = twin.configure_optimizers()["optimizer"]
    optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    return triples(optimizer)


def trainer_of(folder: Path, steps: int, *callbacks: Callback, **settings: Any) -> Trainer:
    """A trainer that writes nothing of its own."""
    plain: dict[str, Any] = dict(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        gradient_clip_val=0.1,
    )
    return Trainer(**(plain | settings))


def main(folder: Path, steps: int) -> None:
    """Train on from the newest snapshot, and print each step."""

    class Say(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            print("step", trainer.global_step, flush=True)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = folder / "store"
    checkpoint = restore(store) if any(store.glob("*/*")) else None
    keep = Keep(folder, drain={"mode": "drain", "num_shards": 4})
    trainer = trainer_of(folder, steps, keep, Say())
    trainer.fit(Net(pause=0.02), Loader(), ckpt_path=checkpoint, weights_only=True)
    trainer.save_checkpoint(folder / "end.ckpt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
