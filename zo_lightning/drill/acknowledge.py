"""A callback that acknowledges each step to whoever watches the run, outside of all that the run itself keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer

from zo_lightning.backends.digest import digest_factors
from zo_lightning.core.types import Batch, EvalRequest, Observation
from zo_lightning.drill.killing import kill_in_operation
from zo_lightning.drill.lines import LineWriter
from zo_lightning.modules import ZOModule


class Acknowledge(Callback):
    """Writes what a zeroth-order run does: see ``lines.Line``.

    Args:
        file: of this life.
        last: the number of the line after which it kills itself; None for none.
        operation: the number of the file operation in which it kills itself; None for none.
    """

    def __init__(self, file: str, last: int | None = None, operation: int | None = None) -> None:
        super().__init__()
        if operation is not None:
            kill_in_operation(operation)
        self._lines = LineWriter(Path(file), last=last)
        self._uid: dict[int, int] = {}
        self._batch: list[int] = []
        self._handed_out: list[int] = []  # in the open accumulation window
        self._asked = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put one's ear to the backend and the optimizer."""
        module = cast(ZOModule, pl_module)
        train = trainer.datamodule.train  # type: ignore[attr-defined]
        self._uid = {id(example): number for number, example in enumerate(train)}
        self._listen(trainer, module)
        trainer.optimizers[0].register_step_post_hook(lambda *_: self._acknowledge(trainer, module))
        self._lines.write("begin", module.backend.version)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Note the examples that the loader handed out."""
        self._batch = [self._uid[id(example)] for example in batch.examples]
        self._handed_out += self._batch
        self._asked = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that this life got to its end."""
        self._lines.write("end", cast(ZOModule, pl_module).backend.version)

    def _listen(self, trainer: Trainer, module: ZOModule) -> None:
        evaluate = module.backend.evaluate

        def heard(requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
            if trainer.training and not self._asked:  # a query may follow up
                self._lines.write("ask", module.backend.version + 1, epoch=trainer.current_epoch, uids=self._batch)
                self._asked = True
            return evaluate(requests)

        module.backend.evaluate = heard  # type: ignore[method-assign]

    def _acknowledge(self, trainer: Trainer, module: ZOModule) -> None:
        digest = digest_factors(module.backend.snapshot())
        version, epoch = module.backend.version, trainer.current_epoch
        self._lines.write("acknowledge", version, epoch=epoch, uids=self._handed_out, digest=digest)
        self._handed_out = []
