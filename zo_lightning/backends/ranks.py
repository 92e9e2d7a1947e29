"""The ranks of a data-parallel run. Plain values travel between them, tensors do not."""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

from zo_lightning.errors import RankError, ZOError

TIMEOUT = timedelta(minutes=30)  # for a rank that neither answers nor dies; engines of large models start slowly
_SLICE = timedelta(seconds=1)  # waiting is cut up, so that Ctrl-C and the failure of another rank end it
_PATIENCE = 20  # tenths of a second for the reason of a broken connection
_FAILED = "failed"


class Ranks:
    """One rank's view of all: ``gather`` is the one collective.

    The gloo group stands beside torch's default one, which an engine in this process takes for itself and destroys
    when it closes.

    Args:
        store: shared by all ranks.
        rank: this process.
        size: number of ranks.
        timeout: longest wait for the others.

    Raises:
        RankError: if a rank fails, or does not join in time.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta = TIMEOUT) -> None:
        self.rank, self.size = rank, size
        self._store, self._timeout = store, timeout
        self._join()
        self._group = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)

    def gather(self, kind: str, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the ranks.

        Args:
            kind: what is gathered; every rank must be at the same.
            value: plain containers and numbers.

        Raises:
            RankError: if another rank has failed, does not answer in time or is at something else.
        """
        sent = pickle.dumps((kind, value))
        sizes = [int(size) for size in self._all_gather(torch.tensor([len(sent)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(sent)] = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        received = zip(self._all_gather(padded), sizes, strict=True)
        messages = [pickle.loads(data[:size].numpy().tobytes()) for data, size in received]
        if any(other != kind for other, _ in messages):
            where = ", ".join(f"rank {rank} at {other}" for rank, (other, _) in enumerate(messages))
            raise RankError(f"the ranks are out of step: {where}")
        return [value for _, value in messages]

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one ends; what they wait for then raises."""
        if not isinstance(error, RankError):
            text = str(error) if isinstance(error, ZOError) else f"{type(error).__name__}: {error}"
            with suppress(RuntimeError):  # the store may be gone with its rank
                _set_once(self._store, f"rank {self.rank} failed: {text}")

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the other ranks of whatever error leaves the block."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _join(self) -> None:
        self._store.set(f"joined/{self.rank}", "")
        deadline = time.monotonic() + self._timeout.total_seconds()
        missing = list(range(self.size))
        while missing := [rank for rank in missing if not self._store.check([f"joined/{rank}"])]:
            self._raise_if_failed()
            if time.monotonic() > deadline:
                raise RankError(f"rank {missing[0]} did not join within {self._timeout}")
            time.sleep(0.05)

    def _all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        work = self._group.allgather([gathered], [own])  # type: ignore[attr-defined]  # torch's stubs lack it
        while not work.is_completed():
            with suppress(RuntimeError):
                work.wait(_SLICE)
            if not work.is_completed():
                self._raise_if_failed()
        try:
            work.wait()
        except RuntimeError as error:
            for _ in range(_PATIENCE):  # the connection breaks before anyone can say why
                self._raise_if_failed()
                time.sleep(0.1)
            raise RankError(f"another rank is gone or does not answer: {error}") from error
        return gathered

    def _raise_if_failed(self) -> None:
        try:
            text = self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else None
        except RuntimeError as error:
            raise RankError(f"rank 0 is gone: {error}") from error
        if text is not None:
            raise RankError(text)


@functools.lru_cache(maxsize=1)
def connect(rank: int, size: int, address: str, port: int) -> Ranks:
    """Join the run at an address; the same ranks again for the same run.

    Args:
        rank: this process.
        size: number of ranks.
        address: of rank 0.
        port: of rank 0.

    Raises:
        RankError: if a rank fails, or does not join in time.
    """
    # torchrun's agent holds the store already. An engine of ours, which meets nobody, would look for its own one there.
    agent = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None) == "True"
    store = _store(address, port, holds=rank == 0 and not agent)
    return Ranks(PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store), rank, size)


def report_failure(address: str, port: int, text: str) -> None:
    """Tell the ranks of the run at an address that one has failed, from outside of them."""
    with suppress(RuntimeError):  # the run may have ended
        _set_once(PrefixStore("0", _store(address, port, holds=False)), text)


def _store(address: str, port: int, *, holds: bool) -> Store:
    return TCPStore(address, port, is_master=holds, wait_for_workers=False, timeout=TIMEOUT)


def _set_once(store: Store, text: str) -> None:
    store.compare_set(_FAILED, "", text)
