"""The score of systems whose score is known, on contexts in plain text; and what a model writes."""

import random

import pytest
import torch

import antiphase
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.needles import presentation
from antiphase.lab.measures.needles.measure import paired, trends
from antiphase.lab.measures.needles.text import Generating, text_needles
from antiphase.lab.measures.retrieval_presentation import needle_grid, needle_summary
from antiphase.lab.scoring import likelihood
from antiphase.lab.scoring.needles import is_right, numbers_of, summarize
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.haystacks import Cell, Context, Haystack, encode, output_tokens, prompt_ids


@pytest.fixture(scope="module")
def haystack(generated_text, text_tokenizer):
    return Haystack([generated_text], text_tokenizer)


def size(needles=4, queries=1, depth=None, length=270):
    return Cell(needles=needles, queries=queries, length=length, depth=depth)


def system(answer):
    draw = random.Random(3)
    return lambda contexts: [answer(context, draw) for context in contexts]


perfect = system(lambda context, draw: f" {' and '.join(context.answers)}.")
guessing = system(lambda context, draw: " " + " and ".join(draw.sample(context.numbers, len(context.answers))))
constant = system(lambda context, draw: " 4821 and 1234")
empty = system(lambda context, draw: "")
first_number = system(lambda context, draw: f" {context.numbers[0]}.")
everything = system(lambda context, draw: " " + ", ".join(context.numbers))
talking = system(lambda context, draw: " what nobody knows.")


def score(answers, haystack, cell, count=400):
    (row,) = text_needles(answers, {cell: haystack.contexts(cell, count, seed=1)})
    return row


def holds(row, truth):
    low, high = wilson_interval(row["correct"], row["samples"], 0.99)
    return low <= truth <= high


# ------------------------------------------------------------------------------------------ systems with known scores


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_a_system_that_finds_everything_scores_one(haystack, queries):
    row = score(perfect, haystack, size(4, queries), 40)
    assert row["correct"] == row["samples"] == 40
    assert row["by_place"] == [1.0] * queries


@pytest.mark.parametrize(("needles", "queries"), [(2, 1), (4, 1), (2, 2), (4, 2)])
def test_guessing_among_the_numbers_scores_the_guess_rate(haystack, needles, queries):
    row = score(guessing, haystack, size(needles, queries))
    assert holds(row, row["guess_rate"])
    assert row["by_place"] == pytest.approx([1 / needles] * queries, abs=0.08)


def test_one_needle_has_no_guess_rate_in_tables_and_figures(haystack):
    """There is no other number to guess. The record has the 100 % of naming the one number."""
    cells = {cell: haystack.contexts(cell, 3, seed=1) for cell in (size(1), size(4), size(4, 2))}
    summary = summarize(text_needles(perfect, cells))
    record = Record(
        kind="evaluate-needles", values={"guess_rate": 1.0, "task": "text", "cells": [], "summary": summary}
    )
    for table in (presentation.accuracies(record), needle_summary(presentation.retrieval_of(record))):
        place = [column.name.startswith("Guess") for column in table.columns].index(True)
        assert [row[place] for row in table.text()] == ["–", "25.0 %", "8.3 %"]
    assert "with one needle there is no other number to guess" in presentation.accuracies(record).note
    figure = needle_grid(presentation.retrieval_of(record))
    heatmap = next(axes.images[0] for axes in figure.axes if axes.images)
    assert heatmap.get_array()[-1].filled(-1).tolist() == [-1, 1 / 4, 1 / 12]


@pytest.mark.parametrize("answers", [constant, empty, talking])
def test_a_constant_and_an_empty_output_score_zero(haystack, answers):
    row = score(answers, haystack, size(), 200)
    assert row["correct"] == 0
    assert row["silent"] == (0 if answers is constant else 200)


def test_copying_the_first_number_scores_a_guess_anywhere_and_one_at_depth_zero(haystack):
    assert holds(score(first_number, haystack, size()), 1 / 4)
    assert score(first_number, haystack, size(depth=0.0), 50)["correct"] == 50
    assert score(first_number, haystack, size(depth=1.0), 50)["correct"] == 0
    assert score(first_number, haystack, size(4, 2), 100)["correct"] == 0  # one number is not two


@pytest.mark.parametrize(("needles", "queries"), [(4, 1), (3, 2)])
def test_listing_everything_scores_a_guess(haystack, needles, queries):
    row = score(everything, haystack, size(needles, queries))
    assert holds(row, row["guess_rate"])


@pytest.mark.parametrize(("output", "right"), [
    (" 1234 and 5678.", True), ("1234,5678", True), (" 1234. City number: Rome 5678", True), (" 5678 and 1234.", False),
    (" 12345 and 5678", False), (" 1234", False), (" 1 1234 5678", False), (" 1234 or 4321 and 5678", False),
    ("", False),
])  # fmt: skip
def test_the_first_whole_numbers_must_be_the_answers_in_the_order_asked(output, right):
    context = Context(
        text="", answers=("1234", "5678"), numbers=("5678", "1234", "9999"), cities=("Rome", "Oslo", "Bern"), spans=()
    )
    assert is_right(output, context) is right


def test_digits_of_other_scripts_are_no_numbers():
    assert numbers_of(" ١٢٣٤ 1234", 2) == ["1234"]


# ------------------------------------------------------------------------------------------ differences and trends


def row(right, length=100, depth=0.0):
    sizes = {"needles": 4, "queries": 1, "length": length, "depth": depth, "guess_rate": 0.25}
    return {**sizes, "right": right, "correct": sum(right), "samples": len(right)}


def test_a_paired_difference_counts_contexts_that_only_one_got_right():
    one = [row([1, 1, 1, 0]), row([1, 0, 1, 1], depth=1.0), row([0, 0, 0, 1], depth=None)]
    other = [row([0, 1, 0, 0]), row([1, 1, 0, 1], depth=1.0), row([0, 0, 0, 1], depth=None)]
    found = {entry["depth"]: entry for entry in paired(one, other)}
    assert list(found) == [0.0, 1.0, None, "fixed"]
    assert [found[0.0][name] for name in ("better", "worse", "difference")] == [2, 0, 0.5]
    assert [found["fixed"][name] for name in ("better", "worse", "samples")] == [3, 1, 8]
    assert found["fixed"]["difference"] == 2 / 8
    low, high = found[None]["interval"]
    assert low < 0 < high  # no difference is still uncertain


def test_an_interval_of_a_paired_difference_excludes_zero_where_it_should():
    ((_, sure),) = [(entry["depth"], entry) for entry in paired([row([1] * 40)], [row([0] * 40)])][:1]
    assert sure["interval"][0] > 0.8
    assert paired([row([0] * 40)], [row([1] * 40)])[0]["interval"][1] < -0.8


def test_the_spread_is_over_fixed_depths_and_the_slope_is_by_doubling():
    cells = [
        row([1] * 8 + [0] * 2, 100, 0.0), row([1] * 6 + [0] * 4, 100, 1.0), row([0] * 10, 100, None),
        row([1] * 5 + [0] * 5, 400, 0.0), row([1] * 5 + [0] * 5, 400, 1.0), row([0] * 10, 400, None),
    ]  # fmt: skip
    (found,) = trends(cells)
    assert [entry["accuracy"] for entry in found["lengths"]] == [0.7, 0.5]
    assert [entry["spread"] for entry in found["lengths"]] == pytest.approx([0.2, 0.0])
    assert found["slope"] == pytest.approx(-0.1)  # 20 points over two doublings
    assert found["slope_interval"][0] < -0.1 < found["slope_interval"][1]
    (alone,) = trends(cells[:3])
    assert alone["slope"] is None


# ------------------------------------------------------------------------------------------ models


@pytest.fixture
def model(tiny_model, text_tokenizer):
    return tiny_model(vocab_size=len(text_tokenizer), max_position_embeddings=300)


def test_a_model_writes_what_greedy_decoding_writes(haystack, text_tokenizer, model):
    contexts = haystack.contexts(size(length=210), 3, seed=0)
    room = output_tokens(text_tokenizer, 1)
    for context, output in zip(contexts, Generating(model, text_tokenizer)(contexts), strict=True):
        ids = torch.tensor([prompt_ids(text_tokenizer, context)])
        written = []
        with torch.no_grad():
            for _ in range(room):
                token = int(model(input_ids=ids, use_cache=False).logits[0, -1].argmax())
                if token == model.generation_config.eos_token_id:
                    break
                written.append(token)
                ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
        assert output == text_tokenizer.decode(written)


@pytest.mark.slow
def test_a_model_that_learned_the_answers_scores_one_and_at_others_nothing(haystack, text_tokenizer, tiny_config):
    learned, other = (haystack.contexts(size(4, 2, depth, 300), 3, seed=0) for depth in (0.5, 0.25))
    torch.manual_seed(0)
    words = {"vocab_size": len(text_tokenizer), "max_position_embeddings": 300, "num_hidden_layers": 1}
    model = antiphase.AntiphaseForCausalLM(tiny_config("softmax", **words))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    end = text_tokenizer.eos_token_id
    for _ in range(60):
        for context in learned:
            prompt = prompt_ids(text_tokenizer, context)
            answer = [*encode(text_tokenizer, f" {context.answers[0]} and {context.answers[1]}."), end]
            labels = torch.tensor([[-100] * len(prompt) + answer])
            model(input_ids=torch.tensor([prompt + answer]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = text_needles(Generating(model.eval(), text_tokenizer), {size(4, 2, 0.5): learned, size(4, 2, 0.25): other})
    assert [row["correct"] for row in rows] == [3, 0]
    assert rows[0]["by_place"] == [1.0, 1.0]
    assert rows[0]["silent"] == 0


def test_a_long_prompt_goes_through_in_chunks_and_gives_the_same(haystack, text_tokenizer, model, monkeypatch):
    contexts = haystack.contexts(size(length=210), 4, seed=0)
    whole = Generating(model, text_tokenizer)(contexts)
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    monkeypatch.setattr(likelihood, "CHUNK", 37)
    assert Generating(model, text_tokenizer)(contexts) == whole
    assert max(seen) == 37


def test_a_context_longer_than_the_model_reads_is_refused(haystack, text_tokenizer, model):
    contexts = haystack.contexts(size(length=310), 2, seed=0)
    with pytest.raises(InputError, match=r"--against small reads 300 tokens, and a context .* lower --length"):
        Generating(model, text_tokenizer, "--against small")(contexts)
