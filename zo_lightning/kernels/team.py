"""Run a compiled loop on the OpenMP threads that torch already has.

Numba's own thread pools would stand beside torch's: idle threads of each spin for a while and take the cores from the
other. So a loop is a C function (``numba.cfunc``) that libgomp, the library torch brings, calls on its team.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

thread_number = types.ExternalFunction("omp_get_thread_num", types.int32())
num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


@functools.cache
def libgomp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it is GNU's."""
    import torch  # noqa: F401  # loads it

    loaded = ctypes.CDLL(None)
    return loaded if hasattr(loaded, "GOMP_parallel") else None


def run(loop: Any, arguments: np.ndarray) -> None:
    """Call ``loop(arguments)`` once in every thread of the team, and wait.

    Args:
        loop: a ``numba.cfunc`` of one pointer.
        arguments: int64, what the loop unpacks: pointers and sizes.
    """
    gomp = libgomp()
    assert gomp is not None
    gomp.GOMP_parallel(ctypes.c_void_p(loop.address), ctypes.c_void_p(arguments.ctypes.data), 0, 0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch's loops in the calling thread: a team of its own would spin against that of the main thread."""
    import torch

    before = torch.get_num_threads()  # which also gives a new thread torch's number, once
    if (gomp := libgomp()) is None:
        yield
        return
    gomp.omp_set_num_threads(1)  # this thread's alone; torch's own setting would be every later thread's too
    try:
        yield
    finally:
        gomp.omp_set_num_threads(before)


@intrinsic
def pointer(context: Any, address: Any) -> Any:
    """An int64 as the pointer that ``numba.carray`` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate
