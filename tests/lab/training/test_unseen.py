"""Text that a run holds out was not trained on by the model that it starts from."""

import shutil
from dataclasses import replace
from itertools import islice

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset, to_yaml
from antiphase.lab.studies.started import check_unseen, overrides_from, repeated_batches
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.training.run_folder import runs_behind
from antiphase.models.checkpoints import convert


@pytest.fixture
def read(tmp_path, tiny_preset):
    """A run that was trained on a.txt and has held out b.txt."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name} word of the text {name}. " * 400)
    paths = {"data": [str(tmp_path / "a.txt")], "validation": [str(tmp_path / "b.txt")]}
    run = load_preset("half-hour", ["training.steps=1", "training.warmup_steps=0", *READS], **paths).run
    train_run(run, tmp_path / "read", resume=False)
    return tmp_path


READS = ("model.hidden_size=16", "model.intermediate_size=16", "model.num_hidden_layers=1",
         "model.num_attention_heads=2", "data.sequence_length=128", "data.needles=2", "data.queries=1",
         "data.vocabulary_size=400", "training.batch_size=2", "evaluation.validation_sequences=2",
         "evaluation.curve_samples=2")  # fmt: skip


@pytest.mark.parametrize(("data", "validation", "message"), [
    (["b"], ["a"], r"--validation \S*a\.txt overlaps with data\.paths of \S*read \S*a\.txt: that model was"),
    (["b"], ["copy"], r"--validation \S*copy\.txt is a copy of a file in data\.paths of \S*read: that model was"),
    (["a"], [], r"--data \S*a\.txt overlaps .*, and a share of it would be held out; give --validation text"),
    (["b"], ["c"], None),
    (["a"], ["b"], None),
    (["c"], [], None),
])  # fmt: skip
def test_text_that_the_first_model_was_trained_on_is_not_held_out(read, data, validation, message):
    shutil.copy(read / "a.txt", read / "copy.txt")
    paths = {"data": [str(read / f"{one}.txt") for one in data],
             "validation": [str(read / f"{one}.txt") for one in validation]}  # fmt: skip
    start = overrides_from(str(read / "read"), field="start_from")
    run = load_preset("half-hour", [*start, "training.steps=1", "training.warmup_steps=0", *READS], **paths).run
    if message is None:
        check_unseen(run)
        return
    with pytest.raises(InputError, match=message):
        train_run(run, read / "next", resume=False)
    assert not (read / "next").exists()
    second = replace(run, training=replace(run.training, start_from=str(read / "middle")))
    shutil.copytree(read / "read", read / "middle")
    (read / "middle" / "run.yaml").write_text(to_yaml(replace(
        run, data=replace(run.data, paths=[str(read / "c.txt")], validation=[]),
        training=replace(run.training, start_from=str(read / "read")),
    )))  # fmt: skip
    with pytest.raises(InputError, match=message):  # the model before the one before
        check_unseen(second)


def test_a_conversion_knows_the_text_of_its_source(read):
    convert(str(read / "read"), read / "rounded", dtype="bfloat16")
    convert(str(read / "rounded"), read / "again", dtype="float32")
    run = load_preset("half-hour", READS, data=[str(read / "a.txt")]).run
    for name in ("rounded", "again"):
        started = replace(run, training=replace(run.training, start_from=str(read / name)))
        with pytest.raises(InputError, match=r"--data \S*a\.txt overlaps .*, and a share of it would be held out"):
            check_unseen(started)
        assert [kept.data.paths for _, kept in runs_behind(str(read / name), field="model")] == [[str(read / "a.txt")]]


def test_a_folder_that_names_itself_as_its_start_is_one_run(read):
    run = load_preset("half-hour", READS, data=[str(read / "c.txt")]).run
    run = replace(run, training=replace(run.training, start_from=str(read / "read")))
    (read / "read" / "run.yaml").write_text(to_yaml(run))
    assert len(list(islice(runs_behind(str(read / "read"), field="model"), 3))) == 1


@pytest.mark.parametrize(("seed", "length", "again"), [(0, 128, True), (1, 128, False), (0, 64, False)])
def test_batches_that_come_again_are_said(read, seed, length, again):
    start = overrides_from(str(read / "read"), field="start_from")
    changes = [*start, *READS, f"training.seed={seed}", f"data.sequence_length={length}"]
    run = load_preset("half-hour", changes, data=[str(read / "a.txt")], validation=[str(read / "b.txt")]).run
    assert ["come again" in line for line in repeated_batches(run)] == [True] * again
    shared = replace(run, data=replace(run.data, validation=[]))  # a share is held out, so the order is another
    assert repeated_batches(shared) == []


def test_the_same_split_goes_on_and_files_that_are_gone_are_not_looked_at(read):
    share = load_preset("half-hour", READS, data=[str(read / "a.txt")]).run
    (read / "read" / "run.yaml").write_text(to_yaml(share))
    started = replace(share, training=replace(share.training, start_from=str(read / "read")))
    check_unseen(started)
    longer = replace(started, data=replace(started.data, sequence_length=32))
    with pytest.raises(InputError, match="a share of it would be held out"):
        check_unseen(longer)
    (read / "a.txt").rename(read / "moved.txt")
    check_unseen(replace(longer, data=replace(longer.data, paths=[str(read / "moved.txt")])))
