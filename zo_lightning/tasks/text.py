"""Tasks described by data alone: a prompt template, and one answer text for each label or each row's own answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_lightning.errors import ConfigError
from zo_lightning.tasks.encoding import TRUNCATIONS, PromptText, TaskTexts
from zo_lightning.tasks.options import Candidates, OptionSource, Verbalisers
from zo_lightning.tasks.rows import Row, find_file, read_hub, read_jsonl
from zo_lightning.tasks.splits import SAMPLINGS, check_choice, check_counts, order, split_train
from zo_lightning.tasks.templates import RowTemplate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """Classification of text by comparing answer options.

    Args:
        name: names the task in messages and its files in ``data_dir``.
        template: Jinja2 text over a row's fields; a field that is null counts as missing.
        verbalisers: text of each label's option, as it follows the prompt; their order numbers the labels.
        candidates: instead of verbalisers, where the options differ from row to row: the fields that hold one each,
            or the one field that holds a list of them.
        option_template: how a ``candidate`` follows the prompt; Jinja2 text over it and the row's fields.
        label_field: the field that holds the label; of candidates, the number from 0 or the text of the right one, or
            a list of those that are right, of which the first is trained on.
        data_dir: folder with ``<name>_train*.jsonl`` and ``<name>_validation*.jsonl``, or ``train.jsonl`` and
            ``val.jsonl`` or ``validation.jsonl``.
        train_file: instead of a search in ``data_dir``.
        test_file: likewise.
        hub_path: data set on the hub, where neither files nor ``data_dir`` are given.
        hub_name: its configuration.
        hub_validation_split: its split for the test rows.
        num_train: training rows (fewer if the file has fewer).
        num_dev: rows held out of the training file.
        num_test: test rows (fewer if the file has fewer).
        sampling: ``lozo`` permutes the training rows, ``first`` takes them in order.
        test_sampling: likewise for the test rows.
        sampling_seed: seed of the permutations.
        truncate: what becomes of a text longer than the context: ``error``, or ``left`` cuts its beginning.
    """

    name: str
    template: str
    verbalisers: dict[Any, str] | None = None
    candidates: str | list[str] | None = None
    option_template: str = " {{ candidate }}"
    label_field: str = "label"
    data_dir: str | None = None
    train_file: str | None = None
    test_file: str | None = None
    hub_path: str | None = None
    hub_name: str | None = None
    hub_validation_split: str = "validation"
    num_train: int = 1000
    num_dev: int = 500
    num_test: int = 1000
    sampling: str = "lozo"
    test_sampling: str = "lozo"
    sampling_seed: int = 0
    truncate: str = "error"

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("test_sampling", self.test_sampling, SAMPLINGS)
        check_choice("truncate", self.truncate, TRUNCATIONS)
        check_counts(self.num_train, self.num_dev, self.num_test, self.sampling_seed)
        self._template(), self._options()  # so that a wrong setting shows now

    def texts(self) -> TaskTexts:
        """Read the rows, take the samples and render them.

        Raises:
            DataError: missing or malformed files, columns or labels.
        """
        train_rows, test_rows = self._read()
        train, dev = split_train(
            order(len(train_rows), self.sampling, self.sampling_seed),
            num_train=self.num_train,
            num_dev=self.num_dev,
            task=self.name,
        )
        if len(train) < self.num_train:
            log.warning("task %s: %d training rows, not the %d asked for", self.name, len(train), self.num_train)
        test = order(len(test_rows), self.test_sampling, self.sampling_seed)[: self.num_test]
        template, options = self._template(), self._options()
        rows = [train_rows[i] for i in train + dev] + [test_rows[i] for i in test]
        return TaskTexts(
            prompts=[_prompt(row, template, options) for row in rows],
            num_train=len(train),
            num_dev=len(dev),
            truncate=self.truncate,
        )

    def _read(self) -> tuple[list[Row], list[Row]]:
        """All training rows and all test rows."""
        if self.hub_path and not (self.data_dir or self.train_file or self.test_file):
            return read_hub(self.hub_path, self.hub_name, self.hub_validation_split, task=self.name)
        return (
            self._read_file("train_file", self.train_file, (f"{self.name}_train*.jsonl",), ("train.jsonl",)),
            self._read_file(
                "test_file", self.test_file, (f"{self.name}_validation*.jsonl",), ("val.jsonl", "validation.jsonl")
            ),
        )

    def _read_file(self, key: str, path: str | None, *searched: tuple[str, ...]) -> list[Row]:
        if path:
            return read_jsonl(Path(path), key=f"task.{key}")
        if not self.data_dir:
            raise ConfigError(f"task {self.name} has no data: set `task.{key}` or `task.data_dir`")
        found = find_file(Path(self.data_dir), searched, task=self.name, key=f"task.{key}")
        return read_jsonl(found, key="task.data_dir")

    def _template(self) -> RowTemplate:
        return RowTemplate(self.template, key="task.template", task=self.name)

    def _options(self) -> OptionSource:
        if (self.verbalisers is None) == (self.candidates is None):
            raise ConfigError(
                f"task {self.name}: set `task.verbalisers` to one text for each label, or `task.candidates` to the "
                "fields that hold each row's own answers, and not both"
            )
        if self.verbalisers is not None:
            return Verbalisers(self.verbalisers, label_field=self.label_field, task=self.name)
        template = RowTemplate(self.option_template, key="task.option_template", task=self.name)
        assert self.candidates is not None
        return Candidates(self.candidates, template, label_field=self.label_field, task=self.name)


def _prompt(row: Row, template: RowTemplate, source: OptionSource) -> PromptText:
    options = source.of(row)
    return PromptText(template.fill(row), options.texts, options.right, row.origin)
