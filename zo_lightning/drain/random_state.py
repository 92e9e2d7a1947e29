"""The states of the generators that a training step may draw from, as tensors, for a checkpoint without pickles."""

from __future__ import annotations

import random

import numpy
import torch

State = dict[str, torch.Tensor | list[torch.Tensor]]


def collect() -> State:
    """States of Python's, NumPy's and torch's global generators.

    Examples:
        >>> state = collect()
        >>> drawn = random.random(), numpy.random.rand(), torch.rand(())
        >>> restore(state)
        >>> drawn == (random.random(), numpy.random.rand(), torch.rand(()))
        True
    """
    _, python, _ = random.getstate()
    name, keys, position, _, _ = numpy.random.get_state()
    assert name == "MT19937"  # the only one that the global generator can be
    return {
        "python": torch.tensor(python),
        "numpy": torch.tensor([*map(int, keys), position]),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: State) -> None:
    """Put the generators back where ``collect`` saw them. A Gaussian that NumPy or Python kept for later is lost."""
    python, numpy_state, cuda = state["python"], state["numpy"], state["cuda"]
    assert isinstance(python, torch.Tensor) and isinstance(numpy_state, torch.Tensor)
    assert isinstance(state["torch"], torch.Tensor) and isinstance(cuda, list)
    random.setstate((3, tuple(python.tolist()), None))
    *keys, position = numpy_state.tolist()
    numpy.random.set_state(("MT19937", numpy.array(keys, numpy.uint32), position, 0, 0.0))
    torch.set_rng_state(state["torch"])
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
