"""Retrieval in plain text: numbers of cities hidden in essays or books, for any tokenizer (2410.05258, section 3.3).

A context consists of an instruction, a haystack with N needles between its sentences, and one question that asks for
the numbers of R cities. It is text, so that models with different tokenizers read the same; its length is measured in
tokens of one of them. A needle lies between two words if no sentence ends near its depth. Wording and cities are those
of ``retrieval.TextLanguage``, on which models are trained.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.text.retrieval import (
    CITIES,
    INSTRUCTION,
    NUMBER_DIGITS,
    SPANS,
    RetrievalBatch,
    distinct,
    needle,
    number_count,
    number_of,
    question,
)
from antiphase.lab.text.sentences import cut_near, sentence_ends, with_cuts
from antiphase.lab.text.tokenization import opening_of_page

MOST_CHARACTERS = 1 << 24
"""Number of characters at the beginning of a corpus from which haystacks are cut."""
DEPTH_TOLERANCE = 0.1
"""Share of the filler by which a needle may lie off its depth, so that it stands between sentences."""
DENSITY_SAMPLE = 1 << 16
"""Number of characters from which the average length of a token is estimated."""
LENGTH_TOLERANCE = 8
"""Number of tokens by which a context may fall short of its length."""
MARGIN = 64
"""Largest difference in tokens between a context and its parts tokenized separately."""
MOST_ATTEMPTS = 6
"""Number of attempts at cutting the filler until a context has its length."""
OUTPUT_SLACK = 16
"""Number of tokens that an output may have in addition to the answers as the needles write them."""


@dataclass(frozen=True)
class Context:
    """One context and the correct answers."""

    text: str
    """The context, which ends with the question."""
    answers: tuple[str, ...]
    """The numbers of the R cities, in the order of the question."""
    numbers: tuple[str, ...]
    """All N numbers, in the order of the text."""
    cities: tuple[str, ...]
    """Their cities, in the same order."""
    spans: tuple[tuple[str, int, int], ...]
    """(name in ``SPANS``, start, stop) in characters, in order and without gaps; ``first_token`` does not occur."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Size of a context, and depth of the first needle asked for: 0 at the start, 1 at the end, None if random."""

    needles: int
    queries: int
    length: int
    """Length in tokens, including those of the output."""
    depth: float | None

    @property
    def guess_rate(self) -> float:
        """Score of naming R different numbers out of N at random, in any order."""
        return 1 / math.perm(self.needles, self.queries)


class Haystack:
    """A corpus from which contexts are cut."""

    def __init__(
        self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, digits: int = NUMBER_DIGITS
    ) -> None:
        """
        Args:
            texts: documents; only the first 16M characters are read.
            tokenizer: tokenizer that measures lengths.
            digits: of a number.

        Raises:
            InputError: the tokenizer does not give character offsets of its tokens.
        """
        if not tokenizer.is_fast:
            raise InputError(
                f"MODEL: {type(tokenizer).__name__} does not run on the tokenizers library; choose a model that comes "
                "with tokenizer.json"
            )
        parts, size = [], 0
        for text in texts:
            parts.append(text[: MOST_CHARACTERS - size].strip())
            size += len(parts[-1]) + 2
            if size >= MOST_CHARACTERS:
                break
        self.text = "\n\n".join(parts)
        self.tokenizer, self.digits = tokenizer, digits
        sample = self.text[:DENSITY_SAMPLE]
        self.density = len(sample) / max(1, len(encode(tokenizer, sample)))  # characters per token
        ends = sentence_ends(self.text, wrapped=True)
        self.places = sorted({0, *with_cuts(self.text, ends), len(self.text)})

    def contexts(self, cell: Cell, count: int, *, seed: int) -> list[Context]:
        """``count`` contexts, which depend only on the corpus, the tokenizer, the cell and the seed.

        Raises:
            InputError: there are more questions than needles or more needles than cities, or the length or corpus is
                too short.
        """
        if not 1 <= cell.queries <= cell.needles <= len(CITIES):
            raise InputError(
                f"--needles {cell.needles} with --queries {cell.queries}: --queries can be at most --needles, and "
                f"--needles at most the number of cities, {len(CITIES)}"
            )
        generator = keyed_generator(seed, "contexts", cell.needles, cell.queries, cell.length, cell.depth)
        keys = torch.rand(count, len(CITIES), generator=generator).argsort(1)[:, : cell.needles].tolist()
        values = distinct(count, cell.needles, number_count(self.digits), generator).tolist()
        depths = torch.rand(count, cell.needles, generator=generator)
        if cell.depth is not None:
            depths[:, 0] = cell.depth
        starts = torch.rand(count, generator=generator).tolist()
        return [
            self._context(
                cell,
                [CITIES[key] for key in keys[row]],
                [number_of(value, self.digits) for value in values[row]],
                depths[row].tolist(),
                starts[row],
            )
            for row in range(count)
        ]

    def _context(self, cell: Cell, cities: list[str], numbers: list[str], depths: list[float], start: float) -> Context:
        """A context that asks for the first R cities; the needle of the first one is at ``depths[0]``."""
        needles = [needle(city, number) for city, number in zip(cities, numbers, strict=True)]
        asked = question(cities[: cell.queries])
        budget = cell.length - output_tokens(self.tokenizer, cell.queries) - len(opening_of_page(self.tokenizer))
        room = budget - sum(len(encode(self.tokenizer, text)) for text in (INSTRUCTION, *needles, asked))
        if room < 0:
            raise InputError(
                f"--length {cell.length} is too short for --needles {cell.needles} and --queries {cell.queries}, which "
                f"take {cell.length - room} tokens: raise it, or lower --needles or --queries"
            )
        first, ends = self._stretch(room + MARGIN, room, start, cell)
        found: tuple[int, Context] | None = None  # tokens by which it falls short, and the context
        for _ in range(MOST_ATTEMPTS):
            last = ends[room - 1] if room else first
            context = self._assembled(first, last, cities, numbers, depths, asked, cell.queries)
            spare = budget - len(encode(self.tokenizer, context.text))
            if spare >= 0 and (found is None or spare < found[0]):
                found = spare, context
            if 0 <= spare <= LENGTH_TOLERANCE or not 0 <= room + spare <= len(ends):
                break
            room += spare
        if found is None:  # the context has more tokens than its parts separately
            raise InputError(f"--length {cell.length} is too short for --needles {cell.needles}: raise it")
        return found[1]

    def _stretch(self, wanted: int, needed: int, start: float, cell: Cell) -> tuple[int, list[int]]:
        """Filler that begins after a sentence: its first character, and the end of each of its tokens.

        It has ``wanted`` tokens, or at least ``needed`` if the text is too short.
        """
        ends: list[int] = []
        for first, text in self._stretches(wanted, start):
            ends = [first + end for _, end in offsets(self.tokenizer, text)]
            if len(ends) >= wanted:
                return first, ends[:wanted]
        if len(ends) >= needed:
            return first, ends
        raise InputError(
            f"the text has {len(ends)} tokens, fewer than the {needed} of filler that --length {cell.length} "
            "needs; give more text with --data or lower --length"
        )

    def stretch(self, tokenizer: PreTrainedTokenizerBase, count: int, start: float) -> list[int]:
        """``count`` token ids of the text, from the beginning of a sentence.

        Args:
            start: where in the text it begins, 0 to 1.

        Raises:
            InputError: the text is too short.
        """
        ids: list[int] = []
        for _, text in self._stretches(count, start):
            ids = encode(tokenizer, text)
            if len(ids) >= count:
                return ids[:count]
        raise InputError(f"the text has {len(ids)} tokens, fewer than the {count} of filler; give more with --data")

    def _stretches(self, tokens: int, start: float) -> Iterator[tuple[int, str]]:
        """Pieces of the text that begin after a sentence: the first character, and the text, until all of it."""
        width = math.ceil(1.2 * self.density * tokens) + 64
        while True:
            latest = max(0, bisect_right(self.places, max(0, len(self.text) - width)) - 1)
            first = self.places[int(start * (latest + 1))]
            yield first, self.text[first : first + width]
            if width >= len(self.text):
                return
            width *= 2

    def _assembled(
        self,
        first: int,
        last: int,
        cities: list[str],
        numbers: list[str],
        depths: list[float],
        asked: str,
        queries: int,
    ) -> Context:
        low, high = bisect_left(self.places, first), bisect_right(self.places, last)
        places = sorted({first, *self.places[low:high], last})
        chosen = []
        for index, depth in enumerate(depths):
            target = first + depth * (last - first)
            after = bisect_left(places, target)
            near = min(places[max(0, after - 1) : after + 1], key=lambda place: abs(place - target))
            reach = DEPTH_TOLERANCE * (last - first)
            if abs(near - target) > reach:
                near = cut_near(self.text, round(target), int(reach))
            chosen.append((near, depth, index))
        parts: list[tuple[str, str]] = [("instruction", INSTRUCTION)]
        done, order = first, sorted(chosen)
        for place, _, index in order:
            parts.append(("filler", self.text[done:place]))
            parts.append(("answer" if index == 0 else "other_needles", needle(cities[index], numbers[index])))
            done = place
        parts += [("filler", self.text[done:last]), ("question", asked)]
        text, spans = joined(parts)
        return Context(
            text=text,
            answers=tuple(numbers[:queries]),
            numbers=tuple(numbers[index] for _, _, index in order),
            cities=tuple(cities[index] for _, _, index in order),
            spans=spans,
        )


def joined(parts: Sequence[tuple[str, str]]) -> tuple[str, tuple[tuple[str, int, int], ...]]:
    """The text of a context from (name of the span, text), and its spans; empty parts have none."""
    spans, at = [], 0
    for name, text in parts:
        if text:
            spans.append((name, at, at + len(text)))
        at += len(text)
    return "".join(text for _, text in parts), tuple(spans)


def output_tokens(tokenizer: PreTrainedTokenizerBase, queries: int) -> int:
    """Number of tokens to generate: enough for the answers and a few words around them."""
    return len(encode(tokenizer, " and".join([" " + "9" * NUMBER_DIGITS] * queries))) + OUTPUT_SLACK


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids, without special tokens added."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def offsets(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    """First and last character of each token."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return encoded["offset_mapping"]


def prompt_ids(tokenizer: PreTrainedTokenizerBase, context: Context) -> list[int]:
    """Token ids of a context as a model's input, with the tokenizer's opening token."""
    return [*opening_of_page(tokenizer), *encode(tokenizer, context.text)]


def prompt_batch(tokenizer: PreTrainedTokenizerBase, context: Context) -> RetrievalBatch:
    """One context with its first answer as token ids, with the span of each token of the context. A token's span is
    that of its last character, except that the first token is ``first_token``.
    """
    opening = opening_of_page(tokenizer)
    prompt, answer = prompt_ids(tokenizer, context), encode(tokenizer, f" {context.answers[0]}")
    stops = [stop for _, _, stop in context.spans]
    kinds = [SPANS.index("first_token")] * len(opening)
    for _, end in offsets(tokenizer, context.text):
        kinds.append(SPANS.index(context.spans[min(bisect_left(stops, end), len(stops) - 1)][0]))
    kinds[0] = SPANS.index("first_token")
    row = torch.tensor([*kinds, *[-1] * len(answer)])
    return RetrievalBatch(
        input_ids=torch.tensor([[*prompt, *answer]]),
        answer_positions=torch.arange(len(prompt), len(prompt) + len(answer))[None, None],
        prompt_end=torch.tensor([len(prompt) - 1]),
        spans={name: (row == index)[None] for index, name in enumerate(SPANS)},
    )
