"""``antiphase evaluate needles`` and ``allocation``: one or several models on the same contexts, to one record.

A model of the embedded task reads its own sequences; every other one reads cities' numbers in plain text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from antiphase.data.corpora import documents
from antiphase.data.haystacks import Cell, Context, Haystack, prompt_batch
from antiphase.data.prepare import PreparedData, check_task
from antiphase.data.retrieval import RetrievalTask
from antiphase.errors import InputError, naming
from antiphase.evals.allocation import allocation, allocation_over, batches_of
from antiphase.evals.effects import with_effects
from antiphase.evals.loading import LoadedModel, load_model, refused_by_model, untrained
from antiphase.evals.needles import needle_cell, predictor, summarize, tasks_of
from antiphase.evals.text_needles import Generating, paired, text_needles, trends
from antiphase.evaluations.held_out import FOREIGN_LENGTH, data_for
from antiphase.evaluations.inputs import inputs_of, model_content, text_content
from antiphase.evaluations.running import FLAGS
from antiphase.evaluations.settings import RetrievalTextSettings
from antiphase.folders.held import undone_if_refused
from antiphase.folders.journal import Journal, journal_in
from antiphase.randomness import keyed_generator
from antiphase.records import Record, finite
from antiphase.training.loop import choose_device

NEEDLES = 8
"""Needles of a model that was not trained here, unless ``--needles`` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class RetrievalRequest:
    """What was asked for. None or empty sizes: those of the first model's training, or defaults."""

    measurement: str
    """``needles`` or ``allocation``."""
    names: Sequence[str]
    """Local folders or Hub names of causal language models; the first is what others are compared with."""
    paths: Sequence[str] = ()
    """Held-out text (``--data``)."""
    text_field: str | None = None
    lengths: Sequence[int] = ()
    """Tokens of a context and its output, by the first model's tokenizer."""
    needles: Sequence[int] = ()
    queries: Sequence[int] = ()
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    samples: int = 50
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """
        Raises:
            InputError: a size out of range, or named twice; it names the flag.
        """
        least = {"--samples": (1, [self.samples]), "--needles": (1, self.needles), "--queries": (1, self.queries)}
        for flag, (bound, given) in {**least, "--length": (2, self.lengths)}.items():
            if any(number < bound for number in given):
                raise InputError(f"{flag} must be at least {bound}, got {', '.join(map(str, given))}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise InputError(f"--depths must lie between 0 and 1, got {', '.join(map(str, self.depths))}")
        named = {"--needles": self.needles, "--queries": self.queries, "--length": self.lengths}
        for flag, listed in {**named, "--depths": self.depths, "--against": self.names}.items():
            if len(set(listed)) != len(listed):
                raise InputError(f"{flag} must not name a value twice, got {', '.join(map(str, listed))}")
            if self.measurement == "allocation" and flag in named and len(listed) > 1:
                raise InputError(f"{flag} takes one number for allocation, got {', '.join(map(str, listed))}")


Say = Callable[[str], None]
Report = Callable[[int, int], None]
"""Called with cells done and their number."""


def evaluate_retrieval(
    request: RetrievalRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Say = lambda message: None,
    report: Report = lambda done, count: None,
) -> Record:
    """Measure models on the same contexts, each beside its architecture untrained. Writes ``record.json``.

    Each cell is kept in the folder's journal: with ``resume`` only those are measured that a stop has left.

    Raises:
        InputError: a model, text or size that cannot be used, or an output folder with other contents.
    """
    request.check()
    started = time.perf_counter()
    tokens = output.parent / f"{output.name}-tokens"
    inputs = partial(_inputs, request)
    with journal_in(output, inputs, resume=resume) as journal, undone_if_refused(tokens), naming(FLAGS):
        if journal.record is not None:
            return journal.record
        first = _loaded(request, 0)
        embedded = first.settings is not None and first.settings.data.source == "synthetic"
        experiment = (_Symbols if embedded else _Texts)(request, first, output, say)
        if not journal.known:  # before anything is measured
            for index in range(1, len(request.names)):
                experiment.check(_loaded(request, index))
        journal.begin()
        found = _measured(request, first, experiment, journal, say, report)
        record = Record(
            kind=f"evaluate-{request.measurement}",
            values=finite(found),
            config=finite({"data": first.settings.data if first.settings else None, **vars(request)}),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _inputs(request: RetrievalRequest) -> dict[str, Any]:
    """All that the record depends on."""
    first, *others = request.names
    contents: dict[str, Any] = {"the files of MODEL": model_content(first)}
    with naming({"MODEL": "--against"}):
        contents["the files of --against"] = [model_content(name) for name in others]
    return inputs_of(request, {**contents, **text_content(first, request.paths, request.text_field)})


def _loaded(request: RetrievalRequest, index: int) -> LoadedModel:
    with naming({"MODEL": "--against"} if index else {}):
        return load_model(request.names[index], device=str(choose_device(request.device)))


def _measured(
    request: RetrievalRequest,
    first: LoadedModel,
    experiment: _Symbols | _Texts,
    journal: Journal,
    say: Say,
    report: Report,
) -> dict[str, Any]:
    """The values of the record."""
    arms = arm_names(request.names)
    rows: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    total, done = len(experiment.cells) * len(arms), 0
    for index, arm in enumerate(arms):
        say(f"measuring {request.measurement} of {arm}")
        loaded = first if index == 0 else None
        for trained in (True, False):
            rows[arm, trained] = []
            model = None
            for cell in experiment.asked(trained=trained):
                key = journal.key(arm, trained, vars(cell))
                if key not in journal.known:
                    loaded = loaded or _loaded(request, index)
                    model = model or (loaded.model if trained else untrained(loaded.model, request.seed))
                    journal.add(key, experiment.rows(replace(loaded, model=model), cell))
                rows[arm, trained] += journal.known[key]
                done += trained
                report(done, total)
    marked = [{"arm": arm, "trained": trained, **row} for (arm, trained), group in rows.items() for row in group]
    found: dict[str, Any] = {"model": request.names[0], "models": list(request.names), **experiment.described()}
    if request.measurement == "allocation":
        return {**found, "rows": marked}
    summary = [
        {"arm": arm, "trained": trained, **row} for (arm, trained), group in rows.items() for row in summarize(group)
    ]
    baseline = rows[arms[0], True]
    cells = [{**row, "right": "".join(map(str, row["right"]))} for row in marked]
    return {
        **found,
        "cells": cells,
        "summary": summary,
        "trends": [{"arm": arm, **row} for arm in arms for row in trends(rows[arm, True])],
        "paired": [
            {"arm": arm, "baseline": arms[0], **row} for arm in arms[1:] for row in paired(rows[arm, True], baseline)
        ],
    }


def arm_names(names: Sequence[str]) -> list[str]:
    """Short names of models, all different: the last part of a path where that tells them apart."""
    short = [Path(name).name or name for name in names]
    return short if len(set(short)) == len(short) else list(names)


class _Texts:
    """Numbers of cities in plain text."""

    def __init__(self, request: RetrievalRequest, first: LoadedModel, output: Path, say: Say) -> None:
        self.request, self.first = request, first
        own = first.settings.data if first.settings else None
        longest = _positions(first)
        usual = own.sequence_length if own else min(FOREIGN_LENGTH, longest or FOREIGN_LENGTH)
        needles = list(request.needles or [own.needles if own else NEEDLES])
        pairs = [(count, asked) for count, asked in product(needles, request.queries or [1]) if asked <= count]
        if not pairs:
            raise InputError(
                f"--queries {min(request.queries)} is more than --needles {max(needles)}: at most all needles can be "
                "asked for"
            )
        for length in request.lengths:
            if longest is not None and length > longest:
                raise InputError(
                    f"--length {length} is longer than the {longest} positions of {request.names[0]}; shorten it"
                )
        say("cutting contexts from the text")
        haystack = Haystack(self._texts(output, say), first.tokenizer)
        cells = [
            Cell(needles=count, queries=asked, length=length, depth=depth)
            for count, asked in pairs
            for length in request.lengths or [usual]
            for depth in (*request.depths, None)
        ]
        self.cells: dict[Cell, list[Context]] = {
            cell: haystack.contexts(cell, request.samples, seed=request.seed) for cell in cells
        }

    def _texts(self, output: Path, say: Say) -> Iterable[str]:
        """Documents of ``--data``, or what the first model's own run held out."""
        request, first = self.request, self.first
        if request.paths:
            return documents(request.paths, text_field=request.text_field)
        # packed as for training: its sizes need not fit the contexts that are asked for
        data = data_for(first, replace(_of_first(request), length=None, needles=None, queries=None), output, say)
        assert data.validation_text is not None  # not the embedded task
        end = first.tokenizer.eos_token or "\n"
        return first.tokenizer.decode(data.validation_text.tokens[:MOST_HELD_OUT].tolist()).split(end)

    def check(self, loaded: LoadedModel) -> None:
        """Refuse a further model that cannot read these texts."""
        if loaded.settings is not None and loaded.settings.data.source == "synthetic":
            raise InputError(f"--against {loaded.name} knows the words of the synthetic task only, and this is text")
        system = Generating(loaded.model, loaded.tokenizer, f"--against {loaded.name}")
        for contexts in self.cells.values():
            system.prompts(contexts)

    def asked(self, *, trained: bool) -> list[Cell]:
        """All cells; for an untrained model's needles only those with the needle anywhere."""
        every = trained or self.request.measurement == "allocation"
        return [cell for cell in self.cells if every or cell.depth is None]

    def rows(self, loaded: LoadedModel, cell: Cell) -> list[dict[str, Any]]:
        """The rows of one cell."""
        contexts = self.cells[cell]
        if self.request.measurement == "needles":
            system = Generating(loaded.model, loaded.tokenizer, f"MODEL {loaded.name}")
            with refused_by_model(loaded.name):
                return text_needles(system, {cell: contexts})
        batches = [prompt_batch(loaded.tokenizer, context) for context in contexts]
        with refused_by_model(loaded.name):
            found = with_effects(allocation_over(loaded.model, batches), loaded.model, batches)
        return [{**vars(cell), "samples": len(contexts), **row} for row in found]

    def described(self) -> dict[str, Any]:
        return {"task": "text", "guess_rate": next(iter(self.cells)).guess_rate}


MOST_HELD_OUT = 1 << 22
"""Tokens of a run's held-out text that haystacks are cut from."""


class _Symbols:
    """The embedded task, whose words are tokens; answers are read one by one behind the true earlier ones."""

    def __init__(self, request: RetrievalRequest, first: LoadedModel, output: Path, say: Say) -> None:
        self.request, self.first = request, first
        self.data: PreparedData = data_for(first, _of_first(request), output, say)
        tasks = tasks_of(self.data.task, needles=request.needles, queries=request.queries, lengths=request.lengths)
        longest = _positions(first)
        for task in tasks:
            if longest is not None and task.sequence_length > longest:
                raise InputError(
                    f"--length {task.sequence_length} is longer than the {longest} positions of {first.name}; "
                    "shorten it"
                )
            check_task(task)
        self.cells: dict[Cell, RetrievalTask] = {
            Cell(needles=task.needles, queries=task.queries, length=task.sequence_length, depth=depth): task
            for task in tasks
            for depth in (*request.depths, None)
        }

    def check(self, loaded: LoadedModel) -> None:
        """Refuse a further model whose words mean something else."""
        if loaded.tokenizer.get_vocab() != self.first.tokenizer.get_vocab():
            raise InputError(f"--against {loaded.name} has other words than {self.first.name}, so it cannot read them")

    def asked(self, *, trained: bool) -> list[Cell]:
        """All cells, of an untrained model too."""
        return list(self.cells)

    def rows(self, loaded: LoadedModel, cell: Cell) -> list[dict[str, Any]]:
        """The rows of one cell."""
        request, task, depth = self.request, self.cells[cell], cell.depth
        if request.measurement == "needles":
            predict, seed = predictor(loaded.model), request.seed
            with refused_by_model(loaded.name):
                return [needle_cell(predict, task, depth=depth, samples=request.samples, seed=seed)]
        key = (request.seed, "allocation", *(() if depth is None else (depth,)))
        batch = task.sample(request.samples, keyed_generator(*key), depth=depth)
        with refused_by_model(loaded.name):
            found = with_effects(allocation(loaded.model, batch), loaded.model, batches_of(batch))
        return [{"depth": depth, **row} for row in found]

    def described(self) -> dict[str, Any]:
        return {"task": "symbols", "guess_rate": next(iter(self.cells.values())).guess_rate}


def _positions(loaded: LoadedModel) -> int | None:
    """The longest sequence that a model reads; None: no bound."""
    return getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)


def _of_first(request: RetrievalRequest) -> RetrievalTextSettings:
    """The same request for the data of the first model alone."""
    return RetrievalTextSettings(
        name=request.names[0], paths=request.paths, text_field=request.text_field,
        length=next(iter(request.lengths), None), needles=next(iter(request.needles), None),
        queries=next(iter(request.queries), None),
    )  # fmt: skip
