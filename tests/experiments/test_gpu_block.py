"""A block on a GPU: its measurements exist, what it cannot use is one sentence, and what it did is in one record."""

import argparse
import json
import sys

import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.several import SeveralSettings
from antiphase.lab.measures.several.measure import planned
from experiments import gpu_block, programme_runs

TINY = [
    "model.hidden_size=32", "model.num_hidden_layers=1", "model.intermediate_size=48", "model.num_attention_heads=4",
    "training.device=cpu", "training.attn_implementation=null", "training.precision=float32", "training.steps=2",
    "training.evaluate_every=2", "training.checkpoint_every=2", "training.warmup_steps=1", "data.vocabulary_size=1500",
    "evaluation.curve_samples=2", "evaluation.validation_sequences=2",
]  # fmt: skip


@pytest.fixture
def block(tmp_path, monkeypatch):
    """The script, whose studies, runs and records lie in a folder of the test, and which knows the best rates."""
    runs, script = programme_runs, gpu_block
    monkeypatch.setattr(runs, "RECORDS", tmp_path / "records")
    for module in (runs, script):
        monkeypatch.setattr(module, "WORK", tmp_path / "work")
    (tmp_path / "records/e").mkdir(parents=True)
    lines = [
        {"arm": arm, "rate": rate, "seed": 100, "loss": loss, "curve": []}
        for arm in ("S", "SW", "V1", "V1+", "V2", "G") for rate, loss in ((1e-3, 4.0), (1.7e-3, 3.9), (3e-3, 4.1))
    ]  # fmt: skip
    (tmp_path / "records/e/rates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return script


def asked(tmp_path, seed="0", *, settings=(), minutes=60.0):
    return argparse.Namespace(
        what=seed, prepared=tmp_path / "prepared", output=tmp_path / "out", minutes=minutes, revision="abc",
        set=list(settings), samples=2,
    )  # fmt: skip


def test_every_measurement_exists_and_takes_its_flags(block, tmp_path):
    for part in block.PARTS:
        settings = [f"{part.measurement}.{name}={value}" for name, value in part.flags.items()]
        asked = SeveralSettings(models=("a",), measurements=(part.measurement,), paths=("b",), changes=settings)
        (task,) = planned(asked, tmp_path)  # refuses what it does not know
        assert task.folder == tmp_path / f"{part.measurement}-a"
        lengths = map(int, str(part.flags.get("length", 0)).split(","))
        assert max(lengths) <= (block.READ if part.of == "extended" else 1024)
    assert len({part.name for part in block.PARTS}) == len(block.PARTS)


def test_what_cannot_be_used_is_one_sentence(block, tmp_path, monkeypatch, capsys):
    for words, told in (
        (["x"], "x: give a seed, or prepare"),
        (["0"], "--output is missing"),
        (["0", "--output", "o", "--prepared", "none"], "none/train.parquet is missing; make it with prepare"),
        (["prepare", "--prepared", str(tmp_path / "p")], "--data is missing: text for train"),
    ):
        monkeypatch.setattr(sys, "argv", ["gpu_block.py", *words])
        assert block.main() == 2
        assert told in capsys.readouterr().err
    (tmp_path / "prepared").mkdir()
    for name in ("train", "validation"):
        (tmp_path / f"prepared/{name}.parquet").touch()
    with pytest.raises(InputError, match=r"e/runs has no seed 7; its seeds are \[0, 1, 2, 3, 4\]"):
        block.Block(asked(tmp_path, "7"))
    (tmp_path / "records/e/rates.jsonl").unlink()
    with pytest.raises(InputError, match="e/runs waits for 18 runs of e/rates"):
        block.Block(asked(tmp_path))


@pytest.mark.slow
def test_a_block_keeps_everything_in_one_record_and_names_what_is_missing(block, tmp_path, generated_text, monkeypatch):
    texts = [tmp_path / name for name in ("train.txt", "held-out.txt")]
    for path, text in zip(texts, (generated_text * 40, generated_text[::-1] * 20), strict=True):
        path.write_text(text)
    monkeypatch.setattr(block, "load_preset", lambda base, own, data: _with(base, data))
    block.prepare(tmp_path / "prepared", [str(texts[0])], [str(texts[1])])
    rates = {"S": 1.7e-3, "V1": 1e30}  # the second diverges, and the block goes on without it
    arms = ("S",)
    monkeypatch.setattr(block, "runs_of", lambda name, known: [block.Run(name, *one, 0) for one in rates.items()])
    names = ("outliers-trained", "long-context-extended")  # the second at the longest texts
    monkeypatch.setattr(block, "PARTS", [part for part in block.PARTS if part.name in names])
    assert block.Block(asked(tmp_path, settings=TINY)).run() == 0
    found = Record.load(tmp_path / "out" / "block-0.json")
    assert found.environment["revision"] == "abc"
    softmax, lost = found.values["runs"]
    assert (softmax["arm"], lost["arm"], lost["by_document"]) == ("S", "V1", None)
    assert softmax["loss"] > 0
    assert softmax["by_document"]
    assert list(found.values["measured"]["outliers-trained"]) == list(arms)
    assert all(value["rows"] for value in found.values["measured"]["outliers-trained"].values())
    assert list(found.values["measured"]["long-context-extended"]) == list(arms)
    assert found.values["missing"] == []
    assert found.values["for_loss_alone"]
    for arm in arms:
        model = json.loads((tmp_path / f"work/e/extended/{arm}-rate0.0017-seed0/config.json").read_text())
        assert model["max_position_embeddings"] == block.READ
    assert found.values["diverged"] == ["V1"]
    monkeypatch.setattr(block, "PARTS", [*block.PARTS, block.Part("perplexity", "extended", {})])
    late = block.Block(asked(tmp_path, settings=TINY))
    late.ends = 0.0
    assert late.run() == 1  # all is there but the measurement, for which no time is left
    again = Record.load(tmp_path / "out" / "block-0.json").values
    assert again["missing"] == ["perplexity-extended"]
    assert again["measured"]["outliers-trained"] == found.values["measured"]["outliers-trained"]


def _with(base, data):
    """The preset, whose vocabulary is small."""
    from antiphase.lab.settings.presets import load_preset

    return load_preset(base, ["data.vocabulary_size=1500"], data=data)
