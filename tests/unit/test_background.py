"""Saves in the background: what training is told, and that it is neither stopped nor changed by them."""

from __future__ import annotations

import hashlib
import threading
import weakref

import pytest
import torch

from tests.stores import FailingFiles, Gate, full_disk, same, small_tree
from zo_lightning.checkpoint.background import BackgroundSaver, detached_copy
from zo_lightning.checkpoint.restore_drill import RestoreDrill
from zo_lightning.checkpoint.store import Store


def digest(tree):
    return hashlib.sha256(tree["state_dict"]["w"].numpy().tobytes()).hexdigest()


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def test_what_is_submitted_is_saved_and_verified(tmp_path):
    store = Store([tmp_path])
    saver = BackgroundSaver(store, drill=RestoreDrill(store, lambda loaded: digest(loaded.tree)), patience=60)
    for step in range(4):
        assert saver.submit(step, small_tree(step), digest(small_tree(step)))
    assert saver.close(60) and saver.close(60)
    status = saver.status()
    assert (status.saves, status.failures, status.dropped, status.incomplete) == (4, 0, 0, 0)
    assert status.last_saved_step == status.last_verified_step == 3 and status.seconds > 0
    assert not saver.submit(9, small_tree(9), "") and saver.status().dropped == 1


def test_a_copy_is_not_changed_by_what_follows():
    tree = small_tree(1) | {"nested": ([torch.ones(3)], {1, 2})}
    before, copy = small_tree(1), detached_copy(tree)
    assert same(copy, tree) and copy["state_dict"]["w"].stride() == tree["state_dict"]["w"].stride()
    for tensor in (tree["state_dict"]["w"], tree["nested"][0][0]):
        tensor.zero_()
    tree["callbacks"]["late"] = 1
    tree["nested"][1].add(3)
    copy_of_rest = {key: value for key, value in copy.items() if key != "nested"}
    assert same(copy_of_rest, before) and copy["nested"][0][0].sum() == 3 and copy["nested"][1] == {1, 2}
    transposed = torch.randn(3, 4).T.requires_grad_()
    assert detached_copy(transposed).stride() == (1, 4) and not detached_copy(transposed).requires_grad


def test_behind_a_slow_disk_the_newest_waits_and_the_rest_is_dropped(tmp_path, gate, caplog):
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(gate)))
    saver.submit(0, small_tree(0), "")
    assert gate.reached.wait(60)
    for step in range(1, 6):
        assert saver.submit(step, small_tree(step), "")  # returns although nothing moves
    assert saver.status().dropped == 4 and "step 4 was not saved" in caplog.text
    gate.open.set()
    assert saver.close(60)
    assert saver.status().saves == 2 and Store([tmp_path]).steps() == [0, 5]


def test_patience_waits_for_room_before_it_drops(tmp_path, gate):
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(gate)), patience=0.2)
    saver.submit(0, small_tree(0), "")
    assert gate.reached.wait(60)
    saver.submit(1, small_tree(1), "")
    saver.submit(2, small_tree(2), "")
    assert saver.status().dropped == 1
    threading.Timer(0.01, gate.open.set).start()
    saver._patience = 60
    assert saver.submit(3, small_tree(3), "") and saver.close(60)
    assert saver.status().dropped == 1 and saver.status().saves == 3


def test_a_close_that_takes_too_long_says_so(tmp_path, gate):
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(gate)))
    saver.submit(0, small_tree(0), "")
    assert gate.reached.wait(60)
    saver.submit(1, small_tree(1), "")
    assert not saver.close(0.05) and saver.status().dropped == 1


def test_a_save_that_fails_is_tried_again(tmp_path):
    left = [2]

    def fault(operation, path):
        if operation == "sync" and left[0]:
            left[0] -= 1
            full_disk(operation, path)

    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(fault)), pause=0.001)
    saver.submit(1, small_tree(1), "")
    assert saver.close(60) and saver.status().saves == 1 and saver.status().failures == 0
    assert same(Store([tmp_path]).load().tree, small_tree(1))


def test_a_save_that_keeps_failing_is_counted_and_the_next_goes_on(tmp_path, caplog):
    fault = [full_disk]
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(lambda *what: fault[0](*what))), pause=0.001)
    saver.submit(1, small_tree(1), "")
    assert saver.drain(60) and saver.status().failures == 1 and "No space left" in caplog.text
    fault[0] = lambda *what: None
    saver.submit(2, {"not": object()}, "")
    assert saver.drain(60) and saver.status().failures == 2 and "tree['not']" in caplog.text
    saver.submit(3, small_tree(3), "")
    assert saver.close(60) and saver.status().last_saved_step == 3


def test_the_end_of_the_run_waits_for_no_further_attempt(tmp_path):
    saver = BackgroundSaver(Store([tmp_path], files=FailingFiles(full_disk)), pause=30)
    saver.submit(1, small_tree(1), "")
    assert not saver.close(0.3)
    saver._thread.join(60)
    assert not saver._thread.is_alive() and saver.status().failures == 1


def test_the_drill_tells_another_digest_and_a_bad_file(tmp_path, caplog):
    store = Store([tmp_path])
    drill = RestoreDrill(store, lambda loaded: digest(loaded.tree))
    assert not drill.run() and "nothing to restore" in caplog.text
    store.save(1, small_tree(1), digest(small_tree(1)))
    assert drill.run() and drill.last_verified_step == 1
    store.save(2, small_tree(2), digest(small_tree(1)))
    assert not drill.run() and "step 2 comes back as" in caplog.text
    store.save(3, small_tree(3), digest(small_tree(3)))
    next((tmp_path / "manifests").glob("*3.json")).write_bytes(b"")
    assert not drill.run() and "no checkpoint of step 3" in caplog.text
    assert drill.last_verified_step == 1 and drill.failures == 4 - 1


class Drills(RestoreDrill):
    """Restore drills by a clock of their own, and the steps they have read; ``wait`` returns after the next."""

    def __init__(self, store, seconds):
        super().__init__(store, self._read, clock=lambda: self.now)
        self.now, self.steps, self._seconds, self._done = 0.0, [], seconds, threading.Semaphore(0)

    def _read(self, loaded):
        self.now += self._seconds
        self.steps.append(loaded.step)
        return digest(loaded.tree)

    def run(self):
        super().run()
        self._done.release()

    def wait(self):
        assert self._done.acquire(timeout=60)


def save(saver, step):
    saver.submit(step, small_tree(step), digest(small_tree(step)))
    assert saver.drain(60)


def test_drills_take_a_tenth_of_the_time_and_the_newest_save_has_one(tmp_path):
    store = Store([tmp_path])
    drill = Drills(store, seconds=100)
    saver = BackgroundSaver(store, drill=drill)
    save(saver, 1)
    drill.wait()  # at once
    drill.now += 899
    for step in (2, 3):
        save(saver, step)
    assert drill.steps == [1] and saver.status().last_verified_step == 1
    drill.now += 1
    save(saver, 4)
    drill.wait()
    save(saver, 5)
    assert saver.close(60) and saver.status().last_verified_step == 5
    assert drill.steps in ([1, 4, 5], [1, 3, 5])  # the saver may look at the clock before step 4 comes
    assert saver.close(60) and len(drill.steps) == 3


def test_a_save_that_nothing_follows_has_its_drill_when_there_is_time(tmp_path):
    store = Store([tmp_path])
    drill = Drills(store, seconds=0.01)
    saver = BackgroundSaver(store, drill=drill)
    save(saver, 1)
    drill.wait()
    save(saver, 2)
    drill.now += 1
    drill.wait()
    assert drill.steps == [1, 2] and saver.close(60) and drill.steps == [1, 2]


def test_a_drill_that_raises_stops_nothing(tmp_path, caplog):
    store = Store([tmp_path])
    saver = BackgroundSaver(store, drill=RestoreDrill(store, lambda loaded: loaded.tree["absent"]))
    for step in (1, 2):
        saver.submit(step, small_tree(step), "")
        assert saver.drain(60)
    assert saver.close(60) and saver.status().saves == 2 and saver.status().last_verified_step is None
    assert "could not be looked after" in caplog.text


def test_a_restore_that_fails_is_counted(tmp_path):
    store = Store([tmp_path])
    saver = BackgroundSaver(store, drill=RestoreDrill(store, lambda loaded: "another"))
    saver.submit(1, small_tree(1), digest(small_tree(1)))
    assert saver.close(60) and saver.status().failed_drills == 1


def test_a_tree_that_was_saved_is_let_go(tmp_path):
    saver, tree = BackgroundSaver(Store([tmp_path])), small_tree(1)
    gone = weakref.ref(tree["state_dict"]["w"])
    saver.submit(1, tree, "")
    assert saver.drain(60)
    del tree
    assert saver.close(60) and gone() is None
