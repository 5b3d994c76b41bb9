"""Multi-needle retrieval: facts hidden in filler, some of which are asked for at the end.

A sequence consists of an opening token, if the model reads one (``tokenization.opening_of_page``), an instruction (text
only), a haystack of filler with N needles (each a key and its value), and R questions, each followed by its answer.
Questions are drawn **with replacement**, and only the first answer is scored: if all N were asked in turn, a model that
names any value not yet named would score (1 + 1/2 + ... + 1/N)/N without retrieving anything. Values within a sequence
differ, so guessing one of them scores 1/N.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.lab.text.tokenization import id_count, opening_of_page
from antiphase.ops.shapes import IGNORED_TARGET

SPANS = ("first_token", "instruction", "answer", "other_needles", "filler", "question")
"""Parts of a prompt; each token up to the end of the first question belongs to exactly one."""

CITIES = (
    "Accra", "Algiers", "Amman", "Ankara", "Athens", "Baghdad", "Bangkok", "Beirut",
    "Belgrade", "Berlin", "Bern", "Bogota", "Boston", "Brussels", "Bucharest", "Budapest",
    "Cairo", "Caracas", "Chicago", "Copenhagen", "Dakar", "Damascus", "Delhi", "Denver",
    "Dublin", "Geneva", "Hanoi", "Havana", "Helsinki", "Istanbul", "Jakarta", "Kyoto",
    "Lagos", "Lima", "Lisbon", "London", "Madrid", "Manila", "Miami", "Milan",
    "Montreal", "Moscow", "Munich", "Nairobi", "Naples", "Oslo", "Osaka", "Paris",
    "Prague", "Quito", "Riga", "Rome", "Santiago", "Seoul", "Sofia", "Stockholm",
    "Tehran", "Tokyo", "Tunis", "Turin", "Vienna", "Warsaw", "Zagreb", "Zurich",
)  # fmt: skip
NUMBER_DIGITS = 4
ONE_TOKEN_DIGITS = 2
"""Digits of a number that is to be one token: as many as a token of the tokenizers trained here has."""
INSTRUCTION = "Remember the number of every city in this text.\n\n"


@dataclass(frozen=True)
class RetrievalBatch:
    """B sequences of L tokens with R questions; A is the length of the longest answer in tokens."""

    input_ids: Tensor
    """(B, L) int64."""
    answer_positions: Tensor
    """(B, R, A) int64: positions of each answer's tokens, -1 after its end and in questions that are not asked."""
    prompt_end: Tensor
    """(B,) int64: position of the last token before the first answer."""
    spans: dict[str, Tensor]
    """Bool (B, L) by name in ``SPANS``; tokens after ``prompt_end`` are in no span."""

    def labels(self) -> Tensor:
        """(B, L): the answers' tokens, -100 elsewhere."""
        labels = torch.full_like(self.input_ids, IGNORED_TARGET)
        rows = torch.arange(len(labels))[:, None, None].expand_as(self.answer_positions)
        real = self.answer_positions >= 0
        rows, columns = rows[real], self.answer_positions[real]
        labels[rows, columns] = self.input_ids[rows, columns]
        return labels

    def text_labels(self) -> Tensor:
        """(B, L): all tokens except those of the instruction and the needles, which are random."""
        drawn = self.spans["instruction"] | self.spans["answer"] | self.spans["other_needles"]
        return self.input_ids.masked_fill(drawn, IGNORED_TARGET)


class Language(Protocol):
    """The token ids of facts, questions and filler."""

    key_count: int
    value_count: int

    def opening(self) -> list[int]: ...

    def instruction(self) -> list[int]: ...

    def question(self, *keys: int) -> list[int]:
        """The tokens before a value, in a needle or a question; with several keys, those before all their values."""
        ...

    def answer(self, value: int) -> list[int]: ...

    def longest_answer(self) -> int:
        """How many tokens the longest answer has."""
        ...

    def between(self, left: int) -> list[int]:
        """The tokens between two answers to one question, if ``left`` answers are still to come."""
        ...

    def ending(self) -> list[int]: ...

    def filler(self, count: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        """``count`` tokens, and the sorted positions in 0..count where a needle may be inserted."""
        ...


class SymbolLanguage:
    """The synthetic default: a needle is two tokens, a key and a number, and filler is random. It needs no file.

    Token ids: 0 padding, 1 end of sequence, then keys, numbers and filler words.
    """

    special_tokens = ("<pad>", "<eos>")

    def __init__(self, keys: int, numbers: int, fillers: int) -> None:
        self.key_count, self.value_count, self.filler_count = keys, numbers, fillers

    @property
    def words(self) -> list[str]:
        """Every token as a word, ordered by id."""
        return [
            *self.special_tokens,
            *(f"key{index}" for index in range(self.key_count)),
            *(f"n{index}" for index in range(self.value_count)),
            *(f"w{index}" for index in range(self.filler_count)),
        ]

    def opening(self) -> list[int]:
        return [1]

    def instruction(self) -> list[int]:
        return []

    def question(self, *keys: int) -> list[int]:
        return [len(self.special_tokens) + key for key in keys]

    def between(self, left: int) -> list[int]:
        return []

    def answer(self, value: int) -> list[int]:
        return [len(self.special_tokens) + self.key_count + value]

    def longest_answer(self) -> int:
        return 1

    def ending(self) -> list[int]:
        return []

    def filler(self, count: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        first = len(self.special_tokens) + self.key_count + self.value_count
        ids = torch.randint(first, first + self.filler_count, (count,), generator=generator)
        return ids.tolist(), list(range(count + 1))


class TextLanguage:
    """Numbers of cities in running text: " City number: Paris 4821." between sentences of a corpus."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, filler_tokens: numpy.ndarray, *, one_token_numbers: bool = False
    ) -> None:
        """
        Args:
            filler_tokens: a flat array of token ids from which filler is cut.
            one_token_numbers: as ``data.one_token_numbers``.

        Raises:
            InputError: numbers should be one token, and the tokenizer splits one.
        """
        self.key_count = len(CITIES)
        self._digits = digits_of(one_token=one_token_numbers)
        self.value_count = number_count(self._digits)
        self._tokenizer = tokenizer
        self._tokens = filler_tokens
        self._questions = [self._encode(question([city])) for city in CITIES]
        self._answers: dict[int, list[int]] = {}
        self._comma, self._and = self._encode(","), self._encode(" and")
        self._ending = self._encode(".")
        self._instruction = self._encode(INSTRUCTION)
        self._opening = list(opening_of_page(tokenizer))
        ends = (".", "!", "?", "\n", ".”", "!”", "?”")
        self._sentence_ends = numpy.array(
            [tokenizer.decode([index]).rstrip(" ").endswith(ends) for index in range(id_count(tokenizer))]
        )
        if one_token_numbers and (longest := self.longest_answer()) > 1:
            raise InputError(
                f"data.one_token_numbers: the tokenizer writes numbers of {self._digits} digits as up to {longest} "
                "tokens; raise data.vocabulary_size, choose another data.tokenizer, or leave the setting out"
            )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def opening(self) -> list[int]:
        return self._opening

    def instruction(self) -> list[int]:
        return self._instruction

    def question(self, *keys: int) -> list[int]:
        return self._questions[keys[0]] if len(keys) == 1 else self._encode(question([CITIES[key] for key in keys]))

    def between(self, left: int) -> list[int]:
        return self._and if left == 1 else self._comma

    def answer(self, value: int) -> list[int]:
        if value not in self._answers:
            self._answers[value] = self._encode(f" {number_of(value, self._digits)}")
        return self._answers[value]

    def longest_answer(self) -> int:
        numbers = [f" {number_of(value, self._digits)}" for value in range(self.value_count)]
        return max(map(len, self._tokenizer(numbers, add_special_tokens=False).input_ids))

    def ending(self) -> list[int]:
        return self._ending

    def filler(self, count: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        if len(self._tokens) < count:
            raise InputError(
                f"the held-out text has {len(self._tokens)} tokens, fewer than the {count} of filler that a retrieval "
                f"sequence needs; give more text with --validation or shorten data.sequence_length"
            )
        start = int(torch.randint(0, len(self._tokens) - count + 1, (1,), generator=generator))
        ids = numpy.asarray(self._tokens[start : start + count], dtype=numpy.int64)
        places = (numpy.flatnonzero(self._sentence_ends[ids]) + 1).tolist()
        return ids.tolist(), sorted({0, *places, count})


class RetrievalTask:
    """Generates retrieval sequences of one language."""

    def __init__(
        self,
        language: Language,
        *,
        needles: int,
        queries: int,
        sequence_length: int,
        together: int = 1,
        queries_drawn: bool = False,
    ) -> None:
        """
        Args:
            queries: number of facts asked for in a sequence.
            together: largest number of different facts that one question asks for; each sequence draws its number
                between 1 and this.
            queries_drawn: whether ``queries`` is the largest number, and each sequence draws its own from 1 on.

        Raises:
            InputError: there are no needles or questions, or more needles than keys or values.
        """
        self.language, self.needles, self.queries, self.sequence_length = language, needles, queries, sequence_length
        self.together, self.queries_drawn = together, queries_drawn
        self._of_length: dict[int, RetrievalTask] = {}
        for name, count in (("data.needles", needles), ("data.queries", queries)):
            if count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        for name, count in (("keys", language.key_count), ("values", language.value_count)):
            if needles > count:
                raise InputError(f"data.needles ({needles}) is more than the {count} different {name} of the task")
        if not 1 <= together <= min(needles, queries):
            raise InputError(
                f"data.asked_together must lie between 1 and data.needles and data.queries ({min(needles, queries)}), "
                f"got {together}"
            )

    @property
    def guess_rate(self) -> float:
        """Score of naming one of the context's values at random."""
        return 1.0 / self.needles

    def of_length(self, sequence_length: int) -> RetrievalTask:
        """The same task in sequences of another length, with as many of the facts as fit and questions in proportion,
        but with no fewer than two facts, because the number of a single one is right wherever it is.
        """
        if sequence_length not in self._of_length:
            least = min(2, self.needles)
            *more, few = (self._of_size(needles, sequence_length) for needles in range(self.needles, least - 1, -1))
            self._of_length[sequence_length] = next(
                (task for task in more if task.most_tokens() <= sequence_length), few
            )
        return self._of_length[sequence_length]

    def _of_size(self, needles: int, sequence_length: int) -> RetrievalTask:
        queries = math.ceil(self.queries * needles / self.needles)
        return RetrievalTask(
            self.language, needles=needles, queries=queries, sequence_length=sequence_length,
            together=min(self.together, needles, queries), queries_drawn=self.queries_drawn,
        )  # fmt: skip

    def most_tokens(self) -> int:
        """Tokens of a sequence without filler if its keys and values are the longest."""
        language = self.language
        keys = sorted(range(language.key_count), key=lambda key: -len(language.question(key)))
        questions = [len(language.question(key)) for key in keys[: self.needles]]
        answer = language.longest_answer() + len(language.ending())
        asking = []  # tokens of all questions and answers, by number of facts per question
        for size in range(1, self.together + 1):
            between = max(len(language.between(left)) for left in (1, 2)) * (size - 1)
            words = len(language.question(*keys[:size])) + between
            asking.append(-(-self.queries // size) * words + self.queries * answer)
        beginning = len(language.opening()) + len(language.instruction())
        return beginning + sum(questions) + self.needles * answer + max(asking)

    def sample(self, count: int, generator: torch.Generator, *, depth: float | None = None) -> RetrievalBatch:
        """``count`` sequences. ``depth`` of the first needle asked for: a fraction of the haystack, or None for any.

        Raises:
            InputError: needles and questions do not fit in the length, there is too little text for the filler, or the
                depth is outside 0 to 1.
        """
        if depth is not None and not 0 <= depth <= 1:
            raise InputError(f"the depth of a needle must lie between 0 and 1, got {depth}")
        keys = torch.rand(count, self.language.key_count, generator=generator).argsort(1)[:, : self.needles].tolist()
        values = distinct(count, self.needles, self.language.value_count, generator).tolist()
        asked = torch.randint(0, self.needles, (count, self.queries), generator=generator).tolist()
        if self.queries_drawn:
            numbers = torch.randint(1, self.queries + 1, (count,), generator=generator).tolist()
            asked = [row[:number] for row, number in zip(asked, numbers, strict=True)]
        sizes = [1] * count
        if self.together > 1:
            sizes = torch.randint(1, self.together + 1, (count,), generator=generator).tolist()
            asked = [self._asked(row, size, generator) for row, size in zip(asked, sizes, strict=True)]
        places = torch.rand(count, self.needles, generator=generator)
        if depth is not None:
            places[torch.arange(count), torch.tensor([row[0] for row in asked])] = depth
        ties = torch.rand(count, self.needles, generator=generator)
        rows = [
            self._row(
                keys[row], values[row], asked[row], sizes[row], places[row].tolist(), ties[row].tolist(), generator
            )
            for row in range(count)
        ]
        longest = max(len(answer) for _, answers, _, _ in rows for answer in answers)
        none = [[-1] * longest]
        positions = torch.tensor(
            [
                [[*answer, *[-1] * (longest - len(answer))] for answer in answers]
                + none * (self.queries - len(answers))
                for _, answers, _, _ in rows
            ]
        )
        kinds = torch.tensor([kinds for _, _, _, kinds in rows])
        return RetrievalBatch(
            input_ids=torch.tensor([ids for ids, _, _, _ in rows]),
            answer_positions=positions,
            prompt_end=torch.tensor([end for _, _, end, _ in rows]),
            spans={name: kinds == index for index, name in enumerate(SPANS)},
        )

    def _asked(self, row: list[int], size: int, generator: torch.Generator) -> list[int]:
        """Indices of the needles asked for, ``size`` different ones in each question."""
        if size == 1:
            return row
        questions = -(-len(row) // size)
        orders = torch.rand(questions, self.needles, generator=generator).argsort(1)[:, :size]
        return [int(index) for index in orders.flatten()[: len(row)]]

    def _row(
        self,
        keys: list[int],
        values: list[int],
        asked: list[int],
        size: int,
        places: list[float],
        ties: list[float],
        generator: torch.Generator,
    ) -> tuple[list[int], list[list[int]], int, list[int]]:
        """Token ids, positions of each answer's tokens, end of the first question, and index of each token's span."""
        language = self.language
        needles = [
            [*language.question(key), *language.answer(value), *language.ending()]
            for key, value in zip(keys, values, strict=True)
        ]
        groups = [asked[start : start + size] for start in range(0, len(asked), size)]
        questions = [language.question(*(keys[index] for index in group)) for group in groups]
        answers = [[language.answer(values[index]) for index in group] for group in groups]
        opening, instruction, ending = language.opening(), language.instruction(), language.ending()
        between = [language.between(left) for group in groups for left in range(1, len(group))]
        answered = [answer for group in answers for answer in group]
        room = self._room([opening, instruction, *needles, *questions, *answered, *between, *[ending] * len(groups)])
        filler, cuts = language.filler(room, generator)
        kind = {name: index for index, name in enumerate(SPANS)}
        ids = [*opening, *instruction]
        kinds = [kind["first_token"]] * len(opening) + [kind["instruction"]] * len(instruction)
        done = 0
        for index in self._order(places, ties):
            cut = _nearest(cuts, places[index] * room)
            ids += filler[done:cut] + needles[index]
            kinds += [kind["filler"]] * (cut - done)
            kinds += [kind["answer" if index == asked[0] else "other_needles"]] * len(needles[index])
            done = cut
        ids += filler[done:]
        kinds += [kind["filler"]] * (room - done)
        if not opening:
            kinds[0] = kind["first_token"]
        positions = []
        prompt_end = 0
        for number, (asking, group) in enumerate(zip(questions, answers, strict=True)):
            ids += asking
            if number == 0:
                kinds += [kind["question"]] * len(asking)
                prompt_end = len(ids) - 1
            for place, answer in enumerate(group):
                ids += language.between(len(group) - place) if place else []
                positions.append(list(range(len(ids), len(ids) + len(answer))))
                ids += answer
            ids += ending
        kinds += [-1] * (len(ids) - len(kinds))
        return ids, positions, prompt_end, kinds

    def _room(self, parts: Sequence[Sequence[int]]) -> int:
        """Number of tokens that these parts leave for filler.

        Raises:
            InputError: the parts are longer than a sequence.
        """
        used = sum(map(len, parts))
        if used > self.sequence_length:
            raise InputError(
                f"data.sequence_length ({self.sequence_length}) is too short for {self.needles} needles and "
                f"{self.queries} queries, which take {used} tokens: raise it, or lower data.needles or data.queries"
            )
        return self.sequence_length - used

    def _order(self, places: list[float], ties: list[float]) -> list[int]:
        """Indices of the needles by depth; at equal positions, depth 0 comes first and depth 1 last."""
        return sorted(
            range(self.needles), key=lambda i: (places[i] if 0 < places[i] < 1 else places[i] * 3 - 1, ties[i])
        )


def needle(city: str, number: str) -> str:
    """A needle in a haystack of text.

    The number follows the city directly, so that two layers can retrieve it (an induction head): one layer copies the
    previous token to each position, the next one attends to the match. Small models do not learn to skip words between
    them with the number of tokens that they are trained on.
    """
    return f" City number: {city} {number}."


def needle_page() -> str:
    """The instruction and two needles per city, for training a tokenizer."""
    numbers = [f"{10 + index % 90}{index % 100:02}" for index in range(2 * len(CITIES))]  # covers every pair of digits
    return INSTRUCTION + "".join(needle(CITIES[place % len(CITIES)], number) for place, number in enumerate(numbers))


def digits_of(*, one_token: bool) -> int:
    """Digits of a number, which may have to be one token."""
    return ONE_TOKEN_DIGITS if one_token else NUMBER_DIGITS


def number_count(digits: int) -> int:
    """How many numbers have so many digits."""
    return 9 * 10 ** (digits - 1)


def number_of(value: int, digits: int) -> str:
    """The number of so many digits that stands for a value from 0 to ``number_count`` - 1."""
    return str(value + 10 ** (digits - 1))


def question(cities: Sequence[str]) -> str:
    """A question for the numbers of cities, which a model continues."""
    if len(cities) == 1:
        return f" City number: {cities[0]}"
    return f" City numbers of {', '.join(cities[:-1])} and {cities[-1]}, in this order:"


def _nearest(places: Sequence[int], wanted: float) -> int:
    """Of sorted places the one next to ``wanted``, the lower of two that are equally near."""
    after = bisect_left(places, wanted)
    return min(places[max(0, after - 1) : after + 1], key=lambda place: abs(place - wanted))


def distinct(rows: int, count: int, limit: int, generator: torch.Generator) -> Tensor:
    """(rows, count) whole numbers below ``limit``, different from each other within a row."""
    drawn = torch.randint(0, limit, (rows, count), generator=generator)
    while True:
        ordered = drawn.sort(1).values
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if not repeated.any():
            return drawn
        if limit < 4 * count:  # with few values, rejection sampling would be slow
            return torch.rand(rows, limit, generator=generator).argsort(1)[:, :count]
        drawn[repeated] = torch.randint(0, limit, (int(repeated.sum()), count), generator=generator)
