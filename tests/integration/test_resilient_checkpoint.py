"""``checkpoint=resilient`` on the fake backend: what a run has acknowledged is never asked again."""

import math
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback

from zo_lightning.callbacks.interrupt_checkpoint import InterruptCheckpoint
from zo_lightning.callbacks.resilient_checkpoint import ResilientCheckpoint
from zo_lightning.checkpoint.files import LocalFiles
from zo_lightning.checkpoint.journal import read_journal
from zo_lightning.errors import ConfigError, DivergedError, JournalError, RankError
from zo_lightning.updates import Sgd

STORE, JOURNAL = "store", "journal/rank0"


class Cut(Callback):
    """Ends the run as hard as it can be ended in this process: nothing is saved, nothing is closed."""

    def __init__(self, step, hook="on_train_batch_end"):
        self.step = step
        setattr(self, hook, self.hooked)

    def hooked(self, trainer, *args):
        if trainer.global_step == self.step:
            raise RuntimeError("cut")


class Steps(Callback):
    """What a run shows of its steps."""

    def __init__(self):
        self.losses, self.rates = {}, {}

    def on_train_batch_end(self, trainer, *args):
        self.losses[trainer.global_step] = float(trainer.callback_metrics["train/loss"])
        self.rates[trainer.global_step] = trainer.optimizers[0].param_groups[0]["lr"]


@pytest.fixture
def counted(wrapped):
    class Counted(wrapped):
        """Counts the questions of training steps by version."""

        def __init__(self):
            super().__init__()
            self.asked = []

        def evaluate(self, requests):
            if requests[0].point.terms:
                self.asked.append(self.inner.version)
            return self.inner.evaluate(requests)

    return Counted


def keeper(run, **settings):
    return ResilientCheckpoint(run.root, **settings)


def fit(run, module, *callbacks, ckpt_path=None, **settings):
    settings = dict(max_steps=40, limit_val_batches=1, **settings)
    trainer = run.trainer(callbacks=list(callbacks), enable_checkpointing=True, **settings)
    trainer.fit(module, run.data(), ckpt_path=ckpt_path)
    return trainer


def cut(run, module, step, *callbacks, hook="on_train_batch_end", **settings):
    with pytest.raises(RuntimeError, match="cut"):
        fit(run, module, *callbacks, Cut(step, hook), **settings)


def left(module):
    return module.backend.snapshot()["left"]


def unbroken(run, **settings):
    module, steps = run.open_module(**settings.pop("module", {})), Steps()
    fit(run, module, steps, ResilientCheckpoint(run.root / "unbroken"), **settings)
    return module, steps


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("step", [1, 4, 5, 13, 14, 39])
def test_no_step_is_asked_twice(run, counted, step, accumulate):
    every, first, second, steps = counted(), counted(), counted(), Steps()
    whole, shown = unbroken(run, module=dict(backend=every), accumulate_grad_batches=accumulate)
    cut(run, run.open_module(first), step, keeper(run), accumulate_grad_batches=accumulate)
    module = run.open_module(second)
    start = run.root / STORE if step > 5 else None  # the cut comes before the snapshot
    trainer = fit(run, module, keeper(run), steps, ckpt_path=start, accumulate_grad_batches=accumulate)
    assert first.asked == [version for version in every.asked if version < step]
    assert second.asked == [version for version in every.asked if version >= step]
    assert trainer.global_step == module.backend.version == 40 and torch.equal(left(module), left(whole))
    assert len(steps.losses) >= 40 - step
    assert accumulate > 1 or steps.losses.items() <= shown.losses.items()  # a window's loss is its mean, kept as one


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_optimizer_step", "on_validation_batch_start"])
def test_a_run_cut_anywhere_goes_on_from_its_journal_alone(run, counted, hook):
    settings = dict(val_check_interval=3)
    whole, _ = unbroken(run, **settings)
    cut(run, run.open_module(), 9, keeper(run), hook=hook, **settings)
    shutil.rmtree(run.root / STORE)
    again = counted()
    module = run.open_module(again)
    fit(run, module, keeper(run), **settings)
    assert again.asked == list(range(9, 40)) and torch.equal(left(module), left(whole))


def test_schedules_and_skipped_steps_come_back(run, wrapped):
    class Nan(wrapped):
        def evaluate(self, requests):
            answers = self.inner.evaluate(requests)
            if self.inner.version not in (3, 4, 7) or len(requests) == 1:
                return answers
            return tuple(replace(seen, losses=(math.nan,) * len(seen.losses)) for seen in answers)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

    whole, shown = unbroken(run, module=dict(backend=Nan(), scheduler=schedule))
    cut(run, run.open_module(Nan(), scheduler=schedule), 8, keeper(run))
    module, steps = run.open_module(scheduler=schedule), Steps()  # what is skipped is known, not found again
    trainer = fit(run, module, keeper(run), steps)
    assert torch.equal(left(module), left(whole))
    assert trainer.optimizers[0].num_skipped == 3 and steps.rates == shown.rates


def test_a_diverged_run_stays_diverged(run, wrapped):
    class Nan(wrapped):
        def evaluate(self, requests):
            return tuple(replace(seen, losses=(math.nan,) * len(seen.losses)) for seen in self.inner.evaluate(requests))

    for _ in range(2):
        with pytest.raises(DivergedError):
            fit(run, run.open_module(Nan(), max_skipped=4), keeper(run))
    assert len(read_journal(run.root / JOURNAL).entries) == 4


def test_a_snapshot_that_is_ahead_of_the_journal_is_gone_on_from(run, counted):
    whole, _ = unbroken(run)
    cut(run, run.open_module(), 12, keeper(run))
    shutil.rmtree(run.root / "journal")
    again = counted()
    module = run.open_module(again)
    fit(run, module, keeper(run), ckpt_path=run.root / STORE)
    assert again.asked == list(range(10, 40)) and torch.equal(left(module), left(whole))
    assert sorted(read_journal(run.root / JOURNAL).entries) == list(range(10, 40))


def test_an_end_among_recorded_steps_leaves_the_newer_checkpoint(run):
    at_end = InterruptCheckpoint(run.root)
    cut(run, run.open_module(), 12, keeper(run), at_end)
    for step, saved in ((3, 12), (11, 12), (14, 14)):
        cut(run, run.open_module(), step, keeper(run), at_end)
        assert torch.load(at_end.path, weights_only=True)["global_step"] == saved


def test_a_fork_that_is_cut_at_once_goes_on(run, counted):
    cut(run, run.open_module(), 12, keeper(run))
    fork = ResilientCheckpoint(run.root / "fork")
    cut(run, run.open_module(), 13, fork, ckpt_path=run.root / STORE)
    again = counted()
    fit(run, run.open_module(again), ResilientCheckpoint(run.root / "fork"), ckpt_path=run.root / "fork" / "store")
    assert again.asked == list(range(13, 40))


def test_other_data_or_another_run_is_refused(run):
    cut(run, run.open_module(), 7, keeper(run))
    run.examples = run.examples[:3]
    with pytest.raises(JournalError, match=r"data\.batch_size"):
        fit(run, run.open_module(), keeper(run))
    with pytest.raises(JournalError, match="seed"):
        fit(run, run.open_module(seed=7), keeper(run))
    with pytest.raises(JournalError, match="method"):
        fit(run, run.open_module(update=Sgd(lr=0.1)), keeper(run))


def test_a_run_in_progress_is_not_joined(run):
    running = keeper(run)
    cut(run, run.open_module(), 7, running, Joins(run))


class Joins(Callback):
    """Tries to start the same run while it runs."""

    def __init__(self, run):
        self.run = run

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            with pytest.raises(JournalError, match="another process"):
                fit(self.run, self.run.open_module(), keeper(self.run))


def test_a_damaged_snapshot_is_named_and_an_older_one_is_gone_on_from(run, counted, caplog):
    whole, _ = unbroken(run)
    cut(run, run.open_module(), 23, keeper(run))
    newest = max((run.root / STORE / "manifests").iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    again = counted()
    module = run.open_module(again)
    fit(run, module, keeper(run), ckpt_path=run.root / STORE)
    assert again.asked == list(range(23, 40)) and torch.equal(left(module), left(whole))
    assert newest.name in caplog.text


def test_a_mirror_stands_in_for_what_is_bad(run, counted, caplog):
    whole, _ = unbroken(run)
    mirrored = dict(mirrors=[str(run.root / "mirror")])
    cut(run, run.open_module(), 23, keeper(run, **mirrored))
    for manifest in (run.root / STORE / "manifests").iterdir():
        manifest.write_bytes(b"bad")
    again = counted()
    module = run.open_module(again)
    fit(run, module, keeper(run, **mirrored), ckpt_path=run.root / STORE)
    assert again.asked == list(range(23, 40)) and torch.equal(left(module), left(whole))
    assert "step-000000000020.json" in caplog.text and "first step" not in caplog.text


def test_without_a_whole_snapshot_the_journal_is_gone_through(run, caplog):
    cut(run, run.open_module(), 12, keeper(run))
    checkpoint = keeper(run)
    assert checkpoint.restorable(run.root / STORE) == run.root / STORE
    for manifest in (run.root / STORE / "manifests").iterdir():
        manifest.write_bytes(b"bad")
    assert checkpoint.restorable(run.root / STORE) is None and "first step" in caplog.text


class FullStore(LocalFiles):
    """A disk that has room for the journal alone."""

    def create(self, path):
        if STORE in path.parts:
            raise OSError(28, "No space left on device", str(path))
        return super().create(path)


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_whose_journals_part_are_told(run, monkeypatch, other):
    trainer = run.trainer(max_steps=5, limit_val_batches=0, callbacks=[keeper(run)], enable_checkpointing=True)

    class Ranks:
        def gather(self, kind, chain):
            return [chain, chain ^ other]

    monkeypatch.setattr(type(trainer.strategy), "ranks", Ranks(), raising=False)
    monkeypatch.setattr(type(trainer), "world_size", 2)
    with pytest.raises(RankError, match="differ") if other else nullcontext():
        trainer.fit(run.open_module(), run.data())


def test_a_store_that_cannot_be_written_does_not_end_the_run(run):
    whole, _ = unbroken(run)
    module, checkpoint = run.open_module(), keeper(run, files=FullStore())
    fit(run, module, checkpoint)
    assert torch.equal(left(module), left(whole))
    assert checkpoint.status()["failures"] > 0 and checkpoint.status()["saves"] == 0


class SlowStore(LocalFiles):
    """A disk that snapshots have to wait for."""

    def create(self, path):
        if STORE in path.parts:
            time.sleep(0.05)
        return super().create(path)


def test_waiting_for_the_disk_is_no_part_of_what_the_journal_costs(run):
    checkpoint = keeper(run, every_n_steps=2, files=SlowStore())
    fit(run, run.open_module(), checkpoint)
    kept = checkpoint.keeper.kept()
    assert kept.stall > 0 and 0 < kept.snapshot_seconds < kept.tax


def test_snapshots_are_read_back(run):
    checkpoint = keeper(run, every_n_steps=10)
    fit(run, run.open_module(), checkpoint)
    status = checkpoint.status()
    assert status["last_saved_step"] == status["last_verified_step"] == 40 and status["failures"] == 0


class Lies(Callback):
    """Changes what the journal's records say, after they were applied."""

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 35:
            entries = trainer.optimizers[0].journal._entries
            (key, coefficient), *_ = entries[33].record.terms
            entries[33] = replace(entries[33], record=replace(entries[33].record, terms=((key, 2 * coefficient),)))


def test_a_snapshot_that_does_not_follow_from_the_journal_is_not_verified(run, caplog):
    checkpoint = keeper(run, every_n_steps=10)
    fit(run, run.open_module(), checkpoint, Lies())
    status = checkpoint.status()
    assert status["last_saved_step"] == 40 and status["failed_drills"] == 1
    assert status["last_verified_step"] < 40  # which of the others had a drill depends on the time it took
    assert "restore drill" in caplog.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(fsync="often"), "checkpoint.fsync"),
        (dict(keep=0), "checkpoint.keep"),
        (dict(every_n_steps=0), "checkpoint.every_n_steps"),
        (dict(max_stall=0.0), "checkpoint.max_stall"),
    ],
)
def test_bad_settings_are_refused_with_their_key(tmp_path, settings, named):
    with pytest.raises(ConfigError, match=named):
        ResilientCheckpoint(tmp_path, **settings)
