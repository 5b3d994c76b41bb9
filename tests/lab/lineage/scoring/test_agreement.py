"""Scores of agreement on systems whose score is known: only what reaches the subject passes a half."""

import random

import pytest

from antiphase.base.randomness import keyed_generator
from antiphase.lab.lineage.data.agreement import NOUNS, VERBS, agreement_pairs
from antiphase.lab.lineage.scoring.agreement import GUESS_RATE, agreement_scores, shortcut_scores

DISTANCES = (4, 9, 24)
PLURAL = {form: bool(plural) for noun in NOUNS for plural, form in enumerate(noun)}


@pytest.fixture(scope="module")
def sentences():
    return [one for d in DISTANCES for one in agreement_pairs(200, d, keyed_generator("systems", d))]


def nouns(text):
    return [token for token in text.split() if token in PLURAL]


def scores(sentences, system):
    found = agreement_scores([system(sentence.text) for sentence in sentences], sentences)
    assert [row["distance"] for row in found] == list(DISTANCES)
    assert all(row["samples"] == 400 for row in found)
    for row in found:
        assert row["accuracy"] == row["correct"] / row["samples"]
        assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
    return found


@pytest.mark.parametrize("system", [
    lambda text: True, lambda text: False, lambda text: PLURAL[nouns(text)[0]], lambda text: len(text.split()) % 2 == 0,
    lambda text: text.count(" near ") > 1, lambda text: sum(token in VERBS for token in text.split()) == 1,
])  # fmt: skip
def test_a_system_that_does_not_reach_the_subject_is_right_in_exactly_half(sentences, system):
    for row in scores(sentences, system):
        assert row["accuracy"] == GUESS_RATE == 0.5
        assert row["misled"]["samples"] == 200


def test_the_nearest_noun_is_right_in_half_and_never_where_it_misleads(sentences):
    for row in scores(sentences, lambda text: PLURAL[nouns(text)[-1]]):
        far = [one for one in sentences if one.distance == row["distance"]]
        assert all(one.subject < len(one.nouns) - 1 for one in far)
        assert (row["accuracy"], row["misled"]["accuracy"]) == (0.5, 0.0)


def test_a_guess_is_right_in_about_half(sentences):
    draw = random.Random(3)
    for row in scores(sentences, lambda text: draw.random() < 0.5):
        assert abs(row["accuracy"] - 0.5) < 4 * (0.25 / row["samples"]) ** 0.5
        assert abs(row["misled"]["accuracy"] - 0.5) < 4 * (0.25 / row["misled"]["samples"]) ** 0.5


def test_a_perfect_system_is_always_right(sentences):
    known = {sentence.text: sentence.plural for sentence in sentences}
    for row in scores(sentences, lambda text: known[text]):
        assert row["accuracy"] == row["misled"]["accuracy"] == 1.0


def test_a_system_that_takes_the_first_subject_is_right_where_no_other_is_meant(sentences):
    """It bridges the distance, but not the clauses."""

    def first_subject(text):
        return PLURAL[nouns(text.partition(", ")[2])[0]]

    found = agreement_scores([first_subject(one.text) for one in sentences], sentences)
    for row in found:
        here = [one for one in sentences if one.distance == row["distance"]]
        whole = sum(one.subject == 1 for one in here) / len(here)
        assert row["accuracy"] == pytest.approx(whole + (1 - whole) / 2)
        assert 0.65 < row["accuracy"] < 0.85


def test_shortcuts_score_what_systems_score_that_use_them(sentences):
    """More than a half, without regard to clauses; with two subjects, whether a verb has come says which of them."""

    def most_nouns(text):
        plural = [PLURAL[noun] for noun in nouns(text)]
        return (1 + (sum(plural) > len(plural) / 2) - (sum(plural) < len(plural) / 2)) / 2

    systems = {
        "nearest noun": lambda text: PLURAL[nouns(text)[-1]],
        "first subject": lambda text: PLURAL[nouns(text.partition(", ")[2])[0]],
        "most nouns": most_nouns,
    }
    found = shortcut_scores(sentences)
    assert [(row["distance"], row["shortcut"]) for row in found] == [(d, name) for d in DISTANCES for name in systems]
    for row in found:
        here = [one for one in sentences if one.distance == row["distance"]]
        for key, some in (("accuracy", here), ("misled", [one for one in here if one.misleading])):
            right = [1 - abs(systems[row["shortcut"]](one.text) - one.plural) for one in some]
            assert row[key] == pytest.approx(sum(right) / len(right))
    scores_of = {row["shortcut"]: row["accuracy"] for row in found if row["distance"] == 9}
    assert scores_of["nearest noun"] == 0.5
    assert 0.7 < scores_of["first subject"] < 0.8
    assert 0.6 < scores_of["most nouns"] < 0.75

    def after_a_verb(text):
        first, *later = nouns(text.partition(", ")[2])
        return PLURAL[first if any(token in VERBS for token in text.split()) else later[0]]

    assert all(row["accuracy"] == 1.0 for row in scores(sentences, after_a_verb))


def test_as_many_answers_as_sentences(sentences):
    with pytest.raises(ValueError, match="1 answers for 1200 sentences"):
        agreement_scores([True], sentences)
