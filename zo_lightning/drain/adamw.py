"""AdamW on flat pieces of parameters, one step at a time, with the bits of ``torch.optim.AdamW``.

Shapes: N = elements of one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.adamw import adamw

from zo_lightning.drain.errors import DrainError

ALIGNMENT = 64
"""Elements of a tensor that a cut must be a multiple of, so that vector loops fall on the elements they fell on."""

_BLOCK = 1 << 17  # elements whose temporaries a CPU's cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """What one step of ``torch.optim.AdamW`` used for the parameters of one group.

    Attributes:
        lr: learning rate of this very step.
        betas: decay of the first and of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled, times ``lr``.
        t: the parameters' own step count after the step, from 1 on; skipped steps do not count.
        clip: the logged gradient times this float32 is what the optimizer saw; 1 where it was logged as seen.
        skipped: the step changed nothing (a float16 step with an overflow).
        fused: the step ran torch's fused kernel, which rounds in other places than for-loop and foreach.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    t: int
    clip: float = 1.0
    skipped: bool = False
    fused: bool = False

    @classmethod
    def from_group(cls, group: Mapping[str, Any], *, t: int, clip: float = 1.0, skipped: bool = False) -> Hyper:
        """Read one of ``optimizer.param_groups`` in the post-hook of its step.

        Args:
            group: a parameter group of ``torch.optim.AdamW``.
            t: see ``Hyper``.
            clip: see ``Hyper``.
            skipped: see ``Hyper``.

        Raises:
            DrainError: for an option whose step is not the one that is replayed here.
        """
        for option in ("amsgrad", "maximize", "capturable", "differentiable"):
            if group.get(option):
                raise DrainError(f"AdamW({option}=True) cannot be drained; leave it out or take plain checkpoints")
        numbers = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
        if any(isinstance(number, torch.Tensor) for number in numbers):
            raise DrainError("AdamW with a tensor as lr or betas cannot be drained: it rounds otherwise; give floats")
        lr, beta1, beta2, eps, weight_decay = map(float, numbers)
        return cls(
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            weight_decay=weight_decay,
            t=t,
            clip=clip,
            skipped=skipped,
            fused=bool(group.get("fused")),
        )

    @property
    def decay(self) -> float:
        """What the parameters are multiplied by before the update."""
        return 1 - self.lr * self.weight_decay

    @property
    def step_size(self) -> float:
        """Learning rate over the bias correction of the first moment."""
        return self.lr / (1 - self.betas[0] ** self.t)

    @property
    def correction(self) -> float:
        """Root of the bias correction of the second moment."""
        return (1 - self.betas[1] ** self.t) ** 0.5


@dataclass(slots=True, kw_only=True)
class AdamWState:
    """Parameters and moments of one piece of a shard: one tensor or an aligned slice of it, flat.

    Attributes:
        param: of shape (N,).
        exp_avg: first moment (N,).
        exp_avg_sq: second moment (N,).
        version: optimizer steps of the run behind it, skipped ones included.
    """

    param: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    version: int

    def tensors(self) -> dict[str, torch.Tensor]:
        """The three tensors by the names that torch gives them."""
        return {"param": self.param, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}

    def __getitem__(self, piece: slice) -> AdamWState:
        """A view of some of the elements, with a version of its own."""
        return AdamWState(**{name: tensor[piece] for name, tensor in self.tensors().items()}, version=self.version)

    def clone(self) -> AdamWState:
        """A copy that shares no memory."""
        return AdamWState(**{name: tensor.clone() for name, tensor in self.tensors().items()}, version=self.version)


def blocks(tensor_N: torch.Tensor) -> Iterator[slice]:
    """Slices of a flat tensor: on CPU so short that temporaries stay in the cache, elsewhere all at once.

    Examples:
        >>> [block.stop for block in blocks(torch.empty(300_000))]
        [131072, 262144, 300000]
    """
    count = len(tensor_N)
    size = _BLOCK if tensor_N.device.type == "cpu" else max(count, 1)
    return (slice(start, min(start + size, count)) for start in range(0, max(count, 1), size))


def seen(grad_N: torch.Tensor, hyper: Hyper) -> torch.Tensor:
    """The gradient that the optimizer saw, from the one that was logged.

    A gradient may be logged in bfloat16 where every value is a bfloat16, which clipping would end: then the log holds
    the gradient before clipping, and the coefficient.
    """
    return grad_N if hyper.clip == 1 else grad_N.float() * hyper.clip


def forward(state: AdamWState, grad_N: torch.Tensor, hyper: Hyper) -> None:
    """Do one step of one piece in place (``forward_all``).

    Args:
        state: of any floating type, at the version before the step.
        grad_N: as logged.
        hyper: of the step.
    """
    forward_all([state], [grad_N], hyper)


def forward_all(states: Sequence[AdamWState], grads_N: Sequence[torch.Tensor], hyper: Hyper) -> None:
    """Do one step in place with torch's own code: its fused kernel, or foreach, which has the bits of the for-loop.

    Many small pieces take one call, since a call costs more than their arithmetic.

    Args:
        states: of any floating type, at the version before the step.
        grads_N: as logged.
        hyper: of the step.
    """
    for state in states:
        state.version += 1
    if hyper.skipped:
        return
    adamw(
        [state.param for state in states],
        [seen(grad_N, hyper).to(state.param.dtype) for state, grad_N in zip(states, grads_N, strict=True)],
        [state.exp_avg for state in states],
        [state.exp_avg_sq for state in states],
        [],
        [torch.tensor(float(hyper.t - 1)) for _ in states],
        foreach=not hyper.fused,
        fused=hyper.fused,
        amsgrad=False,
        beta1=hyper.betas[0],
        beta2=hyper.betas[1],
        lr=hyper.lr,
        weight_decay=hyper.weight_decay,
        eps=hyper.eps,
        maximize=False,
    )


def is_bitwise(hyper: Hyper, device: torch.device) -> bool:
    """Whether ``forward`` on CPU gives, by construction, the bits of a step that was done on a device.

    For-loop and foreach on CPU do the same operations in the same order on every element, wherever it lies; a processor
    of another kind, as one without fused multiply-add, has other bits for them, so replay where you train. The fused
    kernel rounds otherwise in its vector loop than in the rest behind it, so there it also matters where a tensor was
    cut (``ALIGNMENT``) and how threads shared it: equal bits were measured, but nothing promises them. Other devices
    contract products and sums by their own compiler's choice. In both cases the digest of the live state decides.

    Examples:
        >>> step = Hyper(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, t=1)
        >>> is_bitwise(step, torch.device("cpu")), is_bitwise(step, torch.device("cuda"))
        (True, False)
    """
    return device.type == "cpu" and not hyper.fused
