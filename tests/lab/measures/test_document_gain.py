"""``antiphase evaluate document-gain``: systems of known gain get it, and the other document is really another."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from antiphase.base.errors import InputError, NonFiniteError
from antiphase.base.records import Record
from antiphase.lab.measures.document_gain import DocumentGain
from antiphase.lab.measures.document_gain import measure as module
from antiphase.lab.measures.document_gain.measure import document_gain, other_documents, reference_tokens
from antiphase.lab.measures.hallucination.items import Item
from antiphase.lab.scoring.likelihood import OptionScores
from support.models import save

TOWNS = ["Oban", "Tobermory", "Ullapool", "Stornoway", "Kirkwall", "Lerwick"]


def summaries(count=18):
    return [
        Item(
            "summarization",
            f"row {index}",
            f"It rained{' on and on' * (index % 4)}. The ferry of day {index} to {TOWNS[index % 6]} left.",
            (f"The ferry of day {index} left.",),
        )
        for index in range(count)
    ]


@pytest.fixture
def model(tiny_model, text_tokenizer):
    return tiny_model("softmax", vocab_size=len(text_tokenizer), max_position_embeddings=256)


@pytest.fixture
def scored_by(monkeypatch, model, text_tokenizer):
    """The result for a system with the log-likelihood ``likely(prompt, reference)``."""

    def measured(likely, items, **options):
        def score(_, prompts, references):
            texts = [
                (text_tokenizer.decode(prompt), text_tokenizer.decode(reference).strip())
                for prompt, (reference,) in zip(prompts, references, strict=True)
            ]
            return [OptionScores(torch.tensor([likely(*pair)]), torch.tensor([True])) for pair in texts]

        monkeypatch.setattr(module, "score_options", score)
        return document_gain(model, text_tokenizer, {"towns": items}, samples=len(items), **options).tasks["towns"]

    return measured


def test_systems_of_known_gain(scored_by, text_tokenizer):
    items = summaries()
    length = {item.references[0]: len(reference_tokens(text_tokenizer, item, chat=False)) for item in items}

    def reads(prompt, reference):  # certain where the document says it, 2 nats per token elsewhere, 3 without any
        day = reference.split("day ")[1].split()[0]
        loss = 0.0 if f"day {day} to" in prompt else 2.0 if "ferry" in prompt else 3.0
        return -loss * length[reference]

    found = scored_by(reads, items)
    assert (found.own_loss, found.other_loss, found.no_loss) == (0, 2, 3)
    assert (found.gain, found.above, found.below) == (2, 18, 0)
    assert found.interval == [2, 2]
    ignores = scored_by(lambda prompt, reference: -2.0 * len(reference), items)
    assert (ignores.gain, ignores.above, ignores.below) == (0, 0, 0)
    misled = scored_by(lambda prompt, reference: -2.0 * length[reference] - reads(prompt, reference), items)
    assert (misled.gain, misled.above, misled.below) == (-2, 0, 18)
    by_length = scored_by(lambda prompt, reference: -0.01 * len(prompt), items)  # documents of all lengths, no reading
    assert abs(by_length.gain) < 0.01
    assert found.above_interval[0] > 0.5 > ignores.above_interval[1]


def test_losses_are_those_of_a_whole_forward_pass(model, text_tokenizer):
    items = summaries(10)
    found = document_gain(model, text_tokenizer, {"towns": items}, samples=10, seed=3).tasks["towns"]

    def loss(item, context):
        prompt = text_tokenizer(f"Document: {context}\n\nSummary of the document in one sentence:")["input_ids"]
        whole = [*prompt, *text_tokenizer(f" {item.references[0]}", add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            logits = model(torch.tensor([whole])).logits[0, len(prompt) - 1 : -1]
        return cross_entropy(logits, torch.tensor(whole[len(prompt) :])).item()

    assert found.own_loss == pytest.approx(sum(loss(item, item.context) for item in items) / 10, rel=1e-4)
    assert found.no_loss == pytest.approx(sum(loss(item, "") for item in items) / 10, rel=1e-4)
    again = document_gain(model, text_tokenizer, {"towns": items}, samples=10, seed=3).tasks["towns"]
    assert again == found


def test_the_other_document_is_another_of_nearly_the_same_length():
    lengths = [30, 10, 31, 11, 32, 12]
    items = [Item("question answering", "row", f"text {index // 2}", ("a",), "q") for index in range(6)]
    changed = other_documents("data", items, lengths)
    assert [item.context for item in changed] == ["text 1", "text 1", "text 0", "text 0", "text 1", "text 1"]
    assert all(new.question == old.question for new, old in zip(changed, items, strict=True))
    narrow = other_documents("data", items, lengths, [31, 31, 31, 31, 31, 11])
    assert [item.context for item in narrow] == ["text 1", "text 1", "text 0", "text 0", "text 1", "text 1"]
    narrow = other_documents("data", items, lengths, [10 + 2 * index for index in range(6)][::-1])
    assert [item.context for item in narrow] == ["text 2", "text 1", "text 2", "text 0", "text 1", "text 0"]
    with pytest.raises(InputError, match=r"^row: no other document of data fits beside its question and reference"):
        other_documents("data", items, lengths, [99, 99, 99, 9, 99, 99])
    with pytest.raises(InputError, match="all rows drawn from data have the same document"):
        other_documents("data", items[:2], [1, 1])


def test_documents_longer_than_the_model_reads_are_passed_over(model, text_tokenizer):
    long = [Item("summarization", "row", "It rained. " * 400 + str(index), ("Rain.",)) for index in range(3)]
    found = document_gain(model, text_tokenizer, {"towns": [*summaries(6), *long]}, samples=6).tasks["towns"]
    assert (found.samples, len(found.gains)) == (6, 6)
    with pytest.raises(InputError, match="3 do not fit"):
        document_gain(model, text_tokenizer, {"towns": [*summaries(6), *long]}, samples=7)


@pytest.mark.parametrize("size", [100, 400])
def test_one_row_with_a_long_reference_takes_no_room_from_others(model, text_tokenizer, size):
    long = Item("summarization", "row", "It rained.", ("Rain " * size,))
    found = document_gain(model, text_tokenizer, {"towns": [*summaries(6), long]}, samples=6).tasks["towns"]
    assert found.left_out <= 1
    with pytest.raises(InputError, match="1 do not fit"):
        document_gain(model, text_tokenizer, {"towns": [*summaries(6), long]}, samples=7)


def test_a_model_of_nan_is_refused(scored_by):
    with pytest.raises(NonFiniteError):
        scored_by(lambda prompt, reference: float("nan"), summaries(4))


def test_the_command(antiphase, refused, tmp_path, model, text_tokenizer):
    save(model, text_tokenizer, tmp_path / "model")
    rows = [{"document": item.context, "summary": item.references[0]} for item in summaries()]
    (tmp_path / "towns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    antiphase("evaluate", "document-gain", "model", "--data", "towns.jsonl", "--samples", 12, "--output", "o")
    found = DocumentGain.of(Record.load(tmp_path / "o")).tasks["towns"]
    assert found.samples == 12
    assert found.gain == pytest.approx(found.other_loss - found.own_loss)
    antiphase("report", "o", "--output", "page.html")
    assert "Gain from the own document" in (tmp_path / "page.html").read_text()
    refused("--samples 30 is more than the 18 rows of towns", ["evaluate", "document-gain", "model", "--data",
            "towns.jsonl", "--samples", "30", "--output", "p"])  # fmt: skip
    refused("no chat template", ["evaluate", "document-gain", "model", "--data", "towns.jsonl", "--chat-template",
            "--output", "p"])  # fmt: skip
