"""What one step of a window copies, read in the optimizer's post-hook.

Lightning runs the closure inside ``optimizer.step``: only after it do gradients and state belong together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from zo_lightning.drain.adamw import Hyper, is_bitwise
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import Parameter, Setup, StepNote
from zo_lightning.drain.tree import Known, digest


def why_not(optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer cannot be drained; None if it can.

    Examples:
        >>> why_not(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]))
        'SGD is not torch.optim.AdamW'
    """
    if type(optimizer) is not torch.optim.AdamW:
        return f"{type(optimizer).__name__} is not torch.optim.AdamW"
    try:
        for group in optimizer.param_groups:
            Hyper.from_group(group, t=1)
    except DrainError as error:
        return str(error)
    return None


class Capture:
    """Reads the parameters of an AdamW that have a state.

    Args:
        optimizer: an AdamW that has stepped.
        named: the module's parameters by name.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        self._optimizer = optimizer
        names = {id(parameter): name for name, parameter in named}
        self._members = [
            (parameter, group)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if "exp_avg" in optimizer.state[parameter]
        ]
        self.parameters = tuple(
            Parameter(name=names.get(id(p), "?"), numel=p.numel(), dtype=p.dtype) for p, _ in self._members
        )
        self.clip = 1.0  # coefficient of the step at hand, for the log: gradients are read as clipped
        self.read_steps()

    def read_steps(self) -> None:
        """Remember how often each parameter has been updated: one that stays there was skipped."""
        self._steps = [self._state(parameter)["step"].item() for parameter, _ in self._members]

    @property
    def known(self) -> Known:
        """The drained tensors by address."""
        known = {}
        for index, (parameter, _) in enumerate(self._members):
            for role, tensor in zip(("param", "exp_avg", "exp_avg_sq"), self._triple(parameter), strict=True):
                known[tensor.data_ptr(), tensor.numel()] = (role, index)
        return known

    @property
    def state(self) -> list[torch.Tensor]:
        """Parameters and moments, all of them, in the order of the digest."""
        return [tensor for parameter, _ in self._members for tensor in self._triple(parameter)]

    def take(self, setup: Setup, step: int) -> tuple[StepNote, list[torch.Tensor]]:
        """Note and tensors of a step of a window.

        Args:
            setup: of the window.
            step: of the window, from 0 on.
        """
        tensors_N = []
        for _, piece in setup.captured(step):
            for tensor in self._triple(self._members[piece.param][0]):
                tensors_N.append(tensor.reshape(-1)[piece.start : piece.stop])
        for _, piece in setup.logged(step):
            parameter = self._members[piece.param][0]
            grad = parameter.grad
            if grad is None:  # the step left it out, and so does the replay
                grad = torch.zeros((), dtype=parameter.dtype).expand(parameter.numel())
            tensors_N.append(grad.detach().reshape(-1)[piece.start : piece.stop])
        live = digest(self.state) if step == setup.window.version and self._on_cpu else None
        return StepNote(step=step, hypers=self._hypers(), clip=self.clip, digest=live), tensors_N

    @property
    def is_bitwise(self) -> bool:
        """Whether a replay on CPU has the bits of the steps, by construction."""
        return all(is_bitwise(Hyper.from_group(group, t=1), parameter.device) for parameter, group in self._members)

    @property
    def _on_cpu(self) -> bool:
        return all(parameter.device.type == "cpu" for parameter, _ in self._members)

    def _hypers(self) -> tuple[Hyper, ...]:
        before = self._steps
        self.read_steps()
        made: dict[tuple[int, float, bool], Hyper] = {}
        hypers = []
        for (_, group), t, old in zip(self._members, self._steps, before, strict=True):
            key = (id(group), t, t == old)
            if key not in made:
                made[key] = Hyper.from_group(group, t=int(t), skipped=t == old)
            hypers.append(made[key])
        return tuple(hypers)

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        return self._optimizer.state[parameter]

    def _triple(self, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self._state(parameter)
        return parameter.detach(), state["exp_avg"], state["exp_avg_sq"]
