import pytest

from zo_lightning.core.types import Batch
from zo_lightning.data import ExampleDataModule, ExampleLoader
from zo_lightning.errors import ConfigError, DataError


def epoch(loader, number):
    loader.sampler.set_epoch(number)
    return list(loader)


def test_batches_are_a_function_of_seed_epoch_and_place(small_examples):
    first, second = (ExampleLoader(small_examples, 4, seed=3, shuffle=True) for _ in range(2))
    assert epoch(first, 0) != epoch(first, 1)
    assert epoch(first, 5) == epoch(second, 5)  # whatever was asked before
    assert epoch(first, 5) != epoch(ExampleLoader(small_examples, 4, seed=4, shuffle=True), 5)


def test_an_epoch_has_every_example_once_and_a_ragged_last_batch(small_examples):
    batches = epoch(ExampleLoader(small_examples, 4, seed=3, shuffle=True), 2)
    assert all(isinstance(batch, Batch) for batch in batches)
    assert [len(batch.examples) for batch in batches] == [4] * 12 + [2]
    assert {e for batch in batches for e in batch.examples} == set(small_examples)
    assert len(ExampleLoader(small_examples, 4)) == 13


def test_without_shuffling_the_order_is_the_examples(small_examples):
    (batch,) = epoch(ExampleLoader(small_examples, 64), 9)
    assert batch.examples == small_examples


@pytest.mark.parametrize("done", range(14))
def test_a_restored_loader_goes_on_where_the_other_stood(small_examples, done):
    loader, other = (ExampleLoader(small_examples, 4, seed=3, shuffle=True) for _ in range(2))
    loader.sampler.set_epoch(1)
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
    other.load_state_dict(loader.state_dict())
    resumed = iter(other)  # before the epoch is known, as Lightning does
    other.sampler.set_epoch(1)
    assert list(resumed) == list(iterator)
    assert epoch(other, 2) == epoch(loader, 2)


def test_a_position_at_an_epochs_end_does_not_shorten_the_next(small_examples):
    loader, other = (ExampleLoader(small_examples, 4, seed=3, shuffle=True) for _ in range(2))
    epoch(loader, 1)
    loader.sampler.set_epoch(2)  # between two epochs
    other.load_state_dict(loader.state_dict())
    assert len(epoch(other, 2)) == 13


def test_data_module_refuses_what_cannot_be_trained_on(small_examples):
    with pytest.raises(ConfigError, match=r"data\.batch_size"):
        ExampleDataModule(train=small_examples, batch_size=0, eval_batch_size=1, seed=0)
    with pytest.raises(ConfigError, match=r"data\.eval_batch_size"):
        ExampleDataModule(train=small_examples, batch_size=1, eval_batch_size=0, seed=0)
    with pytest.raises(DataError, match=r"data\.batch_size"):
        ExampleDataModule(train=(), batch_size=1, eval_batch_size=1, seed=0)
