"""From text to token ids: how a prompt and its answer options become an `Example`.

The rule is LoZO's: an option is the last tokens of "prompt + option", as many as the option adds to the prompt
alone, so that the model sees exactly the tokens of the whole text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zo_lightning.core.types import Example
from zo_lightning.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

TRUNCATIONS = ("error", "left")
ROWS_AT_ONCE = 256  # tokenised in one call: the tokens of a long prompt with each of many options take room


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """A task's examples, ready for a backend; ``num_truncated`` of them lost tokens of their prompt."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    num_labels: int  # options of an example, at most
    num_truncated: int


class PromptText(NamedTuple):
    """A rendered prompt and its options, the places of the right ones, and where it came from (for errors)."""

    text: str
    options: tuple[str, ...]
    right: tuple[int, ...]  # the first is the label
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTexts:
    """A task's texts, read and checked, in the order training, dev, test: all that needs no model.

    Args:
        prompts: rendered prompts with their options.
        num_train: how many of the prompts are for training.
        num_dev: how many after those are for development.
        truncate: what becomes of a text longer than the context.
    """

    prompts: Sequence[PromptText]
    num_train: int
    num_dev: int
    truncate: str = "error"

    def encode(self, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> TaskData:
        """Tokenise.

        Args:
            tokenizer: the model's.
            max_length: most tokens of a prompt with its longest option.

        Raises:
            DataError: a text is too long, or an option cannot be told from its prompt.
        """
        examples, num_truncated = encode(self.prompts, tokenizer, max_length=max_length, truncate=self.truncate)
        num_kept = self.num_train + self.num_dev
        return TaskData(
            train=examples[: self.num_train],
            dev=examples[self.num_train : num_kept],
            test=examples[num_kept:],
            num_labels=max(len(example.options) for example in examples),
            num_truncated=num_truncated,
        )


class Task(Protocol):
    """Anything that turns its rows into texts."""

    @property
    def name(self) -> str:
        """Names the task in messages."""
        ...

    def texts(self) -> TaskTexts:
        """Read, sample and render; raises ``DataError`` where that is impossible."""
        ...


def encode(
    prompts: Sequence[PromptText],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    truncate: str = "error",
) -> tuple[tuple[Example, ...], int]:
    """Tokenise prompts with their options, many texts in one call.

    Args:
        prompts: rendered prompts with their options.
        tokenizer: its default special tokens are kept.
        max_length: most tokens of a prompt with its longest option.
        truncate: ``error``, or ``left`` to drop the first tokens of a longer prompt (a leading BOS stays).

    Returns:
        The examples in order, and how many of them were truncated.

    Raises:
        DataError: a prompt is empty, an option merges with it, or the two are too long.
    """
    parts = [prompts[start : start + ROWS_AT_ONCE] for start in range(0, len(prompts), ROWS_AT_ONCE)]
    examples = [example for part in parts for example in _examples(part, tokenizer)]
    too_long = [i for i, example in enumerate(examples) if _length(example) > max_length]
    if too_long and truncate == "error":
        first = too_long[0]
        raise DataError(
            f"{prompts[first].origin}: {_length(examples[first])} tokens, the context holds {max_length} "
            f"({len(too_long)} of {len(prompts)} texts are too long): set `task.truncate=left` to drop their first "
            "tokens, or choose a `model` with a longer context"
        )
    for i in too_long:
        examples[i] = _cut_left(examples[i], max_length, tokenizer.bos_token_id, prompts[i].origin)
    if too_long:
        log.warning(
            "task.truncate=left: %d of %d prompts cut to fit %d tokens", len(too_long), len(prompts), max_length
        )
    return tuple(examples), len(too_long)


def _examples(prompts: Sequence[PromptText], tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    alone = _tokenise(tokenizer, [_strip(prompt.text) for prompt in prompts])
    texts = [_strip(prompt.text + option) for prompt in prompts for option in prompt.options]
    whole = iter(_tokenise(tokenizer, texts))
    return [
        _example(prompt, ids, list(islice(whole, len(prompt.options))))
        for prompt, ids in zip(prompts, alone, strict=True)
    ]


def _tokenise(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return ids


def _strip(text: str) -> str:
    return text.lstrip().rstrip(" ")


def _example(prompt: PromptText, alone: list[int], joined: Sequence[list[int]]) -> Example:
    if not _strip(prompt.text):
        raise DataError(f"{prompt.origin}: `task.template` gives an empty prompt")
    counts = [len(full) - len(alone) for full in joined]
    stems = {tuple(full[:-count]) for full, count in zip(joined, counts, strict=True) if count > 0}
    if min(counts) <= 0 or len(stems) > 1:
        raise DataError(
            f"{prompt.origin}: an option of {list(prompt.options)} merges with the end of the prompt "
            f"{prompt.text[-20:]!r} in this tokenizer: begin every option (`task.verbalisers`, `task.option_template`) "
            "with a space, or end `task.template` in a newline"
        )
    ids = tuple(tuple(full[-count:]) for full, count in zip(joined, counts, strict=True))
    if len(set(ids)) < len(ids):
        raise DataError(f"{prompt.origin}: two of {list(prompt.options)} have the same tokens: change the options")
    return Example(prompt=stems.pop(), options=ids, label=prompt.right[0], also_right=prompt.right[1:])


def _length(example: Example) -> int:
    return len(example.prompt) + max(map(len, example.options))


def _cut_left(example: Example, max_length: int, bos: int | None, origin: str) -> Example:
    keep = 1 if example.prompt[0] == bos else 0
    room = max_length - max(map(len, example.options)) - keep
    if room < 1:
        raise DataError(f"{origin}: the context of {max_length} tokens has no room for a prompt beside the options")
    return replace(example, prompt=example.prompt[:keep] + example.prompt[-room:])
