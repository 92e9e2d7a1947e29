import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR

from zo_lightning.backends.fake import target
from zo_lightning.core import rng
from zo_lightning.core.types import Estimate, Point, Score
from zo_lightning.errors import ConfigError, DivergedError
from zo_lightning.queries import Antithetic
from zo_lightning.updates import Sgd


class Seen(Callback):
    """Keeps what the run logged and which records it committed."""

    def __init__(self, module):
        self.logged, self.records, self.estimates = [], [], []
        commit = module.backend.commit

        def keep(record):
            self.records.append(record)
            commit(record)

        module.backend.commit = keep

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.estimates.append(optimizer.estimate)

    def on_train_batch_end(self, trainer, module, *args):
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fit(run, module=None, batch_size=4, **settings):
    module = module or run.open_module()
    seen = Seen(module)
    trainer = run.trainer(callbacks=[*settings.pop("callbacks", []), seen], **settings)
    trainer.fit(module, run.data(batch_size))
    return trainer, module, seen


def test_forty_steps_count_alike_everywhere_and_learn(run):
    trainer, module, seen = fit(run, deterministic=True, limit_val_batches=1.0, check_val_every_n_epoch=1)
    torch.use_deterministic_algorithms(False)
    assert trainer.global_step == module.backend.version == int(module.version) == len(seen.records) == 40
    assert [record.step for record in seen.records] == [record.version for record in seen.records] == list(range(40))
    losses = [logged["train/loss"] for logged in seen.logged]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])
    assert trainer.callback_metrics["val/accuracy"] >= 0.9
    assert all(logged["train/tokens_per_second"] > 0 and logged["train/skipped"] == 0 for logged in seen.logged)
    coefficients = [record.terms[0][1] for record in seen.records]
    torch.testing.assert_close([logged["train/projected_grad"] for logged in seen.logged], coefficients)


def test_trajectory_is_that_of_lozo_written_by_hand(run):
    """Dense LoZO: V every 5 steps, U every step, theta += -lr * c * U V^T; only the draws are shared."""
    _, module, seen = fit(run)
    rows, cols, eps, lr, order = (6, 5), (4, 3), 1e-2, 0.3, rng.permutation(42, 50, epoch=0)
    theta = torch.zeros(39, dtype=torch.float64)

    def loss(theta, batch):
        pairs = [(len(e.options[e.label]), (theta - target(e, e.label, 39)).square().mean() / 2) for e in batch]
        return float(sum(w * x for w, x in pairs) / sum(w for w, _ in pairs))

    for step in range(40):
        if step % 5 == 0:
            v = rng.normals(42, rng.ROLE_RIGHT, step=step // 5 % 4, index=0, counts=(8, 6))
        u = rng.normals(42, rng.ROLE_LEFT, step=step, index=0, counts=(12, 10))
        parts = zip(u.split([12, 10]), v.split([8, 6]), rows, cols, strict=True)
        d = torch.cat([(a.view(r, 2) @ b.view(c, 2).T).flatten() for a, b, r, c in parts]).double()
        place = step % 13
        if place == 0:
            order = rng.permutation(42, 50, epoch=step // 13)
        batch = [run.examples[i] for i in order[4 * place : 4 * place + 4]]
        plus, minus = loss(theta + eps * d, batch), loss(theta - eps * d, batch)
        c = (plus - minus) / (2 * eps)
        assert seen.records[step].terms[0][1] == pytest.approx(c, rel=1e-4, abs=1e-6)
        assert seen.logged[step]["train/loss"] == pytest.approx((plus + minus) / 2, rel=1e-5)
        theta -= lr * c * d
    torch.testing.assert_close(module.backend.theta(Point(version=40)), theta, rtol=1e-4, atol=1e-5)


def test_accumulating_two_batches_is_the_double_batch_ragged_window_included(run):
    # 13 micro-batches of 4 an epoch: six windows of two and one of a single ragged micro-batch
    half, half_module, _ = fit(run, accumulate_grad_batches=2, max_steps=21)
    whole, whole_module, _ = fit(run, batch_size=8, max_steps=21)
    assert half.global_step == whole.global_step == 21 and half.current_epoch == whole.current_epoch
    snapshots = half_module.backend.snapshot(), whole_module.backend.snapshot()
    assert snapshots[0]["version"] == 21
    torch.testing.assert_close(snapshots[0]["left"], snapshots[1]["left"], rtol=0, atol=1e-6)


def test_scheduler_steps_once_a_step_and_its_rate_is_committed(run):
    module = run.open_module(scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step))
    logger = CSVLogger(run.root)
    callbacks = [LearningRateMonitor("step")]
    _, _, seen = fit(run, module, max_steps=6, accumulate_grad_batches=2, callbacks=callbacks, logger=logger)
    assert [record.lr for record in seen.records] == [0.3 * 0.5**step for step in range(6)]
    logger.save()
    assert "lr-ZOOptimizer" in logger.experiment.metrics_keys
    assert {"train/loss", "train/projected_grad", "train/skipped"} <= set(logger.experiment.metrics_keys)


@pytest.mark.parametrize(("algorithm", "limit"), [("norm", 0.05), ("value", 0.05), (None, 0.05), ("norm", 1e9)])
def test_clipping_bounds_the_applied_projected_gradient(run, algorithm, limit):
    _, _, seen = fit(run, max_steps=8, gradient_clip_val=limit, gradient_clip_algorithm=algorithm)
    for record, estimate in zip(seen.records, seen.estimates, strict=True):
        (_, applied), (_, measured) = record.terms[0], estimate.terms[0]
        assert applied == pytest.approx(math.copysign(min(abs(measured), limit), measured))


def test_clipping_by_norm_scales_all_terms_together(run):
    module = run.module()
    module.backend.open(run.layout, module.method.direction, module.method.update, module.bank)
    optimizer = module.configure_optimizers()
    key = module.method.direction.keys(seed=1, step=0)[0]
    optimizer._estimate = Estimate(terms=((key, 3.0), (replace(key, index=1), -4.0)), loss=1.0)
    optimizer.clip(2.5, "norm")
    assert [c for _, c in optimizer.estimate.terms] == [1.5, -2.0]
    optimizer.clip(1.7, "value")
    assert [c for _, c in optimizer.estimate.terms] == [1.5, -1.7]


def test_checkpoint_callback_saves_at_every_step(run):
    saver = ModelCheckpoint(run.root, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    fit(run, max_steps=5, accumulate_grad_batches=2, callbacks=[saver], enable_checkpointing=True)
    assert sorted(path.stem for path in run.root.glob("*.ckpt")) == [f"step={step}" for step in range(1, 6)]


def test_early_stopping_and_val_check_interval(run):
    steps = []

    class Validations(Callback):
        def on_validation_end(self, trainer, module):
            steps.append(trainer.global_step)

    stop = EarlyStopping("val/loss", mode="max", patience=1)  # learning is what stops it
    trainer, _, _ = fit(run, callbacks=[stop, Validations()], limit_val_batches=1.0, val_check_interval=3)
    assert steps[:2] == [3, 6] and trainer.global_step == 6


def test_debugging_switches_and_limits(run):
    assert fit(run, fast_dev_run=3)[0].global_step == 3
    assert fit(run, max_time={"seconds": 0})[0].global_step == 0
    assert fit(run, max_steps=-1, max_epochs=2)[0].global_step == 26
    batches = []

    class Batches(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            batches.append(batch)

    fit(run, overfit_batches=2, max_steps=6, callbacks=[Batches()])
    assert len(set(batches)) == 2 and batches[:2] * 3 == batches


def test_a_progress_bar_shows_the_loss(run, capsys):
    fit(run, max_steps=2, enable_progress_bar=True)
    assert "train/loss" in capsys.readouterr().out


def test_the_module_says_what_is_frozen_and_what_is_learned(run):
    assert "frozen base quadratic: 39 parameters; bank of rank 8 (4 slots, cyclic)" in run.module().extra_repr()


@pytest.mark.parametrize("loss", ["gold", "candidates"])
def test_validation_loss_is_the_weighted_mean_over_all_examples(run, loss):
    module = run.open_module(objective=Score(loss=loss))
    trainer = run.trainer(limit_val_batches=1.0)
    (metrics,) = trainer.validate(module, run.data(num_dev=50), verbose=False)  # 12 batches of 4 and one of 2
    assert set(metrics) == {"val/loss", "val/accuracy"}
    request = Antithetic(eps=1.0).plan(module.method.direction.keys(seed=1, step=0), run.examples, 0, Score(loss=loss))[
        0
    ]
    (whole,) = module.backend.evaluate([replace(request, point=Point(version=0))])
    assert metrics["val/loss"] == pytest.approx(whole.value, rel=1e-12)
    right = sum(s.index(max(s)) == e.label for s, e in zip(whole.scores, run.examples, strict=True))
    assert metrics["val/accuracy"] == pytest.approx(right / 50)
    (tested,) = trainer.test(module, run.data(num_dev=50), verbose=False)
    assert tested["test/loss"] == metrics["val/loss"] and tested["test/accuracy"] == metrics["val/accuracy"]


def changed(wrapped, at, change):
    """A backend whose answers to the evaluations numbered ``at`` go through ``change``."""

    class Changed(wrapped):
        def evaluate(self, requests):
            self.calls.append("evaluate")
            answers = self.inner.evaluate(requests)
            return tuple(map(change, answers)) if len(self.calls) - 1 in at else answers

    return Changed()


def nan_losses(seen):
    return replace(seen, losses=(math.nan,) * len(seen.losses))


def test_ties_go_to_the_first_option_and_nan_scores_are_wrong(run, wrapped):
    ties = changed(wrapped, {0, 1, 2}, lambda seen: replace(seen, scores=((1.0, 1.0),) * len(seen.scores)))
    (metrics,) = run.trainer(limit_val_batches=1.0).validate(run.open_module(ties), run.data(), verbose=False)
    assert metrics["val/accuracy"] == pytest.approx(0.5)  # the even examples
    nans = changed(wrapped, {0}, lambda seen: replace(nan_losses(seen), scores=((math.nan, 1.0),) * len(seen.scores)))
    (metrics,) = run.trainer(limit_val_batches=1.0).validate(run.open_module(nans), run.data(num_dev=4), verbose=False)
    assert math.isnan(metrics["val/loss"]) and metrics["val/accuracy"] == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_skips_its_step(run, wrapped, bad):
    backend = changed(wrapped, {3, 7}, lambda seen: replace(seen, losses=(bad, *seen.losses[1:])))
    trainer, module, seen = fit(run, run.open_module(backend), max_steps=10, gradient_clip_val=1.0)
    assert trainer.global_step == module.backend.version == 10
    assert [record.step for record in seen.records if record.skipped] == [3, 7]
    assert all(not record.terms for record in seen.records if record.skipped)
    assert [logged["train/skipped"] for logged in seen.logged] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert trainer.optimizers[0].num_skipped == 2


def test_a_bad_micro_batch_skips_its_whole_window(run, wrapped):
    backend = changed(wrapped, {2}, nan_losses)
    _, _, seen = fit(run, run.open_module(backend), max_steps=4, accumulate_grad_batches=2)
    assert [record.skipped for record in seen.records] == [False, True, False, False]


def test_many_skipped_steps_in_a_row_end_the_run(run, wrapped):
    backend = changed(wrapped, {*range(2, 6), *range(7, 99)}, nan_losses)
    with pytest.raises(DivergedError, match=r"update\.lr.*query\.eps"):
        fit(run, run.open_module(backend, max_skipped=5))
    assert backend.version == 12


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-true", "64-true"])
def test_another_precision_is_refused_before_the_backend_opens(run, precision):
    module = run.module()
    module.backend.open = lambda *args: pytest.fail("opened")
    with pytest.raises(ConfigError, match=r"trainer\.precision.*backend\.dtype"):
        run.trainer(precision=precision).fit(module, run.data())


def test_a_method_that_the_backend_cannot_run_is_refused_before_it_opens(run):
    module = run.module()
    module.backend.capabilities = replace(module.backend.capabilities, max_points=1)
    module.backend.open = lambda *args: pytest.fail("opened")
    with pytest.raises(ConfigError, match=r"backend\.max_points"):
        run.trainer().fit(module, run.data())


def test_another_module_is_refused(run):
    class Other(LightningModule):
        def training_step(self, batch, batch_idx):
            return None

        def configure_optimizers(self):
            return None

    with pytest.raises(ConfigError, match="ZOModule"):
        run.trainer().fit(Other(), run.data())


def counting(wrapped):
    class Counting(wrapped):
        def open(self, *args):
            self.calls.append("open")
            self.inner.open(*args)

        def close(self):
            self.calls.append("close")
            self.inner.close()

    return Counting()


def test_the_strategy_closes_what_it_opened_and_the_factors_outlive_it(run, wrapped):
    backend = counting(wrapped)
    module, trainer = run.module(backend), run.trainer()
    trainer.fit(module, run.data())
    assert backend.calls == ["open", "close"] and not backend.is_open
    trainer.save_checkpoint(run.root / "fitted.ckpt")
    (metrics,) = run.trainer().test(module, run.data(), verbose=False)
    assert backend.calls == ["open", "close"] * 2
    assert metrics["test/accuracy"] >= 0.9
    trainer.save_checkpoint(run.root / "after.ckpt")
    for name in ("fitted.ckpt", "after.ckpt"):
        resumed = run.open_module()
        run.trainer().validate(resumed, run.data(), ckpt_path=run.root / name, verbose=False)
        assert resumed.backend.version == 40


def test_an_open_backend_is_leased_and_failures_close_only_owned_ones(run, wrapped):
    class Boom(Callback):
        def on_train_batch_end(self, *args):
            raise RuntimeError("boom")

    leased, owned = counting(wrapped), counting(wrapped)
    for module in (run.open_module(leased), run.module(owned)):
        with pytest.raises(RuntimeError, match="boom"):
            run.trainer(callbacks=[Boom()]).fit(module, run.data())
    assert leased.calls == ["open"] and owned.calls == ["open", "close"]


@pytest.mark.parametrize("accelerator", ["auto", "cpu"])
def test_lightning_sees_the_cpu(run, accelerator):
    trainer = run.trainer(accelerator=accelerator, max_steps=1)
    trainer.fit(run.module(), run.data())
    assert trainer.strategy.root_device.type == "cpu" and type(trainer.accelerator).__name__ == "CPUAccelerator"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlusThenMinus:
    """Asks the minus side only after it has seen the plus side."""

    eps: float
    max_points: int = field(default=1, init=False)
    provides: frozenset[str] = field(default=frozenset({"antithetic pairs"}), init=False)

    def plan(self, keys, examples, version, objective):
        return Antithetic(eps=self.eps).plan(keys, examples, version, objective)[::2]

    def follow(self, requests, observations):
        if len(observations) > 1:
            return ()
        ((key, _),) = requests[0].point.terms
        (request,) = requests
        return Antithetic(eps=self.eps).plan((key,), request.examples, request.point.version, request.objective)[1:]


def test_a_query_may_depend_on_earlier_answers(run):
    _, one, _ = fit(run)
    _, two, _ = fit(run, run.open_module(query=PlusThenMinus(eps=1e-2)))
    assert torch.equal(one.backend.snapshot()["left"], two.backend.snapshot()["left"])


def test_the_window_is_empty_after_a_step_and_the_run_holds_no_batch(run):
    trainer, module, _ = fit(run, max_steps=3)
    optimizer = trainer.optimizers[0]
    assert not optimizer._requests and not optimizer._observations and optimizer._estimate is None
    assert module.take_answers() == ((), (), 0)


def test_a_fitted_module_trains_on_in_a_new_trainer(run):
    module = run.open_module()
    run.trainer(max_steps=10).fit(module, run.data())
    trainer = run.trainer(max_steps=5)
    trainer.fit(module, run.data())
    assert trainer.global_step == 5 and module.backend.version == 15


def test_learning_rate_zero_changes_nothing(run):
    _, module, _ = fit(run, run.open_module(update=Sgd(lr=0.0)), max_steps=3)
    assert not module.backend.snapshot()["left"].any()


def test_strategy_is_registered_by_name():
    assert Trainer(strategy="zo", logger=False).strategy.strategy_name == "zo"


def test_validate_fit_validate_test_as_the_command_line_does(run):
    module, trainer = run.open_module(), run.trainer(limit_val_batches=1.0, check_val_every_n_epoch=1)
    (before,) = trainer.validate(module, run.data(), verbose=False)
    trainer.fit(module, run.data())
    (after,) = trainer.validate(module, run.data(), verbose=False)
    (tested,) = trainer.test(module, run.data(), verbose=False)
    assert after["val/loss"] < before["val/loss"] and tested["test/loss"] == after["val/loss"]
    assert module.backend.version == trainer.global_step == 40
