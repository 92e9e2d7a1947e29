"""``output += (input @ right.T) @ left`` for runs of tokens: what low-rank factors add to a linear layer.

A few rank columns cost a matrix product library several passes over the output; here each token's row is read and
written once, while it is in the cache. Many columns are a library's job.

Shape suffixes: T tokens, I inputs of one linear, O its outputs, J and Q all matrices' inputs and outputs, C columns,
A adapters. A part is one of the matrices that an engine has fused into one linear.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from zo_lightning.kernels import team
from zo_lightning.kernels.cache import CAN_KEEP

MAX_COLUMNS = 8  # beyond, the library's product is faster


class Part(NamedTuple):
    """Where a matrix begins: in all inputs, in all outputs and in the linear's output; and its number of outputs."""

    first_input: int
    first_output: int
    first_row: int
    num_rows: int


def table(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Parts, or runs of (adapter, first token, last token + 1), as the loop reads them: int64, one in each row."""
    return np.array(list(rows), np.int64)


def add_low_rank(
    output_TO: torch.Tensor,
    input_TI: torch.Tensor,
    right_CJ: torch.Tensor,
    left_ACQ: torch.Tensor,
    parts: np.ndarray,
    runs: np.ndarray,
) -> None:
    """Add to each run's rows what its adapter's factors make of its inputs, in place.

    Args:
        output_TO: the linear's output.
        input_TI: the linear's input.
        right_CJ: float32, the right factors of all matrices, the same for all adapters.
        left_ACQ: float32, the left factors of each adapter.
        parts: the linear's matrices, a ``table`` of ``Part``.
        runs: tokens by adapter, a ``table`` of (adapter, first token, last token + 1).

    Examples:
        >>> output, part = torch.zeros(3, 2), Part(first_input=0, first_output=0, first_row=0, num_rows=2)
        >>> left = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
        >>> add_low_rank(output, torch.ones(3, 4), torch.ones(1, 4), left, table([part]), table([(0, 0, 1), (1, 2, 3)]))
        >>> output.tolist()
        [[4.0, 8.0], [0.0, 0.0], [12.0, 16.0]]
    """
    compiled = (
        right_CJ.shape[0] <= MAX_COLUMNS
        and output_TO.dtype == input_TI.dtype == torch.float32
        and output_TO.device.type == "cpu"
        and all(tensor.is_contiguous() for tensor in (output_TO, input_TI, right_CJ, left_ACQ))
        and team.libgomp() is not None
    )
    (_in_one_pass if compiled else _by_products)(output_TO, input_TI, right_CJ, left_ACQ, parts, runs)


def _by_products(
    output_TO: torch.Tensor,
    input_TI: torch.Tensor,
    right_CJ: torch.Tensor,
    left_ACQ: torch.Tensor,
    parts: np.ndarray,
    runs: np.ndarray,
) -> None:
    inputs = input_TI.float()
    for i, o, row, rows in parts.tolist():
        hidden_TC = inputs @ right_CJ[:, i : i + inputs.shape[1]].T
        for adapter, start, end in runs.tolist():
            part = output_TO[start:end, row : row + rows]
            left_CO = left_ACQ[adapter, :, o : o + rows]
            if part.dtype == torch.float32:
                part.addmm_(hidden_TC[start:end], left_CO)
            else:
                part += hidden_TC[start:end] @ left_CO


def _in_one_pass(
    output_TO: torch.Tensor,
    input_TI: torch.Tensor,
    right_CJ: torch.Tensor,
    left_ACQ: torch.Tensor,
    parts: np.ndarray,
    runs: np.ndarray,
) -> None:
    tensors = (output_TO, input_TI, right_CJ, left_ACQ)
    addresses = [tensor.data_ptr() for tensor in tensors]
    sizes = [size for tensor in tensors for size in tensor.shape]
    tables = [parts.ctypes.data, len(parts), runs.ctypes.data, len(runs)]
    team.run(_loop(), np.array([*addresses, *sizes, *tables], np.int64))


@functools.cache
def _loop() -> Any:
    """Compiled at its first use: its symbols are libgomp's, which not every machine has."""
    return cfunc(types.void(types.voidptr), cache=CAN_KEEP)(_add_share)


@njit(fastmath=True, error_model="numpy", cache=CAN_KEEP)
def _add_rows(output_TO, input_TI, right_CJ, left_ACQ, parts, runs, first, last):
    columns, inputs = right_CJ.shape[0], input_TI.shape[1]
    for run in range(runs.shape[0]):
        left_CQ = left_ACQ[runs[run, 0]]
        for t in range(max(first, runs[run, 1]), min(last, runs[run, 2])):
            x = input_TI[t]
            for part in range(parts.shape[0]):
                i, o, row, rows = parts[part, 0], parts[part, 1], parts[part, 2], parts[part, 3]
                y = output_TO[t][row : row + rows]
                # Two columns at a time: both products and the sum then read each element once.
                for c in range(0, columns - 1, 2):
                    v, w = right_CJ[c][i : i + inputs], right_CJ[c + 1][i : i + inputs]
                    g, h = np.float32(0), np.float32(0)
                    for k in range(inputs):
                        g += x[k] * v[k]
                        h += x[k] * w[k]
                    a, b = left_CQ[c][o : o + rows], left_CQ[c + 1][o : o + rows]
                    for k in range(rows):
                        y[k] += g * a[k] + h * b[k]
                if columns % 2:
                    v = right_CJ[columns - 1][i : i + inputs]
                    g = np.float32(0)
                    for k in range(inputs):
                        g += x[k] * v[k]
                    a = left_CQ[columns - 1][o : o + rows]
                    for k in range(rows):
                        y[k] += g * a[k]


def _add_share(arguments):
    a = carray(arguments, (17,), np.int64)
    output_TO = carray(team.pointer(a[0]), (a[4], a[5]), np.float32)
    input_TI = carray(team.pointer(a[1]), (a[6], a[7]), np.float32)
    right_CJ = carray(team.pointer(a[2]), (a[8], a[9]), np.float32)
    left_ACQ = carray(team.pointer(a[3]), (a[10], a[11], a[12]), np.float32)
    parts = carray(team.pointer(a[13]), (a[14], 4), np.int64)
    runs = carray(team.pointer(a[15]), (a[16], 3), np.int64)
    thread, threads = team.thread_number(), team.num_threads()
    first, last = a[4] * thread // threads, a[4] * (thread + 1) // threads
    _add_rows(output_TO, input_TI, right_CJ, left_ACQ, parts, runs, first, last)
