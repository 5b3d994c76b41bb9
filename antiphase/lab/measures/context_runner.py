"""Runs several models on the same contexts, cell by cell, for the measurements of needles, allocation and noise.

A model of the synthetic task reads its own sequences; all others read numbers of cities in plain text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, named, renamed
from antiphase.base.folders.journal import Journal
from antiphase.base.records import Record
from antiphase.lab.measures.held_out import FOREIGN_LENGTH, check_length, data_for, tell_of_training_text
from antiphase.lab.measures.inputs import text_content
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.running import measured_in, measurement_with
from antiphase.lab.measures.settings import ContextSettings
from antiphase.lab.pages.presentation import short_names
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import (
    LoadedModel,
    load_model,
    openings_of,
    origins,
    refused_by_model,
    untrained,
    wrap_model,
)
from antiphase.lab.scoring.needles import tasks_of
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.haystacks import Cell, Context, Haystack, output_tokens, prompt_ids
from antiphase.lab.text.prepare import check_task
from antiphase.lab.text.retrieval import RetrievalTask, digits_of
from antiphase.lab.text.tokenization import check_chat_template, prompt_tokens
from antiphase.lab.training.device import loading_options

NEEDLES = 8
"""Number of needles for a model that was not trained here, if ``--needles`` is not given."""
MOST_HELD_OUT = 1 << 22
"""Number of tokens of a run's held-out text from which haystacks are cut."""

Row = dict[str, Any]
Say = Callable[[str], None]
Report = Callable[[float, int], None]
"""Called with the number of finished cells and the total."""


@dataclass(frozen=True)
class CellRows:
    """Rows of all cells, in order."""

    models: Sequence[str]
    """Names of the models; the others are compared with the first."""
    task: str
    """``text`` or ``symbols``."""
    guess_rate: float
    """Guess rate in the first cell."""
    rows: dict[tuple[str, bool], list[Row]]
    """By arm and whether it is trained."""

    def marked(self, rows: Callable[[list[Row]], Iterable[Row]] = lambda rows: rows) -> list[Row]:
        """All rows with their arm, or the rows that a function makes from those of one model."""
        return [
            {"arm": arm, "trained": trained, **row} for (arm, trained), own in self.rows.items() for row in rows(own)
        ]

    @property
    def shared(self) -> Row:
        """Fields that the results of both measurements share."""
        return {"models": list(self.models), "task": self.task, "guess_rate": self.guess_rate}


@dataclass(frozen=True, kw_only=True)
class CellMeasurement:
    """The measurement of a cell, and the result of all cells."""

    of_texts: Callable[[LoadedModel, Cell, Sequence[Context], Haystack], list[Row]]
    """Also takes the corpus from which the contexts were cut."""
    of_symbols: Callable[[LoadedModel, Cell, RetrievalTask, ContextSettings], list[Row]]
    result: Callable[[CellRows], Result]
    untrained_at_depths: bool
    """Whether untrained models are also measured at fixed depths, not only at random ones."""
    longest: Callable[[PreTrainedModel], int | None] = context_length
    """The largest number of tokens that a model is given."""
    check: Callable[[LoadedModel, str], None] = lambda loaded, field: None
    """Refuses a model, named by a field, before anything is measured."""

    def reads(self, cell: Cell, *, trained: bool) -> bool:
        """Whether a model is measured in this cell."""
        return trained or self.untrained_at_depths or cell.depth is None


def cells_of(
    needles: Sequence[int], queries: Sequence[int], lengths: Sequence[int], depths: Sequence[float]
) -> list[Cell]:
    """The grid of all sizes, each at all depths and at random ones (None), with at most as many questions as needles.

    Raises:
        InputError: every number of questions is larger than every number of needles.
    """
    pairs = [(count, asked) for count, asked in product(needles, queries) if asked <= count]
    if not pairs:
        raise InputError(
            f"--queries {min(queries)} is more than --needles {max(needles)}: --queries can be at most --needles"
        )
    return [
        Cell(needles=count, queries=asked, length=length, depth=depth)
        for count, asked in pairs
        for length in lengths
        for depth in (*depths, None)
    ]


def measure_in_text(
    measuring: CellMeasurement,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    cells: Sequence[Cell],
    *,
    samples: int,
    seed: int,
) -> Result:
    """Measure a model, and its architecture untrained, on contexts cut from documents.

    Raises:
        InputError: the contexts exceed the model's context length, or the texts are too short for them.
        ValueError: the model's attention cannot be observed.
    """
    haystack = Haystack(texts, tokenizer)
    contexts = {cell: haystack.contexts(cell, samples, seed=seed) for cell in cells}
    loaded = wrap_model(model, tokenizer)
    (arm,) = short_names([loaded.name]).values()
    rows = {}
    for trained in (True, False):
        read = [cell for cell in cells if measuring.reads(cell, trained=trained)]
        own = loaded if trained else replace(loaded, model=untrained(model, seed))
        rows[arm, trained] = [row for cell in read for row in measuring.of_texts(own, cell, contexts[cell], haystack)]
    return measuring.result(CellRows([loaded.name], "text", cells[0].guess_rate, rows))


def evaluate_on_contexts(
    measuring: CellMeasurement,
    settings: ContextSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Say = lambda message: None,
    report: Report = lambda done, count: None,
) -> Record:
    """Measure models, and their architectures untrained, on the same contexts; write ``record.json``.

    Finished cells are stored in the folder's journal; with ``resume``, only the remaining ones are measured.

    Raises:
        InputError: a model, text or size cannot be used, or the output folder has other contents.
    """
    settings.check()
    started = time.perf_counter()
    contents = partial(text_content, settings.name, settings.paths, settings.text_field)
    with measured_in(output, settings, contents, resume=resume) as journal:
        if journal.record is not None:
            return journal.record
        first = _loaded(settings, 0)
        embedded = first.settings is not None and first.settings.data.source == "synthetic"
        experiment = (Symbols if embedded else Texts)(settings, measuring, first, output, say)
        if not journal.known:  # before anything is measured
            for index in range(len(settings.names)):
                loaded, field = (_loaded(settings, index), "against") if index else (first, "model")
                experiment.check(loaded, field)
                measuring.check(loaded, field)
                del loaded  # which would stay beside those that are measured
        journal.begin()
        rows = _measured(settings, first, experiment, journal, say, report)
        found = CellRows(settings.names, experiment.task, experiment.guess_rate, rows)
        data = first.settings.data if first.settings else None
        read = {"data": data, **origins(settings.names), **openings_of(first)}
        return measuring.result(found).save(output, settings, seconds=time.perf_counter() - started, **read)


def _loaded(settings: ContextSettings, index: int) -> LoadedModel:
    with renamed({"model": "against"} if index else {}):
        loaded = load_model(settings.names[index], **loading_options(settings))
        chat = getattr(settings, "chat_template", False)
        if chat:
            check_chat_template(loaded.tokenizer, named("model", loaded.name))
    return replace(loaded, chat=chat)


def _measured(
    settings: ContextSettings,
    first: LoadedModel,
    experiment: Symbols | Texts,
    journal: Journal,
    say: Say,
    report: Report,
) -> dict[tuple[str, bool], list[Row]]:
    """The rows of every model, trained and untrained."""
    arms = list(short_names(settings.names).values())
    rows: dict[tuple[str, bool], list[Row]] = {}
    total = len(arms) * sum(len(experiment.asked(trained=trained)) for trained in (True, False))
    done = 0
    report(done, total)
    for index, arm in enumerate(arms):
        say(f"measuring {measurement_with(settings).name} of {arm}")
        loaded = first if index == 0 else None
        for trained in (True, False):
            rows[arm, trained] = []
            model = None
            for cell in experiment.asked(trained=trained):
                key = journal.key(arm, trained, vars(cell))
                if key not in journal.known:
                    loaded = loaded or _loaded(settings, index)
                    model = model or (loaded.model if trained else untrained(loaded.model, settings.seed))
                    journal.add(key, experiment.rows(replace(loaded, model=model), cell))
                rows[arm, trained] += journal.known[key]
                done += 1
                report(done, total)
    return rows


class Texts:
    """Numbers of cities in plain text."""

    task = "text"

    def __init__(
        self, settings: ContextSettings, measuring: CellMeasurement, first: LoadedModel, output: Path, say: Say
    ) -> None:
        self.settings, self.measuring, self.first, self.say = settings, measuring, first, say
        own = first.settings.data if first.settings else None
        usual = own.sequence_length if own else min(FOREIGN_LENGTH, context_length(first.model) or FOREIGN_LENGTH)
        given = DataSettings(source="text", sequence_length=usual, validation=list(settings.paths))
        self.measured = given if settings.paths else own
        needles = settings.needles or [own.needles if own else NEEDLES]
        lengths = settings.lengths_from(usual)
        cells = cells_of(needles, settings.queries or [1], lengths, settings.depths)
        _check_lengths(lengths, first, measuring)
        say("cutting contexts from the text")
        digits = digits_of(one_token=own is not None and own.one_token_numbers)
        self.haystack = Haystack(self._texts(output, say), first.tokenizer, digits=digits)
        self.cells: dict[Cell, list[Context]] = {
            cell: self.haystack.contexts(cell, settings.samples, seed=settings.seed) for cell in cells
        }
        self.guess_rate = cells[0].guess_rate

    def _texts(self, output: Path, say: Say) -> Iterable[str]:
        """Documents of ``--data``, or the held-out text of the first model's own run."""
        settings, first = self.settings, self.first
        if settings.paths:
            return documents(settings.paths, text_field=settings.text_field)
        # packed as for training, whose sizes need not fit the requested contexts
        data = data_for(first, replace(settings, lengths=(), needles=(), queries=()), output, say)
        assert data.validation_text is not None  # not the synthetic task
        end = first.tokenizer.eos_token or "\n"
        return first.tokenizer.decode(data.validation_text.tokens[:MOST_HELD_OUT].tolist()).split(end)

    def check(self, loaded: LoadedModel, field: str) -> None:
        """Refuse a model that cannot use these texts."""
        name = named(field, loaded.name)
        if loaded.settings is not None and loaded.settings.data.source == "synthetic":
            raise InputError(f"{name} has only the vocabulary of the synthetic task, and this is text")
        if self.measured is not None:
            tell_of_training_text(loaded.name, self.measured, self.say, field=field)
        for contexts in self.cells.values():
            limit = self.measuring.longest
            prompts_of(loaded.model, loaded.tokenizer, contexts, name, chat=loaded.chat, limit=limit)

    def asked(self, *, trained: bool) -> list[Cell]:
        """The cells in which a model is measured."""
        return [cell for cell in self.cells if self.measuring.reads(cell, trained=trained)]

    def rows(self, loaded: LoadedModel, cell: Cell) -> list[Row]:
        """The rows of one cell."""
        with refused_by_model(loaded.name):
            return self.measuring.of_texts(loaded, cell, self.cells[cell], self.haystack)


class Symbols:
    """The synthetic task, whose words are tokens; answers are predicted one by one, given the true earlier ones."""

    task = "symbols"

    def __init__(
        self, settings: ContextSettings, measuring: CellMeasurement, first: LoadedModel, output: Path, say: Say
    ) -> None:
        self.settings, self.measuring, self.first = settings, measuring, first
        data = data_for(first, settings, output, say)
        lengths = settings.lengths_from(data.settings.sequence_length)
        tasks = tasks_of(data.task, needles=settings.needles, queries=settings.queries, lengths=lengths)
        _check_lengths(lengths, first, measuring)
        for task in tasks:
            check_task(task)
        self.cells: dict[Cell, RetrievalTask] = {
            Cell(needles=task.needles, queries=task.queries, length=task.sequence_length, depth=depth): task
            for task in tasks
            for depth in (*settings.depths, None)
        }
        self.guess_rate = tasks[0].guess_rate  # for the first question only, whatever is asked after it

    def check(self, loaded: LoadedModel, field: str) -> None:
        """Refuse a model with other tokens, or with a shorter context."""
        _check_lengths((cell.length for cell in self.cells), loaded, self.measuring)
        if loaded.tokenizer.get_vocab() != self.first.tokenizer.get_vocab():
            raise InputError(
                f"{named(field, loaded.name)} has other words than {self.first.name}, so it cannot read them"
            )

    def asked(self, *, trained: bool) -> list[Cell]:
        """All cells, also for an untrained model."""
        return list(self.cells)

    def rows(self, loaded: LoadedModel, cell: Cell) -> list[Row]:
        """The rows of one cell."""
        with refused_by_model(loaded.name):
            return self.measuring.of_symbols(loaded, cell, self.cells[cell], self.settings)


def prompts_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[Context],
    name: str,
    *,
    chat: bool = False,
    limit: Callable[[PreTrainedModel], int | None] = context_length,
) -> list[list[int]]:
    """Token ids of each context.

    Args:
        name: name of the model in messages.
        chat: whether a context is a message in the model's chat template, whose tokens come on top of its length.
        limit: the largest number of tokens that a model is given.

    Raises:
        InputError: a context with its output exceeds the limit.
    """
    prompts = [
        prompt_tokens(tokenizer, context.text, chat=True) if chat else prompt_ids(tokenizer, context)
        for context in contexts
    ]
    longest = limit(model)
    needed = max(map(len, prompts)) + room_for(tokenizer, contexts)
    if longest is not None and needed > longest:
        raise InputError(f"{name} reads {longest} tokens, and a context with its output has {needed}; lower --length")
    return prompts


def room_for(tokenizer: PreTrainedTokenizerBase, contexts: Sequence[Context]) -> int:
    """Number of tokens in the longest output."""
    return max(output_tokens(tokenizer, len(context.answers)) for context in contexts)


def _check_lengths(lengths: Iterable[int], first: LoadedModel, measuring: CellMeasurement) -> None:
    for length in lengths:
        check_length(length, measuring.longest(first.model), first.name)
