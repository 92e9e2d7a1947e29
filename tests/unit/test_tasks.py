"""Tasks described by data: prompts, tokens, samples and the errors of bad input."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import zo_lightning
from zo_lightning.core.types import Example
from zo_lightning.errors import ConfigError, DataError
from zo_lightning.tasks import Task, TaskData, TextTask

CONF = Path(zo_lightning.__file__).parent / "conf" / "task"
DATA = Path(__file__).parents[3] / "shared" / "data"
BOS = 256


def byte_tokenizer(*, bos: bool = False, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """One token a byte, numbered as bytes are; 256 is BOS; merges come after."""
    alphabet = {byte_char(byte): byte for byte in range(256)}
    vocab = alphabet | {"<s>": BOS} | {a + b: 257 + i for i, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def byte_char(byte: int) -> str:
    """The printable character that byte-level BPE uses for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def text_of(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def films(count: int) -> list[dict[str, Any]]:
    return [{"text": f"film {i}", "label": i % 2} for i in range(count)]


def make(folder: Path, **changes: Any) -> TextTask:
    fields: dict[str, Any] = {
        "name": "films",
        "template": "{{ text }} It was",
        "verbalisers": {0: " bad", 1: " good"},
        "data_dir": str(folder),
        "num_train": 3,
        "num_dev": 2,
        "num_test": 2,
        "sampling": "first",
        "test_sampling": "first",
    }
    return TextTask(**fields | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "films_train.jsonl", films(10))
    write(tmp_path / "films_validation.jsonl", films(4))
    return tmp_path


def load(task: TextTask, *, max_length: int = 500, **tokenizer: Any) -> TaskData:
    return task.texts().encode(byte_tokenizer(**tokenizer), max_length=max_length)


def refusal(task: TextTask, **how: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        load(task, **how)
    return str(caught.value)


def shipped(name: str, **changes: Any) -> TextTask:
    fields = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    assert isinstance(fields, dict)
    return TextTask(**{key: value for key, value in fields.items() if key not in ("defaults", "_target_")} | changes)


# Prompts


def one_row(tmp_path: Path, name: str, row: dict[str, Any]) -> Example:
    write(tmp_path / f"{name}_train.jsonl", [row] * 2)
    write(tmp_path / f"{name}_validation.jsonl", [row])
    task = shipped(name, data_dir=str(tmp_path), num_train=1, num_dev=1)
    return load(task).test[0]


@pytest.mark.parametrize(
    ("name", "row", "prompt", "options", "label"),
    [
        (
            "sst2",
            {"sentence": " the plot limps , but who cares ? ", "label": 1, "idx": 7},
            "the plot limps , but who cares ? It was",
            (" terrible", " great"),
            1,
        ),
        (
            "boolq",
            {"passage": "Tide -- The moon pulls the sea.", "question": "does the moon make tides", "label": 1},
            "Tide -- The moon pulls the sea. Does the moon make tides?\n",
            ("No", "Yes"),
            1,
        ),
        (
            "boolq",
            {"passage": "Tide.", "question": "Is it \u00fcber?", "label": 0},
            "Tide. Is it \u00fcber?\n",
            ("No", "Yes"),
            0,
        ),
        (
            "cb",
            {"premise": "B: I doubt it rained.", "hypothesis": "it rained", "label": 2},
            'Suppose B: I doubt it rained. Can we infer that "it rained"? Yes, No, or Maybe?\n',
            ("Yes", "No", "Maybe"),
            2,
        ),
    ],
)
def test_shipped_templates_word_for_word(
    tmp_path: Path, name: str, row: dict[str, Any], prompt: str, options: tuple[str, ...], label: int
) -> None:
    example = one_row(tmp_path, name, row)
    assert text_of(example.prompt) == prompt
    assert tuple(map(text_of, example.options)) == options
    assert example.label == label


def test_all_shipped_tasks_name_a_hub_source_and_fit_the_protocol() -> None:
    for name in ("sst2", "boolq", "cb"):
        task: Task = shipped(name)
        assert task.name == name
        assert shipped(name).hub_path
    assert shipped("cb").num_dev == 100


def test_labels_may_be_text_or_numbers_or_truth_values(tmp_path: Path) -> None:
    for labels, keys in (
        ((0, 1), ("0", "1")),
        (("0", "1"), (0, 1)),
        ((False, True), ("false", "true")),
        (("n", "p"),) * 2,
    ):
        rows = [{"text": "x", "label": label} for label in labels]
        write(tmp_path / "films_train.jsonl", rows * 2)
        write(tmp_path / "films_validation.jsonl", rows)
        task = make(tmp_path, verbalisers=dict(zip(keys, (" bad", " good"), strict=True)), num_train=2)
        assert [example.label for example in load(task).test] == [0, 1]


def test_options_keep_the_order_of_the_verbalisers(folder: Path) -> None:
    data = load(make(folder, verbalisers={1: " good", 0: " bad"}))
    assert data.num_labels == 2
    assert [(text_of(e.options[e.label])) for e in data.test] == [" bad", " good"]


def test_a_sandboxed_template_cannot_reach_python(folder: Path) -> None:
    assert "task.template" in refusal(make(folder, template="{{ text.__class__.__mro__ }}"))


# Tokens


def test_an_option_is_what_it_adds_to_the_prompt(folder: Path) -> None:
    merges = (("\u0120", "g"), ("\u0120", "b"))  # " g" and " b" are one token each
    example = load(make(folder), merges=merges).train[1]
    assert text_of(example.prompt) == "film 1 It was"
    assert example.options == ((258, *b"ad"), (257, *b"ood"))


def test_special_tokens_of_the_tokenizer_stay(folder: Path) -> None:
    assert load(make(folder), bos=True).train[0].prompt == (BOS, *b"film 0 It was")
    assert load(make(folder), bos=False).train[0].prompt == tuple(b"film 0 It was")


def test_outer_blanks_are_not_tokens(folder: Path) -> None:
    example = load(make(folder, template="\n {{ text }} It was "), bos=True).train[0]
    assert example.prompt == (BOS, *b"film 0 It was")
    assert text_of(example.options[0]) == "  bad"  # the blank before the option still counts


@pytest.mark.parametrize("merges", [(("s", "b"),), (("s", "b"), ("s", "g"))])
def test_an_option_that_merges_with_the_prompt_is_refused(folder: Path, merges: tuple[tuple[str, str], ...]) -> None:
    message = refusal(make(folder, verbalisers={0: "bad", 1: "good"}), merges=merges)
    assert "films_train.jsonl line 1: an option of ['bad', 'good'] merges with the end of the prompt" in message
    assert "begin every option (`task.verbalisers`, `task.option_template`) with a space" in message


def test_an_option_that_vanishes_is_refused(folder: Path) -> None:
    task = make(folder, template="{{ text }}: s", verbalisers={0: "b", 1: "g"})
    assert "merges with the end of the prompt" in refusal(task, merges=(("s", "b"), ("s", "g")))


def test_options_with_the_same_tokens_are_refused(folder: Path) -> None:
    assert "the same tokens" in refusal(make(folder, verbalisers={0: " ok", 1: " ok "}))


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": " ", "label": 0}] * 3)
    write(tmp_path / "val.jsonl", films(2))
    message = refusal(make(tmp_path, template="{{ text }}", num_train=1))
    assert "train.jsonl line 1: `task.template` gives an empty prompt" in message


def test_a_long_text_is_refused_by_row_length_and_limit(folder: Path) -> None:
    write(folder / "films_train.jsonl", [*films(2), {"text": "long " * 20, "label": 0}, *films(5)])
    message = refusal(make(folder), max_length=40)
    assert "films_train.jsonl line 3: 112 tokens, the context holds 40 (1 of 7 texts are too long)" in message
    assert "task.truncate=left" in message


def test_truncate_left_keeps_bos_and_the_end_and_counts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "films_train.jsonl", [*films(2), {"text": "long " * 20, "label": 0}, *films(5)])
    with caplog.at_level(logging.WARNING):
        data = load(make(folder, truncate="left"), max_length=20, bos=True)
    assert data.num_truncated == 1
    assert data.train[2].prompt[0] == BOS
    assert text_of(data.train[2].prompt[1:]) == ("long " * 20 + " It was")[-14:]
    assert data.train[0].prompt == (BOS, *b"film 0 It was")
    assert "1 of 7 prompts cut to fit 20 tokens" in caplog.text
    without_bos = load(make(folder, truncate="left"), max_length=20)
    assert text_of(without_bos.train[2].prompt) == ("long " * 20 + " It was")[-15:]


def test_no_room_beside_the_options(folder: Path) -> None:
    assert "no room for a prompt" in refusal(make(folder, truncate="left"), max_length=6, bos=True)


# Samples


def test_lozo_samples_are_numpys_permutations(tmp_path: Path) -> None:
    write(tmp_path / "films_train.jsonl", films(30))
    write(tmp_path / "films_validation.jsonl", films(12))
    task = make(tmp_path, sampling="lozo", test_sampling="lozo", num_train=7, num_dev=5, num_test=4, sampling_seed=3)
    data = load(task)
    taken = np.random.RandomState(3).permutation(30)[:12]
    tested = np.random.RandomState(3).permutation(12)[:4]
    assert numbers(data.train) == list(taken[:-5])
    assert numbers(data.dev) == list(taken[-5:])
    assert numbers(data.test) == list(tested)


def numbers(examples: tuple[Example, ...]) -> list[int]:
    return [int(text_of(example.prompt).split()[1]) for example in examples]


def test_first_rows_in_order(folder: Path) -> None:
    data = load(make(folder))
    assert (numbers(data.train), numbers(data.dev), numbers(data.test)) == ([0, 1, 2], [3, 4], [0, 1])


def test_dev_is_served_first_when_rows_are_few(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        data = load(make(folder, num_train=100, num_dev=9, num_test=100))
    assert (len(data.train), len(data.dev), len(data.test)) == (1, 9, 4)
    assert "1 training rows, not the 100 asked for" in caplog.text
    assert "lower `task.num_dev`" in refusal(make(folder, num_dev=10))


# Files


def test_files_are_found_by_task_name_then_by_common_names(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", films(10))
    write(tmp_path / "validation.jsonl", films(3))
    assert len(load(make(tmp_path)).test) == 2
    write(tmp_path / "films_train_10.jsonl", films(10)[::-1])
    assert numbers(load(make(tmp_path)).train) == [9, 8, 7]


def test_explicit_files_need_no_folder(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", films(10))
    test = write(tmp_path / "b.jsonl", films(3))
    assert len(load(make(tmp_path, data_dir=None, train_file=str(train), test_file=str(test))).train) == 3
    assert "set `task.test_file` or `task.data_dir`" in refusal(make(tmp_path, data_dir=None, train_file=str(train)))


def test_an_explicit_file_settles_what_the_folder_leaves_open(folder: Path) -> None:
    other = write(folder / "films_train_b.jsonl", films(8)[::-1])
    message = refusal(make(folder))
    assert "films_train.jsonl, films_train_b.jsonl" in message
    assert "`task.train_file`" in message
    assert numbers(load(make(folder, train_file=str(other))).train) == [7, 6, 5]


def test_missing_folder_and_files(tmp_path: Path) -> None:
    assert f"`task.data_dir`={tmp_path / 'no'} is not a folder" in refusal(make(tmp_path / "no"))
    message = refusal(make(tmp_path))
    assert "no films_train*.jsonl or train.jsonl" in message
    assert "`task.train_file`" in message
    nowhere = make(tmp_path, train_file=str(tmp_path / "no.jsonl"))
    assert "`task.train_file`=" in refusal(nowhere)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "x", "label": 0', "line 2 is not JSON in UTF-8"),
        (b'{"text": "caf\xe9", "label": 0}', "line 2 is not JSON in UTF-8"),
        (b'["x", 0]', "line 2 is not a JSON object"),
        (b'{"text": "x"}', "line 2: no column `task.label_field`=label; this row has text"),
        (
            b'{"body": "x", "label": 0}',
            "line 2: `task.template` cannot be filled: 'text' is undefined; this row has body",
        ),
        (
            b'{"text": null, "label": 0}',
            "line 2: `task.template` cannot be filled: 'text' is undefined; this row has label",
        ),
        (b'{"text": "x", "label": "maybe"}', "line 2: label 'maybe' in column label has no text in `task.verbalisers`"),
    ],
)
def test_a_bad_line_is_named(folder: Path, line: bytes, said: str) -> None:
    good = b'{"text": "x", "label": 1}\n'
    (folder / "films_train.jsonl").write_bytes(good + line + b"\n" + good * 4)
    message = refusal(make(folder))
    assert "films_train.jsonl " + said in message
    assert "task." in message


def test_known_labels_are_listed(folder: Path) -> None:
    assert "which knows a, b" in refusal(make(folder, verbalisers={"a": " bad", "b": " good"}))


def test_blank_lines_and_a_byte_order_mark_are_no_rows(folder: Path) -> None:
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in films(6)) + "\n\n"
    (folder / "films_train.jsonl").write_text(text, encoding="utf-8")
    assert numbers(load(make(folder)).train) == [0, 1, 2]


def test_an_empty_file_is_refused(folder: Path) -> None:
    (folder / "films_validation.jsonl").write_text("\n")
    message = refusal(make(folder))
    assert "films_validation.jsonl has no rows" in message
    assert "task.data_dir" in message


# Settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verbalisers": "calm"}, "gives each label its text"),
        ({"verbalisers": {0: " bad"}}, "needs at least two labels, not 1"),
        ({"verbalisers": {0: " bad", 1: " bad"}}, "two labels of `task.verbalisers` share one text"),
        ({"verbalisers": {0: " bad", 1: " "}}, "`task.verbalisers` has an empty option"),
        ({"template": "{{ text"}, "`task.template` is not a Jinja2 template"),
        ({"sampling": "random"}, "`task.sampling` must be lozo or first, not random"),
        ({"test_sampling": "all"}, "`task.test_sampling` must be lozo or first, not all"),
        ({"truncate": "right"}, "`task.truncate` must be error or left, not right"),
        ({"num_dev": 0}, "`task.num_dev` must be at least 1, not 0"),
        ({"sampling_seed": -1}, "`task.sampling_seed` must lie in 0"),
    ],
)
def test_bad_settings_name_their_key(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **changes)
    assert said in str(caught.value)


# The hub


def test_without_the_hub_the_error_points_at_local_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    message = refusal(shipped("sst2"))
    assert message.startswith("task sst2: nyu-mll/glue could not be had from the hub (")
    assert "Point `task.data_dir=` at a folder with sst2_train*.jsonl and sst2_validation*.jsonl" in message


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="reads the hub through the package datasets")
    import threading

    import huggingface_hub

    from zo_lightning.tasks import rows

    released = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: released.wait())
    monkeypatch.setattr(rows, "HUB_TIMEOUT", 0.05)
    message = refusal(shipped("sst2"))
    released.set()
    assert "TimeoutError: no answer within 0.05 s" in message


def test_hub_rows_become_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="reads the hub through the package datasets")
    import huggingface_hub

    splits = {
        "train": datasets.Dataset.from_list([{"sentence": f"film {i}", "label": i % 2} for i in range(8)]),
        "validation": datasets.Dataset.from_list([{"sentence": "film 9", "label": -1}]),
    }
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, name: splits)
    message = refusal(shipped("sst2", num_dev=2))
    assert "nyu-mll/glue validation row 0: label '-1' in column label has no text" in message


# Real data


@pytest.mark.parametrize(
    ("name", "sizes", "num_labels"),
    [("sst2", (1000, 500, 872), 2), ("boolq", (500, 500, 1000), 2), ("cb", (150, 100, 56), 3)],
)
def test_real_files(name: str, sizes: tuple[int, int, int], num_labels: int) -> None:
    if not DATA.is_dir():
        pytest.skip("the folder ../shared/data with the real task files is absent")
    data = load(shipped(name, data_dir=str(DATA)), max_length=10_000)
    assert (len(data.train), len(data.dev), len(data.test)) == sizes
    assert data.num_labels == num_labels
    assert data.num_truncated == 0
    assert {example.label for example in data.train} == set(range(num_labels))
