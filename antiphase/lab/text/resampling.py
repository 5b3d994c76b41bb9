"""Draws the irrelevant tokens of a retrieval context again: its filler, or the facts that it is not asked for.

Nothing else changes, and no token moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.lab.text.haystacks import Context, Haystack, encode, joined, offsets, prompt_batch
from antiphase.lab.text.retrieval import CITIES, RetrievalBatch, RetrievalTask, needle
from antiphase.lab.text.tokenization import opening_of_page

Part = Literal["filler", "other_needles"]
"""What is drawn again."""
PARTS: tuple[Part, ...] = ("filler", "other_needles")
MOST_DRAWS = 64
"""Number of draws of a context's other facts until they have as many tokens as before."""


def of_symbols(
    task: RetrievalTask, batch: RetrievalBatch, row: int, part: Part, count: int, generator: torch.Generator
) -> Tensor:
    """Copies of one sequence of the synthetic task, each with the part drawn again: (count, L).

    Args:
        task: has one-token keys and values (``SymbolLanguage``), and drew the batch.
        row: of the batch.
    """
    language = task.language
    ids = batch.input_ids[row].repeat(count, 1)
    places = batch.spans[part][row].nonzero().flatten()
    if part == "filler":
        for copy in ids:
            copy[places] = torch.tensor(language.filler(len(places), generator)[0], dtype=ids.dtype)
        return ids
    (first_key,), (first_value,) = language.question(0), language.answer(0)
    key, value = batch.input_ids[row][batch.spans["answer"][row]].tolist()
    for copy in ids:
        keys, values = (
            _others(size, taken, len(places) // 2, generator)
            for size, taken in ((language.key_count, key - first_key), (language.value_count, value - first_value))
        )
        copy[places] = torch.stack([keys + first_key, values + first_value], dim=1).flatten()
    return ids


def _others(size: int, taken: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different numbers below ``size``, none of them ``taken``."""
    order = torch.randperm(size - 1, generator=generator)[:count]
    return order + (order >= taken).long()


@dataclass(frozen=True)
class TextResampler:
    """Draws parts of contexts in text again, in tokens of one model."""

    haystack: Haystack
    """The corpus, from which other filler is cut."""
    tokenizer: PreTrainedTokenizerBase

    def copies(self, context: Context, part: Part, count: int, generator: torch.Generator) -> Tensor:
        """Copies of a context's prompt and first answer, as ``prompt_batch`` has them: (count, L).

        Filler is another stretch of the corpus, from the beginning of a sentence; needles then stand within its
        sentences. Other facts are other cities and numbers of as many tokens.

        Raises:
            InputError: the corpus is shorter than the filler, or no other facts have as many tokens.
        """
        batch = prompt_batch(self.tokenizer, context)
        if part == "other_needles":
            return torch.cat([self._other_facts(context, batch, generator) for _ in range(count)])
        ids = batch.input_ids.repeat(count, 1)
        places = self._filler_places(context, batch)
        starts = torch.rand(count, generator=generator).tolist()
        for copy, start in zip(ids, starts, strict=True):
            copy[places] = torch.tensor(self.haystack.stretch(self.tokenizer, len(places), start), dtype=ids.dtype)
        return ids

    def _filler_places(self, context: Context, batch: RetrievalBatch) -> Tensor:
        """Positions of the tokens all of whose characters are filler."""
        filler = [(start, stop) for name, start, stop in context.spans if name == "filler"]
        opening = len(opening_of_page(self.tokenizer))
        places = [
            opening + place
            for place, (first, end) in enumerate(offsets(self.tokenizer, context.text))
            if any(start <= first and end <= stop for start, stop in filler)
        ]
        return torch.tensor([place for place in places if batch.spans["filler"][0, place]], dtype=torch.long)

    def _other_facts(self, context: Context, before: RetrievalBatch, generator: torch.Generator) -> Tensor:
        """(1, L), whose spans are those of ``before``."""
        for _ in range(MOST_DRAWS):
            found = prompt_batch(self.tokenizer, self._drawn(context, generator))
            if all(torch.equal(span, before.spans[name]) for name, span in found.spans.items()):
                return found.input_ids
        raise InputError(
            f"{type(self.tokenizer).__name__} splits every drawn set of facts into more or fewer tokens than those of "
            "the context, so other facts cannot take their places; lower --needles"
        )

    def _drawn(self, context: Context, generator: torch.Generator) -> Context:
        """The context with other cities and numbers in the facts that it is not asked for."""
        kept = {city for city, number in zip(context.cities, context.numbers, strict=True) if number in context.answers}
        free = {size: [city for city in cities if city not in kept] for size, cities in self._cities.items()}
        taken = set(context.answers)
        parts: list[tuple[str, str]] = []
        facts = iter(zip(context.cities, context.numbers, strict=True))
        for name, start, stop in context.spans:
            text = context.text[start:stop]
            if name in ("answer", "other_needles"):
                city, number = next(facts)
                if city not in kept:
                    cities = free[self._size(city)]
                    city = cities.pop(int(torch.randint(0, len(cities), (1,), generator=generator)))
                    number = self._number(number, taken, generator)
                    text = needle(city, number)
                taken.add(number)
            parts.append((name, text))
        text, spans = joined(parts)
        return replace(context, text=text, spans=spans)

    def _number(self, before: str, taken: set[str], generator: torch.Generator) -> str:
        """Another number of as many digits and tokens."""
        least = 10 ** (len(before) - 1)
        while True:
            drawn = int(torch.randint(least, 10 * least, (1,), generator=generator))
            if str(drawn) not in taken and self._size(str(drawn)) == self._size(before):
                return str(drawn)

    def _size(self, word: str) -> int:
        """Number of tokens of a word after a space."""
        return len(encode(self.tokenizer, f" {word}"))

    @cached_property
    def _cities(self) -> dict[int, Sequence[str]]:
        """All cities by their number of tokens."""
        found: dict[int, list[str]] = {}
        for city in CITIES:
            found.setdefault(self._size(city), []).append(city)
        return dict(found)
