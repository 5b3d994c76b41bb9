"""Items for contextual hallucination: whether a model's text is supported by its context (2410.05258, section 3.6).

The paper asks a judge for a binary verdict on summaries and on answers, without further scores. Verdicts alone would
reward empty, copied or list-like outputs; so empty outputs count as wrong, and other measures show the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError, named, worded
from antiphase.base.randomness import keyed_generator
from antiphase.lab.measures.hallucination import MODEL, WRONG, SystemScore
from antiphase.lab.measures.hallucination.grounding import (
    copied_share,
    coverage,
    entities,
    entity_coverage,
    first_sentences,
    mean_measures,
    with_wrong_entity,
    words,
)
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.labelled import Row, labelled_rows
from antiphase.lab.text.tasks.answers import f1, normalized
from antiphase.lab.text.tokenization import line_breaks, prompt_tokens

Kind = Literal["summarization", "question answering"]
CONTEXTS = ("document", "article", "context", "passage", "text")
REFERENCES: dict[Kind, tuple[str, ...]] = {
    "summarization": ("summary", "highlights", "target"),
    "question answering": ("answers", "answer"),
}
"""Usual names of columns; the first that a row has is used."""
PROMPTS: dict[Kind, str] = {
    "summarization": "Document: {context}\n\nSummary of the document in one sentence:",
    "question answering": "Passage: {context}\n\nQuestion: {question}\n\nAnswer from the passage:",
}
"""Prompts of the model, which writes until the end of the line."""
QUESTIONS: dict[Kind, str] = {
    "summarization": (
        "Here are a document and a summary of it. The summary is faithful if the document says, or clearly implies, "
        "everything in it. It is not faithful if it adds or changes anything, such as a name, a number or who did "
        "what, or if it is no summary at all. Whether it leaves something out does not matter.\n\n"
        "Document: {context}\n\nSummary: {output}\n\n"
        "Is the summary faithful to the document? Reply with one word, yes or no."
    ),
    "question answering": (
        "Here are a passage, a question about it, what counts as a right answer, and a reply. The reply is good if it "
        "answers the question rightly and says nothing that the passage does not say. It is not good if it is wrong, "
        "evades the question, or gives several answers to choose from.\n\n"
        "Passage: {context}\n\nQuestion: {question}\n\nRight: {references}\n\nReply: {output}\n\n"
        "Is the reply good? Reply with one word, yes or no."
    ),
}
"""Prompts of the judge."""


@dataclass(frozen=True)
class Item:
    """A text, a question about it, and correct answers."""

    kind: Kind
    place: str
    """File and line, for messages."""
    context: str
    references: tuple[str, ...]
    question: str = ""

    @property
    def prompt(self) -> str:
        """The model's prompt."""
        return PROMPTS[self.kind].format(context=self.context, question=self.question)

    def asked(self, output: str) -> str:
        """The judge's prompt for an output."""
        return QUESTIONS[self.kind].format(
            context=self.context, question=self.question, references=" / ".join(self.references), output=output
        )


def load_items(path: str) -> list[Item]:
    """Load the rows of a labelled file: documents with a summary, or contexts with a question and its answers.

    Raises:
        InputError: a column is missing or empty; the message names the row.
    """
    if Path(path).suffix.lower() == ".txt":
        raise InputError(
            f"{named('data', path)}: plain text has no columns; give a table (JSON lines, CSV) with document and "
            "summary, or with context, question and answers"
        )
    return [_item(row) for row in labelled_rows(path, field="data")]


def _item(row: Row) -> Item:
    values = row.values
    kind: Kind = "question answering" if "question" in values else "summarization"
    context = _column(row, CONTEXTS, kind)
    given = _column(row, REFERENCES[kind], kind)
    if isinstance(given, Mapping):  # SQuAD's {"text": [...]}
        given = given.get("text", "")
    references = tuple(str(one).strip() for one in (given if isinstance(given, (list, tuple)) else [given]))
    if not isinstance(context, str) or not context.strip():
        raise InputError(f"{row.place}: the text is empty or not text")
    if not references or not all(references):
        raise InputError(f"{row.place}: there is no right {'answer' if kind == 'question answering' else 'summary'}")
    question = str(values.get("question", "")).strip()
    if kind == "question answering" and not question:
        raise InputError(f"{row.place}: the question is empty")
    return Item(kind, worded(row.place), context.strip(), references, question)


def _column(row: Row, names: Sequence[str], kind: Kind) -> Any:
    found = next((name for name in names if name in row.values), None)
    if found is None:
        raise InputError(
            f"{row.place}: {kind} needs one of the columns {', '.join(names)}; there are "
            f"{', '.join(map(str, row.values))}"
        )
    return row.values[found]


@dataclass(frozen=True)
class Prompted:
    """Items drawn for a model, with its prompts."""

    items: list[Item]
    prompts: list[list[int]]
    """Token ids."""
    left_out: int
    """Number of drawn items longer than the model's context."""


def draw(
    items: Sequence[Item],
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    samples: int,
    seed: int,
    room: int | None,
    chat: bool = False,
    beside: Callable[[Item], int] = lambda item: 0,
) -> Prompted:
    """Draw items in random order, the same for every model, without those that do not fit.

    Args:
        name: name of the data, on which the order depends.
        room: largest number of tokens in a prompt; None means no limit.
        chat: whether to ask through the model's chat template.
        beside: tokens that an item needs beside its prompt.

    Raises:
        InputError: too few items fit.
    """
    chosen: list[Item] = []
    prompts: list[list[int]] = []
    left_out = 0
    for index in torch.randperm(len(items), generator=keyed_generator(seed, "hallucination", name)).tolist():
        ids = prompt_tokens(tokenizer, items[index].prompt, chat=chat)
        if room is not None and len(ids) + beside(items[index]) > room:
            left_out += 1
            continue
        chosen.append(items[index])
        prompts.append(ids)
        if len(chosen) == samples:
            return Prompted(chosen, prompts, left_out)
    fit = f"; {left_out} do not fit into the {room} tokens that the model reads beside its output" if left_out else ""
    raise InputError(
        f"--samples {samples} is more than the {len(chosen)} rows of {name} that can be asked{fit}; lower --samples or "
        "use a model with a longer context"
    )


def write(loaded: LoadedModel, prompts: Sequence[Sequence[int]], *, longest: int) -> list[str]:
    """Greedy outputs of the model after each prompt, up to the end of the line.

    Raises:
        ValueError: logits are NaN.
    """
    tokenizer = loaded.tokenizer
    written = generated_tokens(loaded.model, prompts, longest=longest, stop=line_breaks(tokenizer))
    return [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in written]


def lead(items: Sequence[Item]) -> list[str]:
    """The first three sentences of each text: a control that is faithful without any understanding."""
    return [first_sentences(item.context, 3) for item in items]


def wrong_references(items: Sequence[Item], seed: int) -> list[str | None]:
    """References with an error: a summary with a wrong entity, or another question's answer; None if impossible."""
    pool = [entity for item in items for entity in entities(item.references[0], item.context)]
    answers = list(dict.fromkeys(item.references[0] for item in items))
    found: list[str | None] = []
    for index, item in enumerate(items):
        generator = keyed_generator(seed, "wrong reference", index)
        if item.kind == "summarization":
            found.append(with_wrong_entity(item.references[0], item.context, pool, generator))
            continue
        right = {normalized(reference) for reference in item.references}
        others = [
            answer
            for answer in answers
            if not any(normalized(answer) in one or one in normalized(answer) for one in right)
        ]
        chosen = int(torch.randint(len(others), (1,), generator=generator)) if others else None
        found.append(None if chosen is None else others[chosen])
    return found


def measures(item: Item, output: str) -> dict[str, float | None]:
    """Measures other than the verdict, each against the reference with the best value."""
    by_entity = [entity_coverage(output, reference, item.context) for reference in item.references]
    found: dict[str, float | None] = {
        "coverage": max(coverage(output, reference) for reference in item.references),
        "entity_coverage": max((share for share in by_entity if share is not None), default=None),
        "copied": copied_share(output, item.context),
        "words": float(len(words(output))),
    }
    if item.kind == "question answering":
        found["f1"] = f1(output, item.references)
    return found


def score(system: str, items: Sequence[Item], outputs: Sequence[str], verdicts: Sequence[bool | None]) -> SystemScore:
    """Score of one system; the judge's error too, unless it is the model, whose truth is not known.

    Args:
        verdicts: verdicts of the judge; None if it gave none. An empty output is wrong in any case.
    """
    counts: Counter[str] = Counter()
    for output, found in zip(outputs, verdicts, strict=True):
        if not output.strip():
            counts.update(("wrong", "empty"))
        else:
            counts["unjudged" if found is None else "right" if found else "wrong"] += 1
    samples, judged_wrong = len(items), counts["wrong"] - counts["empty"]
    given = 0 if system == MODEL else counts["right"] + judged_wrong
    errors = counts["right"] if system == WRONG else judged_wrong
    return SystemScore(
        system=system,
        samples=samples,
        right=counts["right"],
        wrong=counts["wrong"],
        empty=counts["empty"],
        unjudged=counts["unjudged"],
        accuracy=counts["right"] / samples,
        interval=list(wilson_interval(counts["right"], samples)),
        accuracy_at_most=(counts["right"] + counts["unjudged"]) / samples,
        **mean_measures([measures(item, output) for item, output in zip(items, outputs, strict=True)]),
        judge_error=errors / given if given else None,
        judge_interval=list(wilson_interval(errors, given)) if given else None,
    )
