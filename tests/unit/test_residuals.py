"""Rollback by residuals: exact where arithmetic alone is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.adamw import Trace, bits_equal, noise, trace
from zo_lightning.drain.adamw import AdamWState, Hyper
from zo_lightning.drain.errors import DrainError
from zo_lightning.drain.residuals import compress, decompress, residuals, undo_exactly

COUNT = 20_001
PREIMAGES = 0.83  # bits for each parameter and step that no code can do without
GRADIENT = 16.0  # bits of a bfloat16


def walked_back(run: Trace, start: int, stop: int) -> float:
    """Go back by residuals alone, hold every state to the last bit, and return the bits for each parameter and step."""
    state, size = run.state(start), 0
    for version in range(start, stop, -1):
        step = run.grads[version], run.hypers[version]
        data = compress(residuals(run.states[version - 1], run.states[version], *step))
        undo_exactly(state, *step, decompress(data))
        assert bits_equal(state, run.states[version - 1])
        size += len(data)
    return 8 * size / (start - stop) / COUNT


STEADY = noise(COUNT, 66)
SPIKE = [grad * (1000 if step == 57 else 1) for step, grad in enumerate(STEADY)]
OVERFLOW = [grad * (1e30 if step == 57 else 1) for step, grad in enumerate(STEADY)]
SPARSE = [grad * (torch.arange(COUNT) % 50 == step % 50) for step, grad in enumerate(STEADY)]


@pytest.mark.parametrize(
    ("name", "grads", "start", "highest"),
    [
        ("steady", STEADY, 66, 2.8),
        ("spike x1000", SPIKE, 66, 4.2),
        ("cold start to t=0", STEADY[:16], 16, 4.0),
        ("sparse", SPARSE, 66, 2.8),
        ("overflow", OVERFLOW, 66, 10.0),
    ],
)
def test_sixteen_steps_back_are_bitwise(name: str, grads: list[torch.Tensor], start: int, highest: float) -> None:
    bits = walked_back(trace(grads), start, start - 16)
    print(f"{name}: {bits:.2f} bits per parameter and step; at least {PREIMAGES}, a bf16 gradient has {GRADIENT:.0f}")
    assert bits < highest


def test_a_skipped_step_goes_back() -> None:
    old = AdamWState(**dict.fromkeys(("param", "exp_avg", "exp_avg_sq"), torch.ones(5)), version=3)
    new = old.clone()
    new.version = 4
    step = torch.full((5,), torch.nan), Hyper(lr=1.0, betas=(0.9, 0.9), eps=1e-8, weight_decay=0, t=3, skipped=True)
    packed = residuals(old, new, *step)
    assert len(packed) == 0
    undo_exactly(new, *step, packed)
    assert bits_equal(new, old)


@pytest.mark.parametrize("kernel", ["foreach", "fused"])
def test_the_kernel_does_not_matter(kernel: str) -> None:
    bits = walked_back(trace(STEADY, kernel=kernel), 66, 58)
    print(f"{kernel}: {bits:.2f} bits per parameter and step")
    assert bits < 3.5


def test_a_processor_with_other_roundings_goes_back_to_the_same_bits(tmp_path: Path) -> None:
    """Without fused multiply-add torch's steps have other bits forward, and the same ones back."""
    run = trace(STEADY[:20])
    step = run.grads[20], run.hypers[20]
    packed = residuals(run.states[19], run.states[20], *step)
    torch.save((run.states[20].tensors(), step[0], packed), tmp_path / "new.pt")
    code = f"""
import torch
from zo_lightning.drain.adamw import AdamWState, Hyper
from zo_lightning.drain.residuals import undo_exactly

tensors, grad, packed = torch.load("new.pt")
state = AdamWState(**tensors, version=20)
undo_exactly(state, grad, {step[1]!r}, packed)
torch.save(state.tensors(), "old.pt")
print(torch.backends.cpu.get_cpu_capability())
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    print(f"here {torch.backends.cpu.get_cpu_capability()}, there {done.stdout.strip()}")
    assert bits_equal(AdamWState(**torch.load(tmp_path / "old.pt"), version=19), run.state(19))


def test_a_large_piece_goes_back() -> None:
    run = trace(noise(300_001, 3))
    state, step = run.state(3), (run.grads[3], run.hypers[3])
    undo_exactly(state, *step, residuals(run.states[2], run.states[3], *step))
    assert bits_equal(state, run.state(2))


def test_residuals_of_another_piece_are_refused() -> None:
    run = trace(noise(100, 3))
    step = run.grads[3], run.hypers[3]
    packed = residuals(run.states[2], run.states[3], *step)
    for wrong in (packed[:-1], torch.cat([packed, packed[:1]])):
        with pytest.raises(DrainError, match="another piece"):
            undo_exactly(run.state(3), *step, wrong)
