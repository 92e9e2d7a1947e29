"""Tasks described by data alone: a prompt template and one answer text for each label."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from zo_lightning.errors import ConfigError, DataError
from zo_lightning.tasks.encoding import TRUNCATIONS, PromptText, TaskTexts
from zo_lightning.tasks.rows import Row, find_file, read_hub, read_jsonl
from zo_lightning.tasks.splits import SAMPLINGS, check_choice, check_counts, order, split_train

log = logging.getLogger(__name__)

# A newline at the end of a template is part of the prompt.
_JINJA = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """Classification of text by comparing answer options.

    Args:
        name: names the task in messages and its files in ``data_dir``.
        template: Jinja2 text over a row's fields; a field that is null counts as missing.
        verbalisers: text of each label's option, as it follows the prompt; their order numbers the labels.
        label_field: the field that holds the label.
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
    verbalisers: dict[Any, str]
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
        if not isinstance(self.verbalisers, Mapping):
            raise ConfigError(
                f"task {self.name}: `task.verbalisers` gives each label its text, as in "
                f'{{low: " calm", high: " urgent"}}, not {self.verbalisers!r}'
            )
        options = list(self._labels().values())
        wrong = [option for option in options if not isinstance(option, str)]
        if wrong:
            raise ConfigError(f"task {self.name}: `task.verbalisers` must be texts, not {wrong[0]!r}: quote it")
        if len(options) < 2:
            raise ConfigError(f"task {self.name}: `task.verbalisers` needs at least two labels, not {len(options)}")
        if len(set(options)) < len(options):
            raise ConfigError(f"task {self.name}: two labels of `task.verbalisers` share one text: {options}")
        if not all(option.strip() for option in options):
            raise ConfigError(f"task {self.name}: `task.verbalisers` has an empty option: {options}")
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("test_sampling", self.test_sampling, SAMPLINGS)
        check_choice("truncate", self.truncate, TRUNCATIONS)
        check_counts(self.num_train, self.num_dev, self.num_test, self.sampling_seed)
        self._compiled()

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
        template, labels = self._compiled(), self._labels()
        rows = [train_rows[i] for i in train + dev] + [test_rows[i] for i in test]
        return TaskTexts(
            prompts=[self._prompt(row, template, labels) for row in rows],
            options=list(labels.values()),
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

    def _labels(self) -> dict[str, str]:
        """Option texts by label, as text: data, YAML and command line may give 0 or "0", true or "true"."""
        return {_label_text(label): option for label, option in self.verbalisers.items()}

    def _compiled(self) -> jinja2.Template:
        try:
            return _JINJA.from_string(self.template)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"task {self.name}: `task.template` is not a Jinja2 template: {error}") from error

    def _prompt(self, row: Row, template: jinja2.Template, labels: dict[str, str]) -> PromptText:
        present = {name: value for name, value in row.fields.items() if value is not None}
        columns = f"this row has {', '.join(sorted(present)) or 'no column'}"
        if self.label_field not in present:
            raise DataError(f"{row.origin}: no column `task.label_field`={self.label_field}; {columns}")
        label = _label_text(present[self.label_field])
        if label not in labels:
            raise DataError(
                f"{row.origin}: label {label!r} in column {self.label_field} has no text in `task.verbalisers`, which "
                f"knows {', '.join(labels)}"
            )
        try:
            text = template.render(present)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise DataError(f"{row.origin}: `task.template` cannot be filled: {error}; {columns}") from error
        return PromptText(text, list(labels).index(label), row.origin)


def _label_text(label: Any) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)
