"""What a plan needs to know of the machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from zo_lightning.drain.ring import size_of

_SAMPLE_BYTES = 64 << 20


def bandwidth(tensors: Sequence[torch.Tensor]) -> float:
    """Bytes a second of copies to the CPU, the better of two, over a sample of some tensors."""
    sample: list[torch.Tensor] = []
    for tensor in tensors:
        if size_of(sample) < _SAMPLE_BYTES:
            sample.append(tensor.reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()])
    copies = [torch.empty_like(tensor, device="cpu") for tensor in sample]
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        torch._foreach_copy_(copies, sample)
        seconds.append(time.perf_counter() - started)
    return size_of(sample) / max(min(seconds), 1e-9)
