"""Retrieval sequences that become longer once they are answered: pages in rows, stages in checkpoints."""

import json
import signal
from collections import Counter

import pytest
import torch

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies import training_run
from antiphase.lab.studies.runs import run_of
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.loop import PAGE_ACCURACY
from antiphase.lab.training.objective import NextTokenLoss
from antiphase.ops.shapes import IGNORED_TARGET
from support.launched import in_two_processes

GROWING = ("data.sequence_length=48", "data.lengths=[12,24,48]", "data.length_threshold=0.06", "training.steps=14",
           "data.needle_share=0.9", "evaluation.curve_samples=40")  # fmt: skip


def interrupt_after(step):
    def report(done, values):
        if done == step and not {"evaluation", "measuring"} & values.keys():
            signal.raise_signal(signal.SIGINT)

    return report


def stages_of(folder):
    return [(stage.length, stage.step) for stage in run_of(Record.load(folder)).stages]


# ------------------------------------------------------------------------------------------ the loss of pages


@pytest.fixture
def batch():
    """Rows of one, four and one pages, with unequally many labels, none at the beginning of a page."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 61, (3, 20), generator=generator)
    labels = ids.masked_fill(torch.rand(3, 20, generator=generator) < torch.tensor([[0.2], [0.6], [0.9]]), -100)
    labels[1, ::5] = IGNORED_TARGET
    labels[:, 3] = ids[:, 3]  # a label in every row
    return ids, labels, torch.tensor([1, 4, 1])


def test_pages_of_a_row_do_not_see_each_other(tiny_model, batch):
    model, (ids, labels, pages) = tiny_model().double(), batch
    found = NextTokenLoss(model)(ids, labels, pages, [1, 4])
    alone = [NextTokenLoss(model)(ids[row : row + 1], labels[row : row + 1]) for row in (0, 2)]
    alone += [NextTokenLoss(model)(ids[1:2, at : at + 5], labels[1:2, at : at + 5]) for at in range(0, 20, 5)]
    torch.testing.assert_close(found, torch.stack(alone).sum())
    assert not torch.isclose(found, NextTokenLoss(model)(ids, labels))


def test_rows_of_equal_weight_give_the_sum_of_their_means(tiny_model, batch):
    model, (ids, labels, pages) = tiny_model().double(), batch
    found = NextTokenLoss(model, equal_rows=True)(ids, labels, pages, [1, 4])
    means = [
        NextTokenLoss(model)(*(one[row : row + 1] for one in batch), [int(pages[row])]) / (labels[row, 1:] >= 0).sum()
        for row in range(3)
    ]
    torch.testing.assert_close(found, torch.stack(means).sum())
    assert len({int(count) for count in (labels[:, 1:] >= 0).sum(1)}) == 3


@pytest.mark.parametrize("equal_rows", [False, True])
def test_a_kind_of_rows_that_is_not_there_adds_nothing(tiny_model, batch, equal_rows):
    """Processes that divide the weights need it, where another one has such rows."""
    model, (ids, labels, pages) = tiny_model().double(), batch
    loss = NextTokenLoss(model, equal_rows=equal_rows)
    found = loss(ids[::2], labels[::2], pages[::2], [1, 4])
    torch.testing.assert_close(found, loss(ids[::2], labels[::2]))
    gradients = torch.autograd.grad(found, list(model.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("equal", ["false", "true"])
def test_micro_batches_do_not_change_the_loss(tmp_path, run, equal):
    """Rows of both kinds, in passes of one kind and of both."""
    losses = {}
    for size in (6, 4, 1):
        folder = tmp_path / str(size)
        run(folder, *GROWING, "training.steps=4", f"data.equal_rows={equal}", f"training.micro_batch_size={size}")
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        losses[size] = [json.loads(line)["loss"] for line in lines]
    assert losses[4] == pytest.approx(losses[6], rel=1e-5)
    assert losses[1] == pytest.approx(losses[6], rel=1e-5)


# ------------------------------------------------------------------------------------------ stages


def test_the_record_says_when_each_length_began_and_a_resumed_run_is_the_whole_one(
    tmp_path, run, outcome, assert_identical
):
    said = []
    record = run(tmp_path / "whole", *GROWING, say=said.append)
    stages = stages_of(tmp_path / "whole")
    assert [length for length, _ in stages] == [12, 24, 48]
    first, second, third = (step for _, step in stages)
    assert first == 0 < second < third < 14
    assert said[-1] == f"retrieval sequences have 48 tokens from step {third + 1} on"
    curve = {point["step"]: point for point in record.values["curve"]}
    for length, step in ((12, second), (24, third)):
        assert curve[step]["page_length"] == length
        assert curve[step]["page_accuracy"] > 0.06
    failed = [point for point in curve.values() if "page_length" in point and point["step"] not in (second, third)]
    assert failed
    assert all(point["page_accuracy"] <= 0.06 for point in failed)
    assert all("page_length" not in point for step, point in curve.items() if step > third)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert Counter(line["page_length"] for line in lines) == {12: second, 24: third - second, 48: 14 - third}
    assert lines[-1]["tokens"] == 14 * 6 * 48

    for number, step in enumerate((second - 1, third)):
        folder = tmp_path / f"parts{number}"
        with pytest.raises(Interrupted):
            run(folder, *GROWING, report=interrupt_after(step))
        run(folder, *GROWING, resume=True)
        assert_identical(outcome(folder), outcome(tmp_path / "whole"))


def test_the_last_evaluation_begins_no_stage(tmp_path, run, monkeypatch):
    monkeypatch.setattr(training_run, "first_query_accuracy", lambda *_: 1.0)
    said = []
    run(tmp_path / "run", *GROWING, "training.steps=1", say=said.append)
    assert stages_of(tmp_path / "run") == [(12, 0), (24, 0)]
    assert said == ["retrieval sequences have 24 tokens from step 1 on"]


def test_a_stage_that_is_not_passed_lasts(tmp_path, run):
    run(tmp_path / "run", *GROWING, "data.length_threshold=0.99")
    assert stages_of(tmp_path / "run") == [(12, 0)]


def test_a_run_of_one_length_has_no_stages(tmp_path, run, kept):
    run(tmp_path / "run", "training.steps=5")
    assert stages_of(tmp_path / "run") == []
    assert kept(tmp_path / "run")["progress"]["stages"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("training.mesh.shard=2",), ("training.mesh.context=2",)])
def test_two_processes_begin_each_length_where_one_does(tmp_path, tiny_preset, run, mesh):
    further = ("data.equal_rows=true", "training.micro_batch_size=2", "training.batch_size=7")
    done = in_two_processes(tiny_preset, tmp_path / "two", *GROWING, *further, *mesh)
    assert done.returncode == 0, done.stderr
    run(tmp_path / "one", *GROWING, *further)
    assert stages_of(tmp_path / "two") == stages_of(tmp_path / "one")
    assert len(stages_of(tmp_path / "one")) == 3
    one, two = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert two == pytest.approx(one, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("training.mesh.shard=2",)])
def test_processes_without_a_row_of_one_kind_go_through_the_same_steps(tmp_path, book, tiny_preset, run, mesh):
    """Of two rows, one of text and one of pages, each process has one."""
    text = (
        "data.source=text", f"data.paths=[{book}]", "data.sequence_length=256", "data.lengths=[128,256]",
        "data.needles=2", "data.queries=1", "data.needle_share=0.5", "training.batch_size=2", "training.steps=3",
        "data.answers_only=true", "data.equal_rows=true",
    )  # fmt: skip
    done = in_two_processes(tiny_preset, tmp_path / "two", *text, *mesh)
    assert done.returncode == 0, done.stderr
    run(tmp_path / "one", *text)
    one, two = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize(("overrides", "words"), [
    (["data.lengths=[12,12,48]"], r"data\.lengths must increase from at least 2 tokens on, got \[12, 12, 48\]"),
    (["data.lengths=[24,12,48]"], r"data\.lengths must increase"),
    (["data.lengths=[1,48]"], r"data\.lengths must increase from at least 2"),
    (["data.lengths=[12,24]"], r"data\.lengths must end with data\.sequence_length \(48\), got \[12, 24\]"),
    (["data.lengths=[12,96]"], r"data\.lengths must end with data\.sequence_length \(48\)"),
    (["data.lengths=[12,20,48]"], r"data\.lengths: 20 does not divide data\.sequence_length \(48\)"),
    (["data.lengths=[3,48]", "training.mesh.context=2"], r"training\.mesh\.context=2 does not divide 3 of data"),
    (["data.lengths=[12,48]", "data.needle_share=0"], r"data\.lengths are those of retrieval sequences"),
    (["data.length_threshold=1"], r"data\.length_threshold must be above 0 and below 1, got 1"),
])  # fmt: skip
def test_lengths_that_do_not_fit_are_refused(tiny_preset, overrides, words):
    with pytest.raises(InputError, match=f"^{words}"):
        load_preset(str(tiny_preset), ["data.sequence_length=48", *overrides])


def test_a_first_length_with_room_for_two_of_three_facts_is_trained(tmp_path, run):
    record = run(tmp_path / "run", *GROWING, "data.lengths=[12,48]", "training.steps=2", "data.length_threshold=0.99")
    assert stages_of(tmp_path / "run") == [(12, 0)]
    assert {point["page_length"] for point in record.values["curve"]} == {12}


def test_held_out_pages_have_as_many_facts_as_those_of_training_which_may_ask_for_several(
    tiny_preset, tmp_path, monkeypatch
):
    settings = load_preset(str(tiny_preset), [
        "data.sequence_length=52", "data.lengths=[13,52]", "data.queries=3", "data.asked_together=2",
    ]).run  # fmt: skip
    data = prepare(settings.data, tmp_path)
    assert data.task().of_length(13).needles == 3  # of questions for one fact at a time
    monkeypatch.setattr(training_run, "first_query_accuracy", lambda model, batch, divide: batch)
    found = training_run.page_evaluations(settings, data)[13](None, None)[PAGE_ACCURACY]
    facts = found.spans["answer"] | found.spans["other_needles"]
    assert facts[0].sum() == 2 * data.training_task().of_length(13).needles == 2 * 2


def test_a_first_length_that_has_no_room_for_two_facts_is_refused(tmp_path, run):
    with pytest.raises(InputError, match=r"^data\.lengths \(8\) is too short for 2 needles and 2 queries, .* 9 tokens"):
        run(tmp_path / "run", "data.sequence_length=48", "data.lengths=[8,48]")
    assert not (tmp_path / "run").exists()
