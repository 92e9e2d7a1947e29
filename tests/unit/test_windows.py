"""The trainer's side of windows, with a host process whose every word the test decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from zo_lightning.drain.capture import Capture
from zo_lightning.drain.messages import Report, Setup
from zo_lightning.drain.windows import Traffic, Windows

SHARDS = 4
STALL = 0.1


class Puppet:
    """A host process that frees slots and reports when it is told to."""

    def __init__(self, num_slots: int) -> None:
        self.ready = self.alive = True
        self.report, self.num_slots, self.notes = Report(), num_slots, list[Any]()
        self.waits: list[float] = []
        self.when_waited_for: Callable[[], None] = lambda: None

    @property
    def has_slot(self) -> bool:
        return self.num_slots > 0

    def take_slot(self) -> int:
        self.num_slots -= 1
        return 0

    def send(self, slot: int, note: Any, tensors_N: Sequence[torch.Tensor]) -> bool:
        self.notes.append(note)
        return True

    def poll(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.when_waited_for()


@pytest.fixture
def windows() -> Callable[..., tuple[Windows, Puppet, Traffic, Callable[[int], None]]]:
    def make(num_slots: int = 100) -> tuple[Windows, Puppet, Traffic, Callable[[int], None]]:
        param = torch.nn.Parameter(torch.ones(400))
        optimizer = torch.optim.AdamW([param])
        param.grad = torch.ones(400)
        optimizer.step()
        capture = Capture(optimizer, [("w", param)])
        setup = Setup(
            parameters=capture.parameters,
            num_shards=SHARDS,
            target="newest",
            rollback="guarded",
            tolerance=1.0,
            bitwise=True,
            folder=Path(),
            mirrors=(),
            keep=2,
            slot_bytes=0,
            depth=2,
        )
        host, traffic = Puppet(num_slots), Traffic()
        made = Windows(host, setup, capture, dict, STALL, traffic)  # type: ignore[arg-type]

        def train(steps: int) -> None:
            for _ in range(steps):
                optimizer.step()
                made.after_step()
                made.batch_end(0)

        return made, host, traffic, train

    return make


def test_a_window_counts_once_it_is_whole(windows) -> None:
    made, host, traffic, train = windows()
    assert made.may_begin()
    made.begin()
    train(SHARDS - 1)
    assert traffic.sent == 0 and not made.may_begin()
    train(1)
    assert traffic.sent == 1 and len(host.notes) == SHARDS + 1


def test_a_window_whose_checkpoint_found_no_slot_is_left_out_and_does_not_count(windows) -> None:
    """Counted, it would be waited for until the end: the host process never hears of it."""
    made, host, traffic, train = windows(num_slots=SHARDS)
    for left_out in range(1, 4):
        assert made.may_begin(), "earlier ones are still counted"
        made.begin()
        train(SHARDS)
        assert made.left_out and (traffic.sent, traffic.abandoned) == (0, left_out)
        host.num_slots = SHARDS
    host.num_slots = SHARDS + 1
    made.begin()
    train(SHARDS)
    assert not made.left_out and traffic.sent == 1


def test_a_host_process_that_is_behind_is_waited_for_once_a_window(windows) -> None:
    made, host, traffic, train = windows()
    for _ in range(2):
        assert made.may_begin()
        made.begin()
        train(SHARDS)

    host.when_waited_for = lambda: time.sleep(STALL)
    assert not made.may_begin()
    assert host.waits == [STALL]
    assert not made.may_begin(), "nothing was said meanwhile"
    assert host.waits == [STALL], "the time of this window is used up"
    assert traffic.stalled_seconds >= STALL

    host.report = Report(saves=1)
    assert made.may_begin()


def test_the_wait_ends_with_the_word_that_a_window_is_saved(windows) -> None:
    made, host, traffic, train = windows()
    for _ in range(2):
        made.begin()
        train(SHARDS)
    host.when_waited_for = lambda: setattr(host, "report", Report(saves=1))
    assert made.may_begin()
    assert host.waits == [STALL] and traffic.stalled_seconds < STALL
