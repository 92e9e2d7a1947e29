"""What one step of a window copies, read in the optimizer's post-hook.

Lightning runs the closure inside ``optimizer.step``: only after it do gradients and state belong together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper, is_bitwise
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.messages import Parameter, Setup, StepNote
from zo_lightning.drain.pieces import Piece
from zo_lightning.drain.residuals import residuals
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
        smallest = min(self._members, key=lambda member: member[0].numel())
        self._probe = smallest[0]
        self._largest: float | None = None  # gradient of the probe, before clipping
        self._old: dict[Piece, AdamWState] = {}
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

    def before_clipping(self) -> None:
        """Look at the gradients before Lightning clips their norm."""
        self._largest = self._largest_gradient()

    def before_step(self, setup: Setup, step: int) -> None:
        """Copy what a step is about to change and residuals need."""
        pieces = [piece for _, piece in setup.logged[step]] if setup.needs_residuals(step) else []
        self._old = {piece: self._piece(piece).clone() for piece in pieces}

    def take(self, setup: Setup, step: int) -> tuple[StepNote, list[torch.Tensor]]:
        """Note and tensors of a step of a window, in the post-hook.

        Args:
            setup: of the window.
            step: of the window, from 0 on.

        Returns:
            The note; then flat tensors as ``Setup.types`` lists them, and residuals.
        """
        hypers, logged = self._hypers(), setup.logged[step]
        states_N = [x for _, piece in setup.captured[step] for x in self._piece(piece).tensors().values()]
        grads_N = [self._gradient(piece) for _, piece in logged]
        residuals_B = []
        if setup.needs_residuals(step):
            pairs = zip(logged, grads_N, strict=True)
            residuals_B = [
                residuals(self._old[piece], self._piece(piece), grad_N, hypers[piece.param])
                for (_, piece), grad_N in pairs
            ]
        note = StepNote(
            step=step,
            hypers=hypers,
            clip=self._clip(),
            digest=digest(self.state) if step == setup.window.version and self._on_cpu else None,
            residuals=tuple(map(len, residuals_B)),
        )
        return note, [*states_N, *grads_N, *residuals_B]

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

    def _largest_gradient(self) -> float | None:
        return None if self._probe.grad is None else float(self._probe.grad.abs().max())

    def _clip(self) -> float:
        """What the norm was clipped by, as the largest gradient of the smallest parameter tells."""
        before, self._largest = self._largest, None
        after = self._largest_gradient() if before else None
        return 1.0 if not before or after is None else after / before

    def _gradient(self, piece: Piece) -> torch.Tensor:
        parameter = self._members[piece.param][0]
        if parameter.grad is None:  # the step left it out, and so does the replay
            return torch.zeros(piece.stop - piece.start, dtype=parameter.dtype, device=parameter.device)
        return parameter.grad.detach().reshape(-1)[piece.start : piece.stop]

    def _piece(self, piece: Piece) -> AdamWState:
        triple = self._triple(self._members[piece.param][0])
        param_N, first_N, second_N = (tensor.reshape(-1)[piece.start : piece.stop] for tensor in triple)
        return AdamWState(param=param_N, exp_avg=first_N, exp_avg_sq=second_N, version=0)

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        return self._optimizer.state[parameter]

    def _triple(self, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self._state(parameter)
        return parameter.detach(), state["exp_avg"], state["exp_avg_sq"]
