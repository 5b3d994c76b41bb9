"""Contexts in plain text: the length asked for, needles between sentences at their depth, spans without gaps."""

import random
from itertools import pairwise

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.text.haystacks import (
    DEPTH_TOLERANCE,
    LENGTH_TOLERANCE,
    Cell,
    Haystack,
    encode,
    output_tokens,
    prompt_batch,
    prompt_ids,
)
from antiphase.lab.text.retrieval import CITIES, INSTRUCTION, SPANS, needle, question
from antiphase.lab.text.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def haystack(generated_text, text_tokenizer):
    half = len(generated_text) // 2
    return Haystack([generated_text[:half], generated_text[half:]], text_tokenizer)


def cell(needles=3, queries=1, length=333, depth=None):
    return Cell(needles=needles, queries=queries, length=length, depth=depth)


@pytest.mark.parametrize("size", [cell(), cell(5, 2, 401, 0.25), cell(1, 1, 113, 0.0), cell(7, 7, 517, 1.0)])
def test_a_context_and_its_output_have_the_length_asked_for(haystack, text_tokenizer, size):
    contexts = haystack.contexts(size, 7, seed=0)
    assert len(contexts) == len({context.text for context in contexts}) == 7
    for context in contexts:
        taken = len(prompt_ids(text_tokenizer, context)) + output_tokens(text_tokenizer, size.queries)
        assert size.length - LENGTH_TOLERANCE <= taken <= size.length


def test_the_text_is_the_corpus_with_needles_between_its_sentences(haystack):
    for context in haystack.contexts(cell(5, 2, 430), 9, seed=1):
        parts = [(name, context.text[start:stop]) for name, start, stop in context.spans]
        assert parts[0] == ("instruction", INSTRUCTION)
        assert parts[-1][0] == "question"
        filler = "".join(text for name, text in parts if name == "filler")
        assert filler in haystack.text
        assert sum(name in ("answer", "other_needles") for name, _ in parts) == 5
        last = max(index for index, (name, _) in enumerate(parts) if name == "filler")  # its sentence may be cut short
        for index, ((before, text), (after, _)) in enumerate(pairwise(parts)):
            if before == "filler" and after in ("answer", "other_needles") and index != last:
                assert text.endswith(".")


def test_answers_are_the_numbers_of_the_cities_asked_for_in_their_order(haystack):
    for context in haystack.contexts(cell(6, 3, 400), 20, seed=2):
        start, stop = next((start, stop) for name, start, stop in context.spans if name == "question")
        asked = context.text[start:stop]
        of_number = {
            number: city for city in CITIES for number in context.numbers if needle(city, number) in context.text
        }
        cities = [of_number[number] for number in context.answers]
        assert asked == question(cities)
        assert len(set(context.numbers)) == 6
        assert set(context.answers) <= set(context.numbers)
        assert {len(number) for number in context.numbers} == {4}
        answer = next(context.text[start:stop] for name, start, stop in context.spans if name == "answer")
        assert answer == needle(cities[0], context.answers[0])


def test_numbers_have_the_digits_asked_for(generated_text, text_tokenizer):
    for context in Haystack([generated_text], text_tokenizer, digits=2).contexts(cell(5, 2, 400), 5, seed=3):
        assert len(set(context.numbers)) == 5
        assert all(10 <= int(number) <= 99 and f" {number}." in context.text for number in context.numbers)


def test_questions_read_like_sentences():
    assert question(["Rome"]) == " City number: Rome"
    assert question(["Rome", "Oslo", "Bern"]) == " City numbers of Rome, Oslo and Bern, in this order:"


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_the_first_asked_needle_lies_at_its_depth(haystack, depth):
    for context in haystack.contexts(cell(4, 2, 700, depth), 12, seed=3):
        fillers = [(start, stop) for name, start, stop in context.spans if name == "filler"]
        at = next(start for name, start, _ in context.spans if name == "answer")
        before = sum(stop - start for start, stop in fillers if stop <= at)
        share = before / sum(stop - start for start, stop in fillers)
        assert share == pytest.approx(depth, abs=0.06)
        if depth in (0.0, 1.0):
            assert share == depth
            assert context.numbers[-1 if depth else 0] == context.answers[0]


@pytest.mark.parametrize(
    "end", ["。", "。\n\n", " ", ""], ids=["sentences", "paragraphs", "spaces", "nothing between characters"]
)
def test_in_any_script_contexts_begin_in_many_places_and_needles_lie_at_their_depth(end):
    generator = random.Random(0)
    letters = [chr(0x4E00 + number) for number in range(200)]
    text = "".join("".join(generator.choices(letters, k=generator.randint(8, 40))) + end for _ in range(400))
    haystack = Haystack([text], train_tokenizer([text], 500))
    starts = set()
    for depth in (0.25, 0.5, 0.75):
        for context in haystack.contexts(cell(1, 1, 900, depth), 6, seed=0):
            fillers = [(start, stop) for name, start, stop in context.spans if name == "filler"]
            at = next(start for name, start, _ in context.spans if name == "answer")
            before = sum(stop - start for start, stop in fillers if stop <= at)
            assert before / sum(stop - start for start, stop in fillers) == pytest.approx(depth, abs=DEPTH_TOLERANCE)
            starts.add(context.text[fillers[0][0] :][:30])
    assert len(starts) > 9


def test_without_a_depth_the_needle_lies_anywhere(haystack):
    places = [context.numbers.index(context.answers[0]) for context in haystack.contexts(cell(4), 200, seed=4)]
    for place in range(4):
        assert 25 <= places.count(place) <= 75


def test_equal_cells_and_seeds_give_equal_contexts_and_others_others(haystack, generated_text, text_tokenizer):
    again = Haystack([haystack.text], text_tokenizer).contexts(cell(), 5, seed=5)
    assert again == haystack.contexts(cell(), 5, seed=5)
    texts = {context.text for context in again}
    for other in (haystack.contexts(cell(), 5, seed=6), haystack.contexts(cell(depth=0.5), 5, seed=5)):
        assert not texts & {context.text for context in other}


@pytest.mark.parametrize("size", [cell(4, 2, 300, 0.25), cell(2, 1, 150)])
def test_every_token_belongs_to_one_span_and_spans_read_as_their_text(haystack, text_tokenizer, size):
    for context in haystack.contexts(size, 4, seed=7):
        batch = prompt_batch(text_tokenizer, context)
        end = len(prompt_ids(text_tokenizer, context))
        ids, answer = batch.input_ids[0, :end], batch.input_ids[0, end:]
        assert ids.tolist() == prompt_ids(text_tokenizer, context)
        assert text_tokenizer.decode(answer) == f" {context.answers[0]}"
        assert batch.answer_positions.tolist() == [[list(range(end, end + len(answer)))]]
        assert sum(batch.spans[name].int() for name in SPANS).tolist() == [[1] * end + [0] * len(answer)]
        assert batch.spans["first_token"][0].nonzero().flatten().tolist() == [0]
        assert batch.prompt_end.tolist() == [len(ids) - 1]
        for name in ("answer", "question", "instruction"):
            text = next(context.text[start:stop] for kind, start, stop in context.spans if kind == name)
            assert text_tokenizer.decode(batch.input_ids[0, batch.spans[name][0]]) == text


def test_a_model_with_another_tokenizer_reads_the_same_text(haystack, generated_text):
    other = train_tokenizer([generated_text], 300)
    (context,) = haystack.contexts(cell(), 1, seed=8)
    batch = prompt_batch(other, context)
    assert other.decode(batch.input_ids[0][1:]) == f"{context.text} {context.answers[0]}"
    assert other.decode(batch.input_ids[0][batch.spans["answer"][0]]).startswith(" City number: ")


def test_the_guess_rate_is_that_of_naming_different_numbers_in_any_order():
    assert cell(4, 1).guess_rate == 1 / 4
    assert cell(4, 2).guess_rate == 1 / 12
    assert cell(2, 2).guess_rate == 1 / 2


def test_sizes_that_do_not_fit_are_refused_in_one_sentence(haystack, text_tokenizer):
    for size, words in (
        (cell(2, 3), "--queries can be at most --needles"),
        (cell(65, 1), "at most the number of cities, 64"),
        (cell(8, 1, 60), r"--length 60 is too short for --needles 8 and --queries 1, which take \d+ tokens"),
        (cell(2, 1, 10**6), r"the text has \d+ tokens, fewer than the \d+ of filler that --length 1000000 needs"),
    ):
        with pytest.raises(InputError, match=words):
            haystack.contexts(size, 1, seed=0)
    needed = next(size for size in range(60, 400) if _fits(haystack, size))
    (context,) = haystack.contexts(cell(8, 1, needed), 1, seed=0)  # no room for filler at all
    assert len(encode(text_tokenizer, context.text)) <= needed


def _fits(haystack, length):
    try:
        haystack.contexts(cell(8, 1, length), 1, seed=0)
    except InputError:
        return False
    return True


def test_a_tokenizer_that_cannot_say_where_its_tokens_lie_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(InputError, match="Slow does not run on the tokenizers library"):
        Haystack(["A text."], Slow())
