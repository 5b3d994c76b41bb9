"""The needle score of systems whose score is known: it rewards finding and nothing else."""

import numpy
import pytest
import torch

from antiphase.base.randomness import keyed_generator
from antiphase.lab.scoring.needles import (
    correct_answers,
    first_query_accuracy,
    needle_cell,
    needle_grid,
    predictor,
    summarize,
    tasks_of,
)
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.retrieval import RetrievalBatch, RetrievalTask, SymbolLanguage, TextLanguage

KEYS, NUMBERS, FILLERS = 16, 20, 12
LANGUAGE = SymbolLanguage(KEYS, NUMBERS, FILLERS)
FIRST_NUMBER = 2 + KEYS


def factory(*, needles=None, sequence_length=None, queries=None):
    """Sizes left out are those of training: 3 needles, 4 queries, 50 tokens."""
    return RetrievalTask(LANGUAGE, needles=needles or 3, queries=queries or 4, sequence_length=sequence_length or 50)


def context_of(row, first_answer):
    """The needles' numbers in the order of the context."""
    return [index for index in row[:first_answer].tolist() if FIRST_NUMBER <= index < FIRST_NUMBER + NUMBERS]


"""Numbers in the context and true earlier answers to an answer."""


def system(answer):
    """A predictor that reads a row as a model would: the context, and the true answers before the one asked for."""
    generator = numpy.random.default_rng(0)

    def predict(input_ids, positions):
        found = torch.empty_like(positions)
        for index, (row, places) in enumerate(zip(input_ids, positions.tolist(), strict=True)):
            context = context_of(row, places[0])
            truth = row[places].tolist()
            for place in range(len(places)):
                found[index, place] = answer(context, truth[:place], generator)
        return found

    return predict


def perfect(input_ids, positions):
    return input_ids.gather(1, positions.clamp(min=0))


def not_yet_named(context, earlier, generator):
    left = [number for number in context if number not in earlier] or context
    return int(generator.choice(left))


guess = system(lambda context, earlier, generator: int(generator.choice(context)))
constant = system(lambda context, earlier, generator: FIRST_NUMBER + 3)
first_needle = system(lambda context, earlier, generator: context[0])
in_context_order = system(lambda context, earlier, generator: context[len(earlier) % len(context)])


def holds(cell, truth):
    low, high = wilson_interval(cell["correct"], cell["samples"], 0.99)
    return low <= truth <= high


# ------------------------------------------------------------------------------------------ systems with known scores


def test_a_system_that_finds_everything_scores_one():
    cell = needle_cell(perfect, factory(needles=5, sequence_length=40), depth=0.5, samples=60, seed=0)
    assert cell["correct"] == cell["samples"] == 60
    assert cell["by_place"] == [1.0] * 4


def test_a_system_that_is_always_wrong_scores_zero():
    def wrong(input_ids, positions):
        return perfect(input_ids, positions) + 1

    cell = needle_cell(wrong, factory(needles=5, sequence_length=40), depth=0.5, samples=60, seed=0)
    assert cell["correct"] == 0
    assert cell["by_place"] == [0.0] * 4


@pytest.mark.parametrize("needles", [2, 4, 8])
@pytest.mark.parametrize("depth", [None, 0.0, 0.5])
def test_guessing_a_number_of_the_context_scores_the_guess_rate(needles, depth):
    cell = needle_cell(guess, factory(needles=needles, sequence_length=60), depth=depth, samples=1200, seed=1)
    assert cell["guess_rate"] == 1 / needles
    assert holds(cell, 1 / needles)


def test_a_constant_answer_scores_one_in_the_number_of_values():
    cell = needle_cell(constant, factory(needles=4, sequence_length=40), depth=None, samples=2000, seed=2)
    assert holds(cell, 1 / NUMBERS)


def test_naming_the_first_needle_scores_a_guess_at_any_place_and_one_at_depth_zero():
    task = factory(needles=4, sequence_length=60)
    assert holds(needle_cell(first_needle, task, depth=None, samples=1500, seed=3), 1 / 4)
    assert needle_cell(first_needle, task, depth=0.0, samples=80, seed=3)["correct"] == 80
    assert needle_cell(first_needle, task, depth=1.0, samples=80, seed=3)["correct"] == 0


def test_listing_all_numbers_in_order_scores_a_guess():
    cell = needle_cell(in_context_order, factory(needles=4, sequence_length=60), depth=None, samples=1500, seed=4)
    assert holds(cell, 1 / 4)


def test_naming_a_number_not_yet_named_gains_nothing_at_any_place():
    """Questions come with replacement, so what was answered says nothing about what is asked next."""
    task = factory(needles=4, sequence_length=60)
    cell = needle_cell(system(not_yet_named), task, depth=None, samples=1500, seed=5)
    assert holds(cell, 1 / 4)
    for share in cell["by_place"]:
        assert share == pytest.approx(1 / 4, abs=0.045)


def test_where_no_question_repeats_the_leak_shows_in_later_places_and_not_in_the_score():
    needles = 3
    batch = factory(needles=needles, sequence_length=40, queries=3).sample(4000, keyed_generator(6))
    keys = batch.input_ids.gather(1, batch.answer_positions[:, :, 0] - 1).sort(1).values
    once = (keys[:, 1:] != keys[:, :-1]).all(1)  # as if drawn without replacement
    rows = RetrievalBatch(
        batch.input_ids[once], batch.answer_positions[once], batch.prompt_end[once],
        {name: span[once] for name, span in batch.spans.items()},
    )  # fmt: skip
    shares = correct_answers(system(not_yet_named), rows).float().mean(0).tolist()
    assert len(rows.input_ids) > 600
    assert shares[0] == pytest.approx(1 / 3, abs=0.06)
    assert shares[1] == pytest.approx(1 / 2, abs=0.06)
    assert shares[2] == 1.0


# ------------------------------------------------------------------------------------------ cells and grids


def test_cells_hold_equal_sequences_whatever_predicts():
    def recorder(seen, answer):
        def predict(input_ids, positions):
            seen.append(input_ids)
            return answer(input_ids, positions)

        return predict

    tasks = tasks_of(factory, needles=[2, 4], queries=[], lengths=[40, 60])
    one, other, another_seed = [], [], []
    for seen, answer, seed in ((one, perfect, 7), (other, guess, 7), (another_seed, perfect, 8)):
        needle_grid(recorder(seen, answer), tasks, depths=[0.0], samples=5, seed=seed)
    assert len(one) == 8
    for a, b, c in zip(one, other, another_seed, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert len({tuple(ids.flatten().tolist()) for ids in one}) == 8  # no two cells alike


def test_a_grid_has_a_cell_for_every_size_and_depth():
    tasks = tasks_of(factory, needles=[2, 4], queries=[1, 3], lengths=[40, 60])
    cells = needle_grid(perfect, tasks, depths=[0.0, 0.5], samples=3, seed=0)
    sizes = [(cell["needles"], cell["queries"], cell["length"], cell["depth"]) for cell in cells]
    assert sizes == [(n, r, length, d) for n in (2, 4) for r in (1, 3) for length in (40, 60) for d in (0.0, 0.5, None)]
    assert [len(cell["by_place"]) for cell in cells] == [cell["queries"] for cell in cells]
    assert all(cell["samples"] == 3 for cell in cells)


def test_empty_lists_mean_the_sizes_of_training():
    (task,) = tasks_of(factory, needles=[], queries=[], lengths=[])
    assert (task.needles, task.queries, task.sequence_length) == (3, 4, 50)
    assert len(tasks_of(factory, needles=[1, 2, 3], queries=[], lengths=[])) == 3


def test_naming_the_last_number_is_a_guess_where_the_needle_is_anywhere():
    """It is always right at depth 1, so only the cell of no fixed depth may be compared with the guess rate."""

    def last(input_ids, positions):
        values = [[token for token in row[: int(places[0])].tolist() if is_value(token)][-1] for row, places in
                  zip(input_ids, positions, strict=True)]  # fmt: skip
        return torch.tensor(values)[:, None].expand_as(positions)

    language = SymbolLanguage(10, 20, 30)

    def is_value(token):
        return 2 + language.key_count <= token < 2 + language.key_count + language.value_count

    task = RetrievalTask(language, needles=4, queries=2, sequence_length=40)
    rows = {row["depth"]: row for row in summarize(needle_grid(last, [task], depths=[0.0, 1.0], samples=600, seed=0))}
    assert rows[0.0]["accuracy"] == 0.0
    assert rows[1.0]["accuracy"] == 1.0
    low, high = rows[None]["interval"]
    assert low <= 1 / 4 <= high


def test_a_summary_of_one_model_has_wilsons_interval_and_of_several_their_range():
    def cell(depth, correct, needles=4, queries=4):
        sizes = {"needles": needles, "queries": queries, "length": 60, "depth": depth}
        return {**sizes, "samples": 50, "correct": correct, "guess_rate": 0.25}

    cells = [cell(0.0, 50), cell(0.5, 10), cell(0.0, 40), cell(0.0, 43), cell(None, 5, needles=2)]
    rows = summarize([*cells, cell(0.0, 1, queries=1)])
    assert [row["accuracy"] for row in rows if row["queries"] == 1] == [0.02]
    found = {(row["needles"], row["depth"]): row for row in rows if row["queries"] == 4}
    assert len(rows) - 1 == len(found) == 3
    assert found[4, 0.0]["accuracy"] == 0.86
    assert found[4, 0.0]["interval"] == [0.8, 1.0]
    assert (found[4, 0.0]["models"], found[4, 0.0]["interval_is"]) == (3, "range over seeds")
    assert found[4, 0.5]["interval"] == list(wilson_interval(10, 50))
    assert (found[4, 0.5]["models"], found[4, 0.5]["samples"]) == (1, 50)
    assert found[2, None]["guess_rate"] == 0.25


# ------------------------------------------------------------------------------------------ real models


def test_an_answer_is_right_only_as_a_whole():
    batch = RetrievalBatch(
        input_ids=torch.tensor([[5, 6, 7, 8, 9]]),
        answer_positions=torch.tensor([[[1, 2, -1], [3, 4, -1], [4, -1, -1]]]), prompt_end=torch.tensor([0]), spans={},
    )  # fmt: skip

    def says(*tokens):
        return correct_answers(lambda ids, positions: torch.tensor([tokens]), batch)[0].tolist()

    assert says(6, 7, -1, 8, 9, -1, 9, -1, -1) == [True, True, True]
    assert says(6, 0, -1, 0, 9, -1, 9, -1, -1) == [False, False, True]
    assert says(6, 7, 33, 8, 9, 33, 9, 33, 33) == [True, True, True]  # beyond its end nothing is asked


@pytest.mark.parametrize("kind", ["softmax", "differential"])
def test_answers_of_many_tokens_are_right_exactly_where_greedy_generation_gives_them(
    tiny_model, text_tokenizer, generated_text, kind
):
    language = TextLanguage(text_tokenizer, numpy.array(text_tokenizer.encode(generated_text)))
    task = RetrievalTask(language, needles=2, queries=2, sequence_length=190)
    model = tiny_model(kind, vocab_size=len(text_tokenizer), max_position_embeddings=220, eos_token_id=None)
    batch = task.sample(8, keyed_generator(9))
    width = batch.answer_positions.shape[2]
    assert width == 5
    expected = []
    for row, (end, positions) in enumerate(zip(batch.prompt_end, batch.answer_positions[:, 0], strict=True)):
        prompt = batch.input_ids[row : row + 1, : end + 1]
        generated = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=width, do_sample=False
        )[0, end + 1 :]
        assert len(generated) == width
        if row % 4:  # one token of the answer is another one: the last, the first, one between
            place = (-1, 0, 2)[row % 4 - 1]
            generated[place] = (generated[place] + 1) % len(text_tokenizer)
        batch.input_ids[row, positions] = generated
        expected.append(row % 4 == 0)
    correct = correct_answers(predictor(model), batch)
    assert correct.shape == (8, 2)
    assert correct[:, 0].tolist() == expected
    assert first_query_accuracy(model, batch) == 0.25


def test_first_query_accuracy_equals_the_first_place_of_a_cell(tiny_model):
    task = factory(needles=2, sequence_length=30)
    model = tiny_model(vocab_size=len(LANGUAGE.words))
    batch = task.sample(64, keyed_generator(10))
    assert first_query_accuracy(model, batch) == correct_answers(predictor(model), batch)[:, 0].float().mean().item()


def test_an_untrained_model_scores_no_better_than_guessing(tiny_config):
    import antiphase

    task = factory(needles=4, sequence_length=30)
    model = antiphase.AntiphaseForCausalLM(tiny_config(vocab_size=len(LANGUAGE.words))).eval()
    cell = needle_cell(predictor(model), task, depth=None, samples=200, seed=11)
    assert wilson_interval(cell["correct"], 200)[0] < 1 / 4
