"""An interrupted measurement continues after its last stored part, and its result is the same."""

import json

import pytest

from antiphase.base.folders.journal import JOURNAL
from antiphase.lab.measures.document_gain import measure as document_gain
from antiphase.lab.measures.long_context import measure as long_context
from antiphase.lab.measures.many_shot import measure as many_shot
from antiphase.lab.measures.quantization import measure as quantization
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.text.tokenization import train_tokenizer
from support.models import save, small_llama

SENTENCE = "The number of city {} is {}. A town on the river had a market that nobody remembered. "
DATA = ["text.txt"]
MEASUREMENTS = {
    "many-shot": (
        many_shot, "choose_options", 6, {"tasks": ["task.yaml"], "shots": [1, 2], "samples": 4, "orders": 2},
    ),
    "long-context": (long_context, "losses_by_position", 6, {"paths": DATA, "length": 64, "samples": 2}),
    "document-gain": (document_gain, "score_options", 5, {"data": ["towns.jsonl"], "samples": 12}),
    "quantization": (
        quantization, "first_query_accuracy", 4,
        {"paths": DATA, "length": 96, "samples": 2, "bits": [8, 4, 2], "needles": 1, "queries": 1},
    ),
}  # fmt: skip
"""By name: the module, the function that computes a part, the number of parts, and settings."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, a text, a labelled set, and documents with summaries."""
    monkeypatch.chdir(tmp_path)
    text = "".join(SENTENCE.format(number, 7919 * number % 1000) for number in range(60))
    tokenizer = train_tokenizer([text, "Review: Sentiment: negative positive 0 1 2 3 4 5 6 7 8 9"] * 9, 400)
    save(small_llama(tokenizer, max_position_embeddings=512), tokenizer, tmp_path / "model")
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "rows.all").write_text("\n".join(f"{index % 2} word {index}" for index in range(12)) + "\n")
    (tmp_path / "task.yaml").write_text("template: cr\ndata: rows.all\n")
    rows = [{"document": SENTENCE.format(number, number), "summary": f"City {number}."} for number in range(12)]
    (tmp_path / "towns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_no_part_is_computed_twice(folder, monkeypatch, name):
    module, leaf, count, fields = MEASUREMENTS[name]
    compute, computed = getattr(module, leaf), []

    def counted(*given, **named):
        computed.append(1)
        return compute(*given, **named)

    monkeypatch.setattr(module, leaf, counted)
    asked = settings_of(name, name="model", **fields)
    told = []
    whole = evaluate(asked, folder / "whole", report=lambda *counts: told.append(counts))
    assert len(computed) == len(told) == count
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]

    def stop(done, total):
        if len(computed) == 2:
            raise KeyboardInterrupt

    computed.clear()
    with pytest.raises(KeyboardInterrupt):
        evaluate(asked, folder / "out", report=stop)
    computed.clear()
    with (folder / "out" / JOURNAL).open("ab") as file:
        file.write(b'{"key": "cut off by a ki')
    again = evaluate(asked, folder / "out", resume=True)
    assert len(computed) == count - 2
    assert again.values == whole.values
