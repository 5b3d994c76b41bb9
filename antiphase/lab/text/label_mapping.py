"""Labels learned in context: lines with a word and its label, where each sequence has a new random assignment.

A label can only be inferred from earlier lines, so a model that predicts the labels of repeated words has learned
in-context learning, which many-shot classification requires (2410.05258, section 3.4).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.lab.text.tokenization import opening_of_page

WORDS = (
    "apple", "barn", "bell", "boat", "bread", "bridge", "candle", "chair", "cloud", "coat", "corn", "cow",
    "cup", "door", "drum", "farm", "fish", "flag", "flower", "forest", "gate", "glass", "goat", "hammer",
    "hat", "horse", "house", "island", "key", "lamp", "leaf", "letter", "mill", "moon", "nest", "oar",
    "pipe", "river", "road", "rope", "sail", "shoe", "spoon", "stone", "sword", "table", "tree", "wheel",
)  # fmt: skip
LABELS = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")
PROMPT, ENDING = "Colour: {word}", "\n"
"""A line of the task; the label follows after a space, right after its word, as in ``retrieval.needle``."""


class LabelMapping:
    """Generates sequences of examples: ``words`` words from WORDS, each with one of ``labels`` labels from LABELS."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, sequence_length: int, words: int = 8, labels: int = 4
    ) -> None:
        self.sequence_length, self.words, self.labels = sequence_length, words, labels
        self.opening = opening_of_page(tokenizer)
        self.lines = {
            (word, label): tokenizer.encode(example(word, label), add_special_tokens=False)
            for word in WORDS
            for label in LABELS
        }

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` sequences, (count, sequence_length) int64; the last line of each may be truncated."""
        return torch.tensor([self._row(generator) for _ in range(count)])

    def _row(self, generator: torch.Generator) -> list[int]:
        mapping = draw_mapping(generator, words=self.words, labels=self.labels)
        chosen = list(mapping)
        ids = list(self.opening)
        while len(ids) < self.sequence_length:
            word = chosen[int(torch.randint(0, len(chosen), (1,), generator=generator))]
            ids += self.lines[word, mapping[word]]
        return ids[: self.sequence_length]


def draw_mapping(generator: torch.Generator, *, words: int, labels: int) -> Mapping[str, str]:
    """Words with one label each; labels have equally many words, as far as possible."""
    chosen = [WORDS[i] for i in torch.randperm(len(WORDS), generator=generator)[:words].tolist()]
    names = [LABELS[i] for i in torch.randperm(len(LABELS), generator=generator)[:labels].tolist()]
    return {word: names[place % labels] for place, word in enumerate(chosen)}


def example(word: str, label: str) -> str:
    """One line, as ``task_rows`` writes its examples."""
    return f"{PROMPT.format(word=word)} {label}{ENDING}"


def label_page() -> str:
    """Every word and every label, for training a tokenizer."""
    return "".join(example(word, LABELS[index % len(LABELS)]) for index, word in enumerate(WORDS))


def task_rows(generator: torch.Generator, *, count: int, words: int = 8, labels: int = 4) -> list[tuple[str, str]]:
    """``count`` (label, word) rows of one assignment, to be asked after examples from other rows."""
    mapping = draw_mapping(generator, words=words, labels=labels)
    chosen = list(mapping)
    drawn = torch.randint(0, words, (count,), generator=generator).tolist()
    return [(mapping[chosen[place]], chosen[place]) for place in drawn]
