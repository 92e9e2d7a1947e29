"""A run of ``torch.optim.AdamW`` on one tensor, with everything that a drain could have seen of it.

Shapes: N = elements of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from zo_lightning.drain.adamw import AdamWState, Hyper

BETAS = (0.9, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """States by version from 0 on; gradients and settings by the version that their step made."""

    states: list[AdamWState]
    grads: dict[int, torch.Tensor]
    hypers: dict[int, Hyper]

    def state(self, version: int) -> AdamWState:
        """A copy of the state at a version."""
        return self.states[version].clone()


def noise(count: int, steps: int, *, seed: int = 0, spike: float = 1.0) -> list[torch.Tensor]:
    """Normal gradients; the last one times ``spike``."""
    drawn = torch.Generator().manual_seed(seed)
    grads = [torch.randn(count, generator=drawn) for _ in range(steps)]
    return [*grads[:-1], grads[-1] * spike]


def spiked(count: int, steps: int, at: int, factor: float) -> list[torch.Tensor]:
    """Normal gradients, that of one step times a factor."""
    return [grad * (factor if step == at else 1) for step, grad in enumerate(noise(count, steps), 1)]


def student(count: int, steps: int) -> list[torch.Tensor]:
    """Heavy tails: Student's t with two degrees of freedom."""
    normal, others = noise(count, steps), noise(count, 2 * steps, seed=1)
    return [grad / ((a**2 + b**2) / 2).sqrt() for grad, a, b in zip(normal, others[::2], others[1::2], strict=True)]


def embedding(count: int, steps: int) -> list[torch.Tensor]:
    """Gradients of an embedding whose tokens follow Zipf's law: most rows get none."""
    drawn, rows = torch.Generator().manual_seed(0), 2_500
    rates = 1 / torch.arange(1, rows + 1)
    grads = []
    for _ in range(steps):
        tokens = torch.multinomial(rates, 512, replacement=True, generator=drawn)
        each = torch.randn(len(tokens), count // rows, generator=drawn)
        grads.append(torch.zeros(rows, count // rows).index_add_(0, tokens, each).flatten())
    return grads


def trace(
    grads: list[torch.Tensor],
    *,
    lr: float | Callable[[int], float] = 1.6e-3,
    std: float = 0.02,
    kernel: str = "for_loop",
    seed: int = 1 << 20,
    **options: float | tuple[float, float],
) -> Trace:
    """Run the optimizer.

    Args:
        grads: of all steps.
        lr: learning rate, or that of the step that makes a version.
        std: of the first parameters, which are normal.
        kernel: ``for_loop``, ``foreach`` or ``fused``.
        seed: of the parameters; no other's, or they would be a gradient.
        options: of ``torch.optim.AdamW``.
    """
    drawn = torch.Generator().manual_seed(seed)
    param = torch.nn.Parameter(torch.randn(grads[0].shape, generator=drawn) * std)
    options = {"betas": BETAS, **options}
    optimizer = torch.optim.AdamW([param], foreach=kernel == "foreach", fused=kernel == "fused", **options)
    zeros = torch.zeros_like(grads[0])
    states = [AdamWState(param=param.detach().clone(), exp_avg=zeros, exp_avg_sq=zeros.clone(), version=0)]
    hypers = {}
    for version, grad in enumerate(grads, 1):
        optimizer.param_groups[0]["lr"] = lr(version) if callable(lr) else lr
        param.grad = grad.clone()
        optimizer.step()
        moments = {name: optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")}
        states.append(AdamWState(param=param.detach(), **moments, version=version).clone())
        hypers[version] = Hyper.from_group(optimizer.param_groups[0], t=version)
    return Trace(states=states, grads=dict(enumerate(grads, 1)), hypers=hypers)


def pieces(count: int, size: int) -> Iterator[slice]:
    """Slices of ``size``, the last one with the rest."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def bits_equal(one: AdamWState, other: AdamWState) -> bool:
    """Whether two states are the same to the last bit."""
    pairs = zip(one.tensors().values(), other.tensors().values(), strict=True)
    return one.version == other.version and all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


def errors(one: AdamWState, true: AdamWState) -> dict[str, float]:
    """Relative L2 error of each tensor."""
    return {
        name: ((tensor.double() - true.tensors()[name].double()).norm() / true.tensors()[name].double().norm()).item()
        for name, tensor in one.tensors().items()
    }


def joined(parts: list[AdamWState]) -> AdamWState:
    """Pieces as one state, at the version of the last."""
    whole = {name: torch.cat([part.tensors()[name] for part in parts]) for name in parts[0].tensors()}
    return AdamWState(**whole, version=parts[-1].version)


def log_of(run: Trace, piece: slice = slice(None)) -> dict[int, tuple[torch.Tensor, Hyper]]:
    """What is logged of a piece in all steps."""
    return {version: (grad[piece], run.hypers[version]) for version, grad in run.grads.items()}
