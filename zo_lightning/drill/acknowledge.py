"""A callback that acknowledges each step to whoever watches the run, outside of all that the run itself keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from zo_lightning.backends.digest import digest_factors, digest_weights
from zo_lightning.core.types import Batch, EvalRequest, Observation
from zo_lightning.drill.killing import kill_in_operation
from zo_lightning.drill.lines import LineWriter
from zo_lightning.modules import ZOModule


class Acknowledge(Callback):
    """Writes what a run does: see ``lines.Line``.

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
        train = trainer.datamodule.train  # type: ignore[attr-defined]
        self._uid = {id(example): number for number, example in enumerate(train)}
        if isinstance(pl_module, ZOModule):
            self._listen(trainer, pl_module)
        trainer.optimizers[0].register_step_post_hook(lambda *_: self._acknowledge(trainer, pl_module))
        self._lines.write("begin", trainer.global_step, digest=digest(trainer, pl_module))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Note the examples that the loader handed out."""
        self._batch = [self._uid[id(example)] for example in batch.examples]
        self._handed_out += self._batch
        self._asked = False
        if not isinstance(pl_module, ZOModule):
            self._ask(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that this life got to its end."""
        self._lines.write("end", trainer.global_step)

    def _listen(self, trainer: Trainer, module: ZOModule) -> None:
        evaluate = module.backend.evaluate

        def heard(requests: Sequence[EvalRequest]) -> tuple[Observation, ...]:
            if trainer.training and not self._asked:  # a query may follow up
                self._ask(trainer)
            return evaluate(requests)

        module.backend.evaluate = heard  # type: ignore[method-assign]

    def _ask(self, trainer: Trainer) -> None:
        self._asked = True
        self._lines.write("ask", trainer.global_step + 1, epoch=trainer.current_epoch, uids=self._batch)

    def _acknowledge(self, trainer: Trainer, module: LightningModule) -> None:
        step, epoch = trainer.global_step + 1, trainer.current_epoch  # Lightning counts when the hook has returned
        uids, self._handed_out = self._handed_out, []
        self._lines.write("acknowledge", step, epoch=epoch, uids=uids, digest=digest(trainer, module))


def digest(trainer: Trainer, module: LightningModule) -> str:
    """Of all that training changes: a backend's factors, or parameters and the optimizer's state."""
    if isinstance(module, ZOModule):
        return digest_factors(module.backend.snapshot())
    state = trainer.optimizers[0].state
    named = dict(module.named_parameters())
    moments = {
        f"{name}.{role}": state[parameter][role]
        for name, parameter in named.items()
        for role in ("step", "exp_avg", "exp_avg_sq")
        if role in state[parameter]
    }
    return digest_weights(sorted((named | moments).items()))
