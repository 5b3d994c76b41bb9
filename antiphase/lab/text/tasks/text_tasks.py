"""Tasks that need only text: retrieval of hidden facts, and continuation of a passage."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.settings.naming import naming
from antiphase.lab.settings.presets import RunSettings
from antiphase.lab.text.corpora import COLUMN_REMEDY, documents
from antiphase.lab.text.prepare import symbols
from antiphase.lab.text.retrieval import Language, RetrievalTask, TextLanguage
from antiphase.lab.text.tasks.samples import Sample, Task
from antiphase.lab.text.tasks.task_files import NO_DATA, TaskFileSettings, place_of
from antiphase.lab.text.tokenization import opening_of_text

NEEDLES, LENGTH, PASSAGE = 4, 512, 96


def _text_tokens(settings: TaskFileSettings, folder: Path, tokenizer: PreTrainedTokenizerBase) -> numpy.ndarray:
    """Token ids of all documents of the task's data, concatenated."""
    with naming({COLUMN_REMEDY: "call the one that holds the text 'text'"}):
        text = "\n\n".join(documents([place_of(folder, settings.data)], field=".data"))
    return numpy.array(tokenizer(text, add_special_tokens=False)["input_ids"])


def continuations(
    settings: TaskFileSettings,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
    seed: int,
    longest: int | None,
) -> Task:
    """Passages of a text; the correct option is the true continuation, the others continue other passages."""
    tokens = _text_tokens(settings, folder, tokenizer)
    length, width, offered = settings.length or PASSAGE, settings.continuation, settings.offered
    opening = opening_of_text(tokenizer)
    if longest is not None and len(opening) + length + width > longest:
        raise InputError(f"length ({length}) and continuation ({width}) are more than the {longest} the model reads")
    count = len(tokens) // (length + width)
    if count < max(samples, offered):
        raise InputError(
            f"the text has {len(tokens):,} tokens, {count} passages of {length + width}, for {samples} samples; give "
            "more text, fewer --samples or a shorter length"
        )
    passages = tokens[: count * (length + width)].reshape(count, length + width)
    generator = keyed_generator(seed, "continuations", settings.name)
    found: list[Sample] = []
    for number in torch.randperm(count, generator=generator).tolist():
        if len(found) == samples:
            break
        others = [i for i in torch.randperm(count, generator=generator)[:offered].tolist() if i != number]
        target = int(torch.randint(0, offered, (1,), generator=generator))
        chosen = [*others[: offered - 1]]
        chosen.insert(target, number)
        options = tuple(tuple(passages[index, length:].tolist()) for index in chosen)
        if len(set(options)) < offered:
            continue  # two passages with the same continuation
        prompt = (*opening, *passages[number, :length].tolist())
        found.append(
            Sample(
                prompt=prompt, options=options, target=target, lengths=(1.0,) * offered, answers=(), metric="accuracy",
                longest=width, decode=tokenizer.decode, row=number, spans=(("question", 0, len(prompt)),),
            )
        )  # fmt: skip
    if len(found) < samples:
        raise InputError(
            f"only {len(found)} of {count} passages can be used, because the others have equal continuations; give "
            "fewer --samples, a text that repeats itself less, or a longer continuation"
        )
    return Task(settings.name, found, 1 / offered, "accuracy")


def needles(
    settings: TaskFileSettings,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
    seed: int,
    longest: int | None,
    run: RunSettings | None,
) -> Task:
    """Facts about cities in running text, or the synthetic task of the model's own run; one fact is asked for."""
    if settings.data is None:
        if run is None or run.data.source != "synthetic":
            raise InputError(NO_DATA)
        needles, length = settings.needles or run.data.needles, settings.length or run.data.sequence_length
        language: Language = symbols(run.data)
        queries = run.data.queries
    else:
        needles, length, queries = settings.needles or NEEDLES, settings.length or LENGTH, 1
        has_small = run is not None and run.data.one_token_numbers
        language = TextLanguage(tokenizer, _text_tokens(settings, folder, tokenizer), one_token_numbers=has_small)
    if longest is not None and length > longest:
        raise InputError(f"length ({length}) is more than the {longest} tokens that the model reads")
    words = {"data.needles": "needles", "data.sequence_length": "length", "--validation": "data"}
    with naming(words):
        task = RetrievalTask(language, needles=needles, queries=queries, sequence_length=length)
        return needle_task(settings.name, task, tokenizer, samples, seed)


def needle_task(name: str, task: RetrievalTask, tokenizer: PreTrainedTokenizerBase, samples: int, seed: int) -> Task:
    """Samples of a retrieval task: the prompt ends with the first question, and the whole answer must be correct."""
    batch = task.sample(samples, keyed_generator(seed, "needles", name))
    found = []
    rows = zip(batch.input_ids.tolist(), batch.prompt_end.tolist(), batch.answer_positions[:, 0].tolist(), strict=True)
    for number, (ids, end, answers) in enumerate(rows):
        answer = tuple(ids[place] for place in answers if place >= 0)
        found.append(
            Sample(
                prompt=tuple(ids[: end + 1]), options=(answer,), target=0, lengths=(1.0,),
                answers=(), metric="greedy", longest=len(answer), decode=tokenizer.decode, row=number,
            )
        )  # fmt: skip
    return Task(name, found, task.guess_rate, "greedy")
