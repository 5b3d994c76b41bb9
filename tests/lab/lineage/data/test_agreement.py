"""Generated sentences: right lengths, twins that differ in one word, and a subject that grammar finds."""

from collections import Counter

import pytest

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.lineage.data.agreement import (
    ADJECTIVES,
    MOST_ADJECTIVES,
    NOUNS,
    PREPOSITIONS,
    VERBS,
    agreement_pairs,
    words,
)
from antiphase.lab.lineage.data.vocabularies import train_words

PLURAL = {form: plural for noun in NOUNS for plural, form in enumerate(noun)}


def pairs(distance, *, count=60, depth=2, seed=0):
    return agreement_pairs(count, distance, keyed_generator(seed, distance), depth=depth)


def subject_by_grammar(text):
    """Place of the subject that a reader finds: verbs close the clauses of the last subjects that are open."""
    tokens = text.split()
    begun = tokens.index(",")
    open_subjects, awaited = [], False
    for place, token in enumerate(tokens):
        if place < begun:
            continue
        if token in (",", "that"):
            awaited = True
        elif token in PLURAL and awaited:
            open_subjects.append(place)
            awaited = False
        elif token in VERBS:
            open_subjects.pop()
    return open_subjects[-1]


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("distance", [3, 4, 5, 6, 7, 8, 11, 23, 40])
def test_the_subject_is_that_of_the_grammar_and_stands_as_far_as_it_says(distance, depth):
    for sentence in pairs(distance, depth=depth):
        tokens = sentence.text.split()
        place = subject_by_grammar(sentence.text)
        assert len(tokens) - 1 - place == distance == sentence.distance
        nouns = [token for token in tokens if token in PLURAL]
        assert [bool(PLURAL[noun]) for noun in nouns] == list(sentence.nouns)
        assert sum(token in PLURAL for token in tokens[:place]) == sentence.subject
        assert sentence.plural == bool(PLURAL[tokens[place]])
        assert sentence.misleading == (bool(PLURAL[nouns[-1]]) != sentence.plural)
        assert sum(token in VERBS for token in tokens) == sentence.clauses
        assert tokens.count("that") == depth - 1


@pytest.mark.parametrize("distance", [3, 9, 24])
def test_twins_differ_in_the_subjects_number_alone(distance):
    found = pairs(distance)
    for singular, plural in zip(found[::2], found[1::2], strict=True):
        assert (singular.plural, plural.plural) == (False, True)
        differing = [
            place
            for place, (one, other) in enumerate(zip(singular.text.split(), plural.text.split(), strict=True))
            if one != other
        ]
        assert differing == [subject_by_grammar(singular.text)]
        assert (singular.text.split()[differing[0]], plural.text.split()[differing[0]]) in NOUNS
        assert singular.subject == plural.subject


def test_cuts_fall_behind_every_number_of_clauses_and_places_vary():
    found = pairs(12, count=300, depth=3)
    counts = Counter(sentence.clauses for sentence in found)
    assert set(counts) == {0, 1, 2}
    assert min(counts.values()) > 150
    assert len({len(sentence.text.split()) for sentence in found}) > 6
    assert {sentence.clauses for sentence in pairs(3)} == {0}
    numbers = [number for sentence in found for number in sentence.nouns]
    assert 0.45 < sum(numbers) / len(numbers) < 0.55


@pytest.mark.parametrize("distance", [5, 12, 40])
def test_before_a_noun_stand_so_many_adjectives_and_no_more(distance):
    text = " ".join(sentence.text for sentence in pairs(distance, count=200, depth=3))
    runs = "".join("a" if token in ADJECTIVES else " " for token in text.split()).split()
    assert max(map(len, runs)) == MOST_ADJECTIVES == 3


def test_a_key_gives_the_same_sentences_and_another_others():
    assert pairs(9) == pairs(9)
    assert pairs(9) != pairs(9, seed=1)


def test_every_word_is_in_the_vocabulary():
    tokenizer = train_words([" ".join(words())], len(words()) + 2)
    text = " ".join(sentence.text for sentence in pairs(40, depth=3))
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]
    assert len(tokenizer) == len(set(words())) + 2 == len(words()) + 2
    assert not set(PREPOSITIONS) & set(VERBS)


def test_impossible_requests_are_refused():
    with pytest.raises(InputError, match="at least 3 words"):
        pairs(2)
    with pytest.raises(InputError, match="--depth must be at least 2"):
        pairs(9, depth=1)
