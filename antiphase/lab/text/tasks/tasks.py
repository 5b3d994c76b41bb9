"""Tasks: builds prompts with possible answers from labelled rows and a template, or from text alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import StrictUndefined, TemplateError, UndefinedError
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError, nearest, within
from antiphase.base.randomness import keyed_generator
from antiphase.base.templates import UNUSABLE, Templates
from antiphase.base.trial import together
from antiphase.lab.settings.presets import RunSettings
from antiphase.lab.text.labelled import Row, column_of, labelled_rows, warn_of_empty
from antiphase.lab.text.tasks.chance import best_constant, best_guess, by_length
from antiphase.lab.text.tasks.samples import Sample, Task
from antiphase.lab.text.tasks.task_files import TaskFileSettings, place_of, read_task
from antiphase.lab.text.tasks.text_tasks import continuations, needles
from antiphase.lab.text.tokenization import in_chat, last_words, line_breaks, opened_tokens, tokens_after

CONTENT_FREE = ("N/A", "[MASK]", "")
"""Texts without content (Zhao et al. 2021, 2102.09690)."""
TEXT_KINDS = ("needles", "continuation")
"""Kinds of task that are made from text without a template."""
TEMPLATES = Templates(undefined=StrictUndefined, keep_trailing_newline=True)


class LongPromptError(InputError):
    """A prompt is longer than the model's context; fewer examples may fit."""


def load_task(
    path: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    columns: tuple[str | None, str | None] = (None, None),
    samples: int | None = None,
    shots: int | None = None,
    seed: int = 0,
    longest: int | None = None,
    run: RunSettings | None = None,
    chat: bool = False,
) -> Task:
    """Read a task file and build its prompts.

    Args:
        columns: as for ``read_task``.
        samples: number of rows, drawn at random; None means all, in their order.
        shots: number of examples, instead of the file's own.
        seed: seed for drawing rows and examples.
        longest: the model's context length in tokens.
        run: settings of a model trained here; needles without ``data`` use its synthetic task.
        chat: ask through the model's chat template: examples and question are one message of the user, and answers
            follow where the model's answer begins.

    Raises:
        InputError: a file, column or template cannot be used, two options have equal tokens, or a prompt is too long;
            the message names the task file and the row.
    """
    settings, folder = read_task(path, columns)
    if shots is not None:
        settings.shots = shots
    with within("task", path):
        if chat and settings.kind in TEXT_KINDS:
            raise InputError(f"a task of kind {settings.kind} is plain text; leave out --chat-template")
        if settings.kind == "continuation":
            return continuations(settings, folder, tokenizer, samples or 100, seed, longest)
        if settings.kind == "needles":
            return needles(settings, folder, tokenizer, samples or 100, seed, longest, run)
        return LabelledTask(settings, folder, tokenizer, longest, seed, chat=chat).task(samples)


class FilledIn(NamedTuple):
    """What the templates of a task make of a row."""

    own: str
    """The text of its question."""
    prompt: str
    """After the examples, and in the model's chat template."""
    head: str
    """What the latter puts before the examples."""
    options: list[str]
    target: int


class LabelledTask:
    """Labelled rows and a template, from which prompts are built."""

    def __init__(
        self,
        settings: TaskFileSettings,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
        seed: int,
        *,
        chat: bool = False,
    ) -> None:
        self.settings, self.folder, self.tokenizer = settings, folder, tokenizer
        self.longest, self.seed, self.chat = longest, seed, chat
        self.prompt = _template("prompt", settings.prompt)
        self.words = _template("label_words", settings.label_words)
        self.keep = _expression("keep", settings.keep)
        self.target = _expression("target", settings.target)
        self.choices = _expression("choices", settings.choices)
        self.labels: dict[str, str] = {}
        self.tokens: dict[tuple[str, str], tuple[int, ...]] = {}
        self.stop = line_breaks(tokenizer) if settings.kind == "answer" else ()
        self.has_own_examples = False
        """Whether examples come from rows of their own, which are never asked."""
        self._read()

    def task(self, count: int | None) -> Task:
        """A task of ``count`` random rows, after the settings' number of examples; None means all rows in order."""
        shots = self.settings.shots
        demonstrations = self.examples(shots) if shots else []
        asked = self.asked(count, demonstrations)
        if not asked:
            raise InputError(
                f"data: no row is left to ask beside the examples; lower shots ({shots}) or give more rows"
            )
        samples = self.samples(asked, demonstrations)
        found = Task(self.settings.name, samples, self._chance(samples), samples[0].metric)
        if self.settings.kind != "classification":
            return found
        free = [self.content_free(text, demonstrations) for text in CONTENT_FREE]
        given = tuple(sample for sample in free if sample.prompt and self._fits(sample))
        return replace(found, labels=tuple(self.labels.values()), content_free=given)

    def examples(self, count: int) -> list[Row]:
        """Example rows to show with their answers, drawn at random; a smaller number gives the first of a larger one.

        Raises:
            InputError: there are too few rows.
        """
        if len(self.pool) < count + (0 if self.has_own_examples else 1):
            raise InputError(f"shots ({count}) needs more rows than the {len(self.pool)} there are")
        generator = keyed_generator(self.seed, "examples", self.settings.name)
        return [self.pool[index] for index in torch.randperm(len(self.pool), generator=generator)[:count].tolist()]

    def asked(self, count: int | None, demonstrations: Sequence[Row] = ()) -> list[int]:
        """Indices of rows to ask; None means all, in their order.

        The examples are not asked, nor, unless the task says so, others with an example's text: published sets have
        texts that stand in both of their parts.
        """
        numbers = list(range(len(self.rows)))
        if count is not None:
            generator = keyed_generator(self.seed, "rows", self.settings.name)
            numbers = torch.randperm(len(self.rows), generator=generator).tolist()
        places = {row.place for row in demonstrations}

        def free() -> Iterator[int]:
            texts = set() if self.settings.ask_shown else {self._prompt(row) for row in demonstrations}
            for number in numbers:
                row = self.rows[number]
                if row.place not in places and not (texts and self._prompt(row) in texts):
                    yield number

        return together(lambda: list(itertools.islice(free(), count)))

    def samples(self, asked: Sequence[int], demonstrations: Sequence[Row]) -> list[Sample]:
        """Prompts for some rows, after examples in this order.

        Raises:
            LongPromptError: a prompt with its answer is longer than the model's context.
            InputError: the template does not fit a row.
        """
        examples, rows = self._examples(demonstrations), [self.rows[number] for number in asked]
        filled_in = together(lambda: [self._filled_in(row, examples, row) for row in rows])
        found = []
        for number, row, filled in zip(asked, rows, filled_in, strict=True):
            found.append(self._sample(row, examples, number, row, filled))
            if not self._fits(found[-1]):
                raise LongPromptError(
                    f"{row.place}: the prompt has {len(found[-1].prompt)} tokens and its answer up to "
                    f"{self._room(found[-1])}, the model reads {self.longest} at most; lower shots or shorten the text"
                )
        return found

    def _room(self, sample: Sample) -> int:
        """Number of tokens that an answer may have."""
        return sample.longest if sample.answers else max(map(len, sample.options))

    def _fits(self, sample: Sample) -> bool:
        return self.longest is None or len(sample.prompt) + self._room(sample) <= self.longest

    def content_free(self, text: str, demonstrations: Sequence[Row]) -> Sample:
        """The prompt of the first row with another text in each of its columns of text, after examples."""
        row = self.rows[0]
        empty = {name: text if isinstance(value, str) else value for name, value in row.values.items()}
        asked = Row(f"the prompt about the text {text!r}", empty)
        examples = self._examples(demonstrations)
        return self._sample(row, examples, 0, asked, self._filled_in(row, examples, asked))

    def label(self, row: Row) -> str:
        """The label of a row in a classification task."""
        label = str(self._value(self.target, "target", row))
        if not label.strip():
            raise InputError(f"{row.place}: there is no label; write one, or leave the row out with keep")
        return label

    def _read(self) -> None:
        settings = self.settings
        self.rows = self._rows(settings.data, settings.split)
        for name, column in settings.columns.items():
            values = column_of(self._path(column), field=".columns")
            if len(values) != len(self.rows):
                raise InputError(f"columns: {column} has {len(values)} lines for {len(self.rows)} rows")
            for row, value in zip(self.rows, values, strict=True):
                row.values[name] = value
        own = {row.place for row in self.rows}
        self.rows = self.pool = self._kept(self.rows)
        if settings.demonstrations is not None:
            found = self._rows(settings.demonstrations, settings.demonstrations_split)
        elif settings.demonstrations_split is not None:
            found = self._rows(settings.data, settings.demonstrations_split)
            found = [row for row in found if row.place not in own]  # data without splits gives the same rows again
        else:
            found = []
        if found or settings.demonstrations is not None:
            self.pool, self.has_own_examples = self._kept(found), own.isdisjoint(row.place for row in found)
        if settings.kind == "classification":
            self.labels = self._labels([*self.rows, *(self.pool if self.has_own_examples else [])])
        with_empty = [row for row in self.rows if "" in row.values.values()]
        warn_of_empty(together(lambda: [row.place for row in with_empty if not self._shows_text(row)]))

    def _shows_text(self, row: Row) -> bool:
        """Whether any text of a row occurs in its prompt."""
        prompt = self._prompt(row)
        return any(text and text in prompt for text in _texts(row.values))

    def _rows(self, given: Any, split: str | None) -> list[Row]:
        latin = self.settings.encoding == "latin-1"
        if isinstance(given, Mapping):
            paths = {str(k): self._path(v) for k, v in given.items()}
            return labelled_rows(paths, split=split, latin=latin, field=".data")
        return labelled_rows(self._path(given), split=split, header=self.settings.header, latin=latin, field=".data")

    def _kept(self, rows: Sequence[Row]) -> list[Row]:
        found = together(lambda: [row for row in rows if self._value(self.keep, "keep", row)])
        if not found:
            raise InputError(f"keep: no row is left by {self.settings.keep!r}")
        return found

    def _path(self, given: Any) -> str:
        """A path in a task file, relative to that file; a name without such a file stays unchanged (a Hub dataset)."""
        return place_of(self.folder, given)

    def _labels(self, rows: Sequence[Row]) -> dict[str, str]:
        found = together(lambda: dict.fromkeys(self.label(row) for row in rows))
        given = self.settings.labels
        if given:
            if unknown := [label for label in found if label not in given]:
                raise InputError(
                    f"labels: '{unknown[0]}' occurs in the data but not in the task{nearest(unknown[0], given)}"
                )
            labels = dict(given)
        else:
            labels = together(lambda: {label: self._words(label) for label in sorted(found)})
        if len(found) == 1:
            raise InputError(f"all rows have the label '{next(iter(found))}'; a task needs at least two")
        if empty := [label for label, words in labels.items() if not words.strip()]:
            raise InputError(f"labels: no text is given for the label {empty[0]!r}; give it words")
        return labels

    def _words(self, label: str) -> str:
        try:
            return str(self.words.render(label=label))
        except (TemplateError, *UNUSABLE) as error:
            raise InputError(f"label_words cannot be filled in for the label {label!r} ({error})") from None

    def _examples(self, demonstrations: Sequence[Row]) -> str:
        return together(lambda: "".join(self._example(row) + self.settings.separator for row in demonstrations))

    def _example(self, row: Row) -> str:
        """A row with its correct answer."""
        prompt = self._prompt(row)
        options, target = self._options(row)
        return prompt + self._joined(prompt, options[target])

    def _prompt(self, row: Row) -> str:
        try:
            return self.prompt.render(row.values).rstrip(" ")
        except (TemplateError, *UNUSABLE) as error:
            raise InputError(f"{row.place}: the prompt cannot be filled in ({_reason(error, row)})") from None

    def _value(self, expression: Any, name: str, row: Row) -> Any:
        try:
            value = expression(row.values)
        except (TemplateError, *UNUSABLE) as error:
            raise InputError(f"{row.place}: {name} cannot be found ({_reason(error, row)})") from None
        if value is None:
            raise InputError(f"{row.place}: {name} is missing (columns: {', '.join(map(str, row.values))})")
        return value

    def _options(self, row: Row) -> tuple[list[str], int]:
        """Possible answers and the index of the correct one; for an open question, the correct answers."""
        if self.settings.kind == "classification":
            return list(self.labels.values()), list(self.labels).index(self.label(row))
        value = self._value(self.target, "target", row)
        if self.settings.kind == "answer":
            answers = [str(v) for v in (value if isinstance(value, (list, tuple)) else [value])]
            if not answers or not any(answer.strip() for answer in answers):
                raise InputError(f"{row.place}: there is no right answer")
            if not all(answer.strip() for answer in answers):
                raise InputError(
                    f"{row.place}: one of the right answers is empty; remove it, or leave such answers out with "
                    "target: answers | map('trim') | select | list"
                )
            return answers, 0
        listed = self._value(self.choices, "choices", row)
        if not isinstance(listed, (list, tuple)) or len(listed) < 2:
            raise InputError(f"{row.place}: choices must be a list of two texts at least, got {listed!r}")
        try:
            target = int(value)
        except (TypeError, ValueError):
            target = -1
        if not 0 <= target < len(listed):
            raise InputError(f"{row.place}: target must be a number from 0 to {len(listed) - 1}, got {value!r}")
        choices = [str(choice) for choice in listed]
        if empty := [number for number, choice in enumerate(choices) if not choice.strip()]:
            raise InputError(f"{row.place}: choice {empty[0]} is empty; write it, or leave the row out with keep")
        return choices, target

    def _joined(self, prompt: str, option: str) -> str:
        """The text of an option, as it is written after a prompt."""
        between = "" if prompt.endswith("\n") else self.settings.delimiter
        return between + option.strip()

    def _filled_in(self, row: Row, examples: str, asked: Row) -> FilledIn:
        own = self._prompt(asked)
        return FilledIn(own, *self._asked(examples + own, row), *self._options(row))

    def _sample(self, row: Row, examples: str, number: int, asked: Row, filled: FilledIn) -> Sample:
        """The sample of a row, with the prompt of ``asked``."""
        own, prompt, head, options, target = filled
        written = [self._joined(prompt, option) for option in options]
        is_open = self.settings.kind == "answer"
        ids = tuple(self._tokens(prompt))
        tokens = tuple(self._option_tokens(prompt, text) for text in (written[:1] if is_open else written))
        if len(set(tokens)) < len(tokens):
            first = next(i for i, option in enumerate(tokens) if option in tokens[:i])
            same = options[tokens.index(tokens[first])]
            if same != options[first] or self.settings.kind == "classification":
                raise InputError(f"the labels '{same}' and '{options[first]}' have the same tokens; write other words")
            raise InputError(f"{row.place}: two of its choices are the same text '{same}'")
        begin, before = (min(len(self._tokens(text)), len(ids)) for text in (head, head + examples))
        end = len(self._tokens(head + examples + own)) if self.chat else len(ids)
        parts = [("demonstrations", begin, before), ("question", before, min(end, len(ids)))]
        listed = _listed(own, options, asked) if self.settings.kind == "choice" else None
        if listed is not None:
            start, stop = (len(self._tokens(head + examples + own[:place].rstrip(" "))) for place in listed)
            parts.append(("choices", start, min(len(ids), stop)))
        lengths = {
            "no": [1.0] * len(tokens),
            "tokens": [float(len(option)) for option in tokens],
            "characters": [float(len(text)) for text in written[: len(tokens)]],
        }[self.settings.normalize]
        return Sample(
            prompt=ids, options=tokens, target=0 if is_open else target, lengths=tuple(lengths),
            answers=tuple(options) if is_open else (),
            metric=self.settings.metric or ("exact_match" if is_open else "accuracy"),
            longest=self.settings.max_new_tokens, decode=self.tokenizer.decode, stop=self.stop,
            spans=tuple(parts), row=number,
        )  # fmt: skip

    def _asked(self, message: str, row: Row) -> tuple[str, str]:
        """The prompt of a message, and what stands before the message in it."""
        if not self.chat:
            return message, ""
        prompt = in_chat(self.tokenizer, message)
        start = prompt.find(message.strip())
        if start < 0:
            raise InputError(f"{row.place}: the model's chat template changes the text; leave out --chat-template")
        return prompt, prompt[:start]

    def _tokens(self, beginning: str) -> list[int]:
        """Token ids of the beginning of a prompt, after the tokenizer's first special tokens.

        A chat template brings its special tokens along.
        """
        if self.chat:
            return list(self.tokenizer(beginning, add_special_tokens=False)["input_ids"])
        return opened_tokens(self.tokenizer, beginning)

    def _option_tokens(self, prompt: str, text: str) -> tuple[int, ...]:
        """The tokens of a text after a prompt; those of labels, which return with every row, are formed once."""
        anchor = last_words(prompt)
        if (anchor, text) not in self.tokens:
            self.tokens[anchor, text] = tokens_after(self.tokenizer, anchor, text)
        return self.tokens[anchor, text]

    def _chance(self, samples: Sequence[Sample]) -> float:
        """Best score of a system that does not read the prompt."""
        if self.settings.kind == "answer":
            return best_constant(samples)
        known = [best_guess(samples)]
        if self.settings.kind == "choice":
            known += [by_length(samples, longest=longest) for longest in (False, True)]
        return max(known)


def load_labelled_task(
    path: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    columns: tuple[str | None, str | None] = (None, None),
    seed: int = 0,
    longest: int | None = None,
    chat: bool = False,
) -> LabelledTask:
    """Load the rows and the template of a task file with labelled data; arguments are those of ``load_task``.

    Raises:
        InputError: the file cannot be used, or is of another kind.
    """
    settings, folder = read_task(path, columns)
    if settings.kind in TEXT_KINDS:
        raise InputError(f"--task {path}: a task with labelled rows is needed, this one is of the kind {settings.kind}")
    with within("task", path):
        return LabelledTask(settings, folder, tokenizer, longest, seed, chat=chat)


def _listed(prompt: str, options: Sequence[str], row: Row) -> tuple[int, int] | None:
    """Where a prompt lists a row's choices in their order: first character, and character after the last.

    None if it does not: texts of the row that name choices, such as the question, are no list.
    """
    words = [option.strip() for option in options]
    start = stop = len(prompt)
    for number, word in enumerate(reversed(words)):
        places = [found.start() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", prompt[:start])]
        if not places:
            return None
        start = places[-1]
        stop = start + len(word) if number == 0 else stop
    for text in _texts(row.values):
        place = prompt.rfind(text)
        overlaps = 0 <= place < stop and place + len(text) > start
        if overlaps and text not in (*words, prompt[start:stop]) and any(word in text for word in words):
            return None
    return start, stop


def _texts(value: Any) -> Iterator[str]:
    """The texts in a row's values, without spaces around them."""
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _template(name: str, text: str) -> Any:
    try:
        return TEMPLATES.from_string(text)
    except (TemplateError, *UNUSABLE) as error:
        raise InputError(f"{name} is not a Jinja template ({error})") from None


def _expression(name: str, text: str) -> Any:
    try:
        return TEMPLATES.expression(text)
    except (TemplateError, *UNUSABLE) as error:
        raise InputError(f"{name} is not a Jinja expression ({error})") from None


def _reason(error: Exception, row: Row) -> str:
    known = f"; columns: {', '.join(map(str, row.values))}" if isinstance(error, UndefinedError) else ""
    return f"{' '.join(str(error).split())}{known}"
