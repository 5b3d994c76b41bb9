"""Irrelevant tokens drawn again: they change, nothing else does, and no other fact becomes the right answer."""

import re

import pytest
import torch

from antiphase.base.randomness import keyed_generator
from antiphase.lab.text.haystacks import Cell, Haystack, prompt_batch
from antiphase.lab.text.resampling import PARTS, TextResampler, of_symbols
from antiphase.lab.text.retrieval import CITIES, RetrievalTask, SymbolLanguage

LANGUAGE = SymbolLanguage(5, 6, 11)
TASK = RetrievalTask(LANGUAGE, needles=5, queries=2, sequence_length=37)


def draw(seed=0):
    return keyed_generator(seed, "draw")


@pytest.mark.parametrize("part", PARTS)
def test_only_the_part_of_a_sequence_changes(part):
    batch = TASK.sample(3, draw())
    copies = of_symbols(TASK, batch, 1, part, 40, draw(1))
    place = batch.spans[part][1]
    assert (copies[:, ~place] == batch.input_ids[1, ~place]).all()
    assert all(len(set(column.tolist())) > 1 for column in copies[:, place].T)
    assert torch.equal(copies, of_symbols(TASK, batch, 1, part, 40, draw(1)))
    if part == "filler":
        assert set(copies[:, place].flatten().tolist()) == set(range(2 + 5 + 6, 2 + 5 + 6 + 11))
        return
    key, value = batch.input_ids[1][batch.spans["answer"][1]].tolist()
    for facts in copies[:, place].unflatten(1, (-1, 2)):
        assert {key, *facts[:, 0].tolist()} == set(range(2, 7))  # five needles have all five keys
        assert len({value, *facts[:, 1].tolist()}) == 5
        assert set(facts[:, 1].tolist()) <= set(range(7, 13))


@pytest.fixture
def resampler(generated_text, text_tokenizer):
    return TextResampler(Haystack([generated_text], text_tokenizer), text_tokenizer)


def test_numbers_of_one_token_are_drawn_again_as_such(generated_text, text_tokenizer):
    resampler = TextResampler(Haystack([generated_text], text_tokenizer, digits=2), text_tokenizer)
    (context,) = resampler.haystack.contexts(Cell(needles=4, queries=1, length=300, depth=None), 1, seed=3)
    for copy in resampler.copies(context, "other_needles", 3, draw()):
        numbers = re.findall(r"City number: .+? ([0-9]+)\.", resampler.tokenizer.decode(copy))
        assert len(set(numbers)) == 4
        assert {len(number) for number in numbers} == {2}


@pytest.mark.parametrize(("needles", "queries"), [(4, 1), (4, 2), (64, 1)])
def test_only_the_other_facts_of_a_text_change(resampler, needles, queries):
    cell = Cell(needles=needles, queries=queries, length=40 * needles + 200, depth=None)
    (context,) = resampler.haystack.contexts(cell, 1, seed=3)
    batch = prompt_batch(resampler.tokenizer, context)
    copies = resampler.copies(context, "other_needles", 5, draw())
    place = batch.spans["other_needles"][0]
    assert (copies[:, ~place] == batch.input_ids[0, ~place]).all()
    texts = [resampler.tokenizer.decode(copy) for copy in copies]
    assert len(set(texts)) == 5
    for text in texts:
        found = [city for city in CITIES if f"City number: {city} " in text]
        assert len(found) == needles
        facts = zip(context.cities, context.numbers, strict=True)
        kept = {number for city, number in facts if f"City number: {city} {number}." in text}
        assert kept >= set(context.answers)
        assert len(kept) <= queries + 1  # a fact may be drawn as it was


def test_only_the_filler_of_a_text_changes(resampler):
    (context,) = resampler.haystack.contexts(Cell(needles=3, queries=1, length=260, depth=0.5), 1, seed=3)
    batch = prompt_batch(resampler.tokenizer, context)
    copies = resampler.copies(context, "filler", 6, draw())
    place = batch.spans["filler"][0]
    assert (copies[:, ~place] == batch.input_ids[0, ~place]).all()
    changed = (copies != batch.input_ids).any(0)
    assert changed.sum() > 0.9 * place.sum()
    sentence = context.text[slice(*context.spans[1][1:])][:30]
    assert all(sentence not in resampler.tokenizer.decode(copy) for copy in copies)
