"""Retrieval sequences: every token in one part, values that differ, questions drawn with replacement, needles where
they belong.
"""

import copy
import re
from itertools import pairwise

import numpy
import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.text.retrieval import (
    CITIES,
    INSTRUCTION,
    NUMBER_DIGITS,
    SPANS,
    RetrievalTask,
    SymbolLanguage,
    TextLanguage,
    distinct,
    needle_page,
    question,
)
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.ops.shapes import IGNORED_TARGET

KEYS, NUMBERS, FILLERS = 9, 11, 5
SYMBOLS = SymbolLanguage(KEYS, NUMBERS, FILLERS)


def is_key(ids):
    return (ids >= 2) & (ids < 2 + KEYS)


def is_number(ids):
    return (ids >= 2 + KEYS) & (ids < 2 + KEYS + NUMBERS)


def symbol_task(needles=4, queries=3, sequence_length=37):
    return RetrievalTask(SYMBOLS, needles=needles, queries=queries, sequence_length=sequence_length)


@pytest.fixture(scope="module")
def text_language(text_tokenizer, generated_text):
    tokens = numpy.array(text_tokenizer.encode(generated_text), dtype=numpy.uint16)
    return TextLanguage(text_tokenizer, tokens)


@pytest.fixture(params=["symbols", "text"])
def task(request):
    if request.param == "symbols":
        return symbol_task()
    language = request.getfixturevalue("text_language")
    return RetrievalTask(language, needles=4, queries=3, sequence_length=333)


def answers_of(batch):
    """Token ids of each answer, [row][question]."""
    return [
        [[int(ids[place]) for place in question if place >= 0] for question in questions]
        for ids, questions in zip(batch.input_ids, batch.answer_positions.tolist(), strict=True)
    ]


# ------------------------------------------------------------------------------------------ parts


def test_the_parts_share_out_the_prompt_and_nothing_after_it(task):
    batch = task.sample(50, keyed_generator(1))
    assert batch.input_ids.shape == (50, task.sequence_length)
    assert batch.spans.keys() == set(SPANS)
    parts = torch.stack([batch.spans[name] for name in SPANS]).sum(0)
    places = torch.arange(task.sequence_length)
    assert torch.equal(parts, (places <= batch.prompt_end[:, None]).long())
    assert torch.equal(batch.spans["first_token"].sum(1), torch.ones(50, dtype=torch.int64))
    assert batch.spans["first_token"][:, 0].all()
    assert batch.spans["question"].gather(1, batch.prompt_end[:, None]).all()
    assert torch.equal(batch.answer_positions[:, 0, 0], batch.prompt_end + 1)


def test_symbols_stand_where_their_part_says():
    batch = symbol_task().sample(100, keyed_generator(2))
    ids, spans = batch.input_ids, batch.spans
    assert (ids[:, 0] == 1).all()
    assert (ids[spans["filler"]] >= 2 + KEYS + NUMBERS).all()
    assert is_key(ids[spans["question"]]).all()
    needles = spans["answer"] | spans["other_needles"]
    assert (is_key(ids[needles]) | is_number(ids[needles])).all()
    assert torch.equal(needles.sum(1), torch.full((100,), 8))
    assert torch.equal(spans["answer"].sum(1), torch.full((100,), 2))
    assert not spans["instruction"].any()


def test_the_asked_needle_holds_the_question_and_its_answer(task):
    batch = task.sample(40, keyed_generator(3))
    answers = answers_of(batch)
    for row in range(40):
        question = batch.input_ids[row][batch.spans["question"][row]].tolist()
        needle = batch.input_ids[row][batch.spans["answer"][row]].tolist()
        assert needle == [*question, *answers[row][0], *task.language.ending()]


def test_every_question_has_the_answer_that_the_context_gives():
    batch = symbol_task(needles=5, queries=6, sequence_length=60).sample(60, keyed_generator(4))
    for ids, end, questions in zip(batch.input_ids, batch.prompt_end, batch.answer_positions[..., 0], strict=True):
        context = ids[:end].tolist()
        facts = {a: b for a, b in pairwise(context) if is_key(torch.tensor(a))}
        assert len(facts) == 5
        for place in questions.tolist():
            assert facts[int(ids[place - 1])] == int(ids[place])


def test_a_text_sequence_reads_as_meant(text_language, text_tokenizer):
    task = RetrievalTask(text_language, needles=3, queries=2, sequence_length=260)
    batch = task.sample(20, keyed_generator(5))
    assert batch.answer_positions.shape == (20, 2, 1 + NUMBER_DIGITS)  # a space and four digits
    for row, ids in enumerate(batch.input_ids):
        assert ids[0] == text_tokenizer.bos_token_id
        text = text_tokenizer.decode(ids[1:])
        assert text.startswith("Remember the number of every city in this text.\n\n")
        facts = dict(part.split(" ", 1) for part in text.split(" City number: ")[1:4])
        facts = {city: number[:NUMBER_DIGITS] for city, number in facts.items()}
        assert set(facts) <= set(CITIES)
        assert len(set(facts.values())) == 3
        asked = [part.split(" ") for part in text.split(" City number: ")[-2:]]
        for city, number in asked:
            assert number == facts[city] + "."
        first = text_tokenizer.decode(answers_of(batch)[row][0])
        assert first == f" {facts[asked[0][0]]}"


def test_numbers_of_one_token(generated_text, text_tokenizer):
    tokenizer = train_tokenizer([generated_text, *[needle_page()] * 4], 1200, digits=2)
    tokens = numpy.array(tokenizer.encode(generated_text), dtype=numpy.uint16)
    language = TextLanguage(tokenizer, tokens, one_token_numbers=True)
    assert (language.value_count, language.longest_answer()) == (90, 1)
    batch = RetrievalTask(language, needles=64, queries=2, sequence_length=600).sample(5, keyed_generator(23))
    assert batch.answer_positions.shape == (5, 2, 1)
    for row in batch.input_ids:
        facts = dict(re.findall(r" City number: (\w+) (\d\d)\.", tokenizer.decode(row).split("text.", 1)[1]))
        assert len(facts) == len(set(facts.values())) == 64  # questions repeat them
    with pytest.raises(InputError, match=r"^data\.one_token_numbers: .* numbers of 2 digits as up to 3 tokens; raise"):
        TextLanguage(text_tokenizer, tokens, one_token_numbers=True)


def test_text_needles_stand_between_sentences(text_language, text_tokenizer):
    task = RetrievalTask(text_language, needles=3, queries=1, sequence_length=260)
    batch = task.sample(20, keyed_generator(6))
    needles, filler = batch.spans["answer"] | batch.spans["other_needles"], batch.spans["filler"]
    between = 0
    for row, ids in enumerate(batch.input_ids):
        room = int(filler[row].sum())
        for place in (needles[row, 1:] & filler[row, :-1]).nonzero().flatten().tolist():  # the filler before a needle
            if int(filler[row, : place + 1].sum()) < room:
                between += 1
                assert text_tokenizer.decode(ids[place : place + 1]).endswith(".")
    assert between > 20


# ------------------------------------------------------------------------------------------ what is random


def test_keys_and_values_of_a_sequence_differ():
    task = symbol_task(needles=9, queries=1, sequence_length=40)
    batch = task.sample(60, keyed_generator(7))
    for ids, end in zip(batch.input_ids, batch.prompt_end, strict=True):
        context = ids[:end]
        assert len(set(context[is_key(context)].tolist())) == 9
        assert len(set(context[is_number(context)].tolist())) == 9


@pytest.mark.parametrize(("count", "limit"), [(1, 1), (3, 3), (4, 11), (8, 1000), (5, 20)])
def test_distinct_draws_each_value_equally_often(count, limit):
    drawn = distinct(4000, count, limit, keyed_generator(8))
    assert drawn.shape == (4000, count)
    assert ((drawn >= 0) & (drawn < limit)).all()
    ordered = drawn.sort(1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    if limit < 20:
        shares = torch.bincount(drawn.flatten(), minlength=limit) / drawn.numel()
        assert (shares - 1 / limit).abs().max() < 0.02
        first = torch.bincount(drawn[:, 0], minlength=limit) / 4000
        assert (first - 1 / limit).abs().max() < 0.03


@pytest.mark.parametrize("needles", [2, 3, 8])
def test_questions_are_drawn_with_replacement(needles):
    task = symbol_task(needles=needles, queries=2, sequence_length=40)
    batch = task.sample(3000, keyed_generator(9))
    keys = batch.input_ids.gather(1, batch.answer_positions[:, :, 0] - 1)
    repeated = (keys[:, 0] == keys[:, 1]).float().mean().item()
    assert repeated == pytest.approx(1 / needles, abs=4 * (0.25 / 3000) ** 0.5)


def test_without_a_depth_the_asked_needle_has_any_rank_and_place():
    task = symbol_task(needles=4, queries=1, sequence_length=60)
    batch = task.sample(2000, keyed_generator(10))
    before = (torch.cumsum(batch.spans["other_needles"], 1) * batch.spans["answer"]).amax(1) // 2
    shares = torch.bincount(before, minlength=4) / 2000
    assert (shares - 0.25).abs().max() < 0.05
    start = batch.spans["answer"].float().argmax(1)
    assert (start - 1 < 15).float().mean().item() == pytest.approx(0.25, abs=0.06)


def test_equal_generators_give_equal_sequences_and_others_do_not(task):
    first, again, other = (task.sample(5, keyed_generator(seed)) for seed in (11, 11, 12))
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.answer_positions, again.answer_positions)
    assert all(torch.equal(first.spans[name], again.spans[name]) for name in SPANS)
    assert not torch.equal(first.input_ids, other.input_ids)


@pytest.mark.parametrize("together", [1, 3])
def test_a_sequence_draws_its_number_of_questions(together):
    task = RetrievalTask(SYMBOLS, needles=5, queries=4, sequence_length=60, together=together, queries_drawn=True)
    batch = task.sample(400, keyed_generator(21))
    assert batch.answer_positions.shape == (400, 4, 1)
    asked = batch.answer_positions[..., 0] >= 0
    assert torch.equal(asked.sort(1, descending=True).values, asked)  # those that are not asked come last
    shares = torch.bincount(asked.sum(1), minlength=5) / 400
    assert shares[0] == 0
    assert (shares[1:] - 0.25).abs().max() < 0.09
    counted = batch.labels() != IGNORED_TARGET
    assert torch.equal(counted.sum(1), asked.sum(1))
    assert batch.answer_positions[:, 0].min() > 0
    assert torch.equal(batch.answer_positions.amax((1, 2)), torch.full((400,), 59))  # and filler takes their room
    at_depth = task.sample(20, keyed_generator(22), depth=0.0)
    assert (at_depth.spans["answer"].float().argmax(1) == 1).all()


# ------------------------------------------------------------------------------------------ depth


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
def test_the_asked_needle_stands_at_the_depth(depth):
    task = symbol_task(needles=4, queries=2, sequence_length=101)
    batch = task.sample(50, keyed_generator(13), depth=depth)
    filler = batch.spans["filler"]
    room = int(filler[0].sum())
    start = batch.spans["answer"].float().argmax(1)
    before = torch.stack([filler[row, : start[row]].sum() for row in range(50)])
    assert (before - depth * room).abs().max() <= 0.5
    if depth == 0:
        assert (start == 1).all()
    if depth == 1:
        assert torch.equal(start + 2, batch.prompt_end)  # nothing between it and the question


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_text_needle_stands_at_the_sentence_end_nearest_to_the_depth(
    text_language, text_tokenizer, generated_text, depth
):
    sentences = generated_text.replace(". ", ".|").split("|")
    longest = max(len(text_tokenizer.encode(" " + sentence, add_special_tokens=False)) for sentence in sentences)
    task = RetrievalTask(text_language, needles=3, queries=1, sequence_length=400)
    batch = task.sample(20, keyed_generator(14), depth=depth)
    filler, start = batch.spans["filler"], batch.spans["answer"].float().argmax(1)
    others = batch.spans["other_needles"]
    for row in range(20):
        before, room = int(filler[row, : start[row]].sum()), int(filler[row].sum())
        assert abs(before - depth * room) <= longest / 2
        if depth == 0:
            assert not filler[row, : start[row]].any()
            assert not others[row, : start[row]].any()
        if depth == 1:
            assert not filler[row, start[row] :].any()
            assert not others[row, start[row] :].any()


@pytest.mark.parametrize("depth", [-0.1, 1.01, float("nan")])
def test_a_depth_outside_the_haystack_is_refused(depth):
    with pytest.raises(InputError, match="depth"):
        symbol_task().sample(1, keyed_generator(0), depth=depth)


# ------------------------------------------------------------------------------------------ labels


def test_labels_are_the_answers_and_nothing_else(task):
    batch = task.sample(30, keyed_generator(15))
    labels = batch.labels()
    counted = labels != IGNORED_TARGET
    assert torch.equal(labels[counted], batch.input_ids[counted])
    for row, questions in enumerate(batch.answer_positions.tolist()):
        places = {place for question in questions for place in question if place >= 0}
        assert set(counted[row].nonzero().flatten().tolist()) == places


def test_answers_of_unequal_length_are_filled_up_with_no_position():
    class Uneven(SymbolLanguage):
        def answer(self, value):
            return super().answer(value) * (1 + value % 3)

        def ending(self):
            return [1]

    task = RetrievalTask(Uneven(KEYS, NUMBERS, FILLERS), needles=3, queries=4, sequence_length=60)
    batch = task.sample(30, keyed_generator(16))
    assert batch.answer_positions.shape[2] == 3
    labels = batch.labels()
    for row, questions in enumerate(answers_of(batch)):
        assert all(len(answer) == 1 + (answer[0] - 2 - KEYS) % 3 for answer in questions)
        assert int((labels[row] != IGNORED_TARGET).sum()) == sum(map(len, questions))
        assert labels[row, -1] == IGNORED_TARGET  # position -1 is no place, not the last one


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(("sizes", "names"), [
    ({"needles": 10}, ["data.needles (10)", "9 different keys"]), ({"needles": 0}, ["data.needles", "at least 1", "0"]),
    ({"queries": 0}, ["data.queries", "at least 1", "0"]),
])  # fmt: skip
def test_sizes_that_no_sequence_can_have_are_refused_by_name(sizes, names):
    with pytest.raises(InputError) as caught:
        symbol_task(**sizes)
    assert all(name in str(caught.value) for name in names)


def test_more_needles_than_values_are_refused_by_name():
    with pytest.raises(InputError, match=r"data\.needles \(5\) is more than the 4 different values"):
        RetrievalTask(SymbolLanguage(9, 4, 5), needles=5, queries=1, sequence_length=40)


def test_a_sequence_too_short_for_its_needles_is_refused_with_the_length_it_takes():
    taken = 1 + 4 * 2 + 3 * 2
    full = symbol_task(sequence_length=taken).sample(3, keyed_generator(17))
    assert not full.spans["filler"].any()
    with pytest.raises(InputError, match=rf"data\.sequence_length \({taken - 1}\).*{taken} tokens"):
        symbol_task(sequence_length=taken - 1).sample(1, keyed_generator(17))


@pytest.mark.parametrize(
    ("length", "needles", "queries"), [(9, 2, 2), (12, 2, 2), (13, 3, 3), (14, 3, 3), (15, 4, 3), (90, 4, 3)]
)
def test_another_length_has_as_many_facts_and_questions_in_proportion_as_fit(length, needles, queries):
    """A fact and a question with its answer are two tokens each, after one that opens the sequence."""
    other = symbol_task(needles=4, queries=3).of_length(length)
    assert (other.needles, other.queries, other.sequence_length) == (needles, queries, length)
    batch = other.sample(6, keyed_generator(0))
    assert batch.input_ids.shape == (6, length)
    assert is_key(batch.input_ids).sum(1).tolist() == [needles + queries] * 6


def test_another_length_has_two_facts_at_least_of_which_one_is_to_be_found():
    other = symbol_task(needles=4, queries=3).of_length(5)
    assert (other.needles, other.queries, other.most_tokens()) == (2, 2, 9)
    assert symbol_task(needles=1, queries=1).of_length(5).most_tokens() == 5


def test_another_length_draws_its_numbers_of_questions_too():
    task = RetrievalTask(SYMBOLS, needles=4, queries=8, sequence_length=90, queries_drawn=True).of_length(13)
    asked = (task.sample(40, keyed_generator(0)).answer_positions[..., 0] >= 0).sum(1)
    assert set(asked.tolist()) == set(range(1, task.queries + 1))


def test_in_text_the_longest_facts_and_questions_fit(text_language):
    whole = RetrievalTask(text_language, needles=4, queries=6, sequence_length=900, together=3)
    least = whole.of_length(1).most_tokens()
    for length in range(least, whole.most_tokens() + 1, 7):
        other = whole.of_length(length)
        assert other.most_tokens() <= length
        assert other.together <= min(other.needles, other.queries)
        other.sample(20, keyed_generator(length))
    other = whole.of_length(whole.most_tokens())
    assert (other.needles, other.queries, other.together) == (4, 6, 3)


def test_the_most_tokens_are_those_of_the_longest_cities_numbers_and_lists(text_language, text_tokenizer):
    def count(text):
        return len(text_tokenizer.encode(text, add_special_tokens=False))

    task = RetrievalTask(text_language, needles=2, queries=6, sequence_length=900, together=2)
    first, second = sorted(CITIES, key=lambda city: -count(question([city])))[:2]
    answer = text_language.longest_answer() + count(".")
    one, both = count(question([first])), count(question([first, second])) + max(count(" and"), count(","))
    facts = count(question([first])) + count(question([second])) + 2 * answer
    assert 3 * both != 6 * one
    beginning = len(text_language.opening()) + count(INSTRUCTION)
    assert task.most_tokens() == beginning + facts + max(6 * one, 3 * both) + 6 * answer


def test_the_longest_answer_is_that_of_all_answers(text_tokenizer):
    """Of a tokenizer in which a piece of some numbers is one token."""
    tokenizer = copy.deepcopy(text_tokenizer)
    tokenizer.add_tokens(["47"])
    language = TextLanguage(tokenizer, numpy.arange(20, dtype=numpy.uint16))
    lengths = {len(language.answer(value)) for value in range(language.value_count)}
    assert language.longest_answer() == max(lengths)
    assert len(lengths) > 1
    assert SYMBOLS.longest_answer() == max(len(SYMBOLS.answer(value)) for value in range(NUMBERS))


def test_too_little_text_for_the_filler_is_refused_with_the_remedy(text_tokenizer):
    language = TextLanguage(text_tokenizer, numpy.arange(20, dtype=numpy.uint16))
    task = RetrievalTask(language, needles=1, queries=1, sequence_length=200)
    with pytest.raises(InputError, match=r"20 tokens, fewer than .*--validation.*data\.sequence_length"):
        task.sample(1, keyed_generator(18))


def test_filler_is_a_stretch_of_the_text_as_it_stands(text_language, text_tokenizer, generated_text):
    tokens = text_tokenizer.encode(generated_text)
    joined = ",".join(map(str, tokens)) + ","
    task = RetrievalTask(text_language, needles=2, queries=1, sequence_length=200)
    batch = task.sample(10, keyed_generator(19))
    for row in range(10):
        filler = batch.input_ids[row][batch.spans["filler"][row]].tolist()
        assert ",".join(map(str, filler)) + "," in joined


def test_symbol_words_are_one_for_each_token_id():
    words = SYMBOLS.words
    assert len(words) == len(set(words)) == 2 + KEYS + NUMBERS + FILLERS
    assert words[SYMBOLS.question(3)[0]] == "key3"
    assert words[SYMBOLS.answer(7)[0]] == "n7"
    ids, cuts = SYMBOLS.filler(50, keyed_generator(20))
    assert all(words[index].startswith("w") for index in ids)
    assert cuts == list(range(51))


# ------------------------------------------------------------------------------------------ several facts at once


def test_one_question_asks_for_several_cities_and_is_answered_in_their_order(text_language, text_tokenizer):
    task = RetrievalTask(text_language, needles=5, queries=5, sequence_length=420, together=3)
    batch = task.sample(40, keyed_generator(11))
    assert batch.input_ids.shape == (40, 420)
    seen = set()
    for ids, positions, end in zip(batch.input_ids, batch.answer_positions.tolist(), batch.prompt_end, strict=True):
        text = text_tokenizer.decode(ids)
        numbers = dict(re.findall(r" City number: (\w+) (\d+)\.", text[: len(text_tokenizer.decode(ids[: end + 1]))]))
        assert len(numbers) == 5
        asked = text[len(text_tokenizer.decode(ids[: positions[0][0]])) :]
        told = [text_tokenizer.decode(ids[[place for place in answer if place >= 0]]).strip() for answer in positions]
        questions = re.findall(r" City numbers?(?::| of) ([A-Za-z, ]+?)(?:, in this order:)?( \d[\d, and]*)\.", text)[
            5:
        ]
        listed = [re.split(", | and ", cities) for cities, _ in questions]
        assert [len(cities) == len(set(cities)) for cities in listed] == [True] * len(listed)
        assert [numbers[city] for cities in listed for city in cities] == told
        assert [re.findall(r"\d+", answers) for _, answers in questions] == [
            [numbers[city] for city in cities] for cities in listed
        ]
        sizes = [len(cities) for cities in listed]
        assert sizes in ([1] * 5, [2, 2, 1], [3, 2])
        seen.add(sizes[0])
        assert asked.startswith(f" {told[0]}")
    assert seen == {1, 2, 3}


def test_several_symbols_are_asked_for_and_answered_in_a_row():
    task = RetrievalTask(SYMBOLS, needles=4, queries=4, sequence_length=37, together=2)
    batch = task.sample(60, keyed_generator(12))
    pairs = 0
    for ids, positions in zip(batch.input_ids, batch.answer_positions[:, :, 0].tolist(), strict=True):
        first = positions[0]
        told = {int(ids[i]): int(ids[i + 1]) for i in range(first - 2) if is_key(ids[i]) and is_number(ids[i + 1])}
        if positions[1] == first + 1:  # keys a b, then their numbers
            pairs += 1
            assert [told[int(ids[first - 2])], told[int(ids[first - 1])]] == ids[first : first + 2].tolist()
            assert ids[first - 2] != ids[first - 1]
        else:
            assert told[int(ids[first - 1])] == int(ids[first])
    assert 15 < pairs < 45


def test_as_many_together_as_there_are_needles_and_questions():
    for needles, queries, together in ((2, 4, 3), (4, 2, 3), (4, 4, 0)):
        with pytest.raises(InputError, match=r"data\.asked_together must lie between 1 and data\.needles"):
            RetrievalTask(SYMBOLS, needles=needles, queries=queries, sequence_length=37, together=together)
