"""Scores of classifiers whose answers are known."""

import math

import pytest
import torch

from antiphase.lab.lineage.data.text_batches import EncodedTexts
from antiphase.lab.lineage.scoring import classification
from antiphase.lab.lineage.scoring.classification import (
    class_probabilities,
    classification_scores,
    confusion_matrix,
    development_scores,
    label_f1,
)


def test_scores_by_hand():
    predicted, targets = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 0])
    confusion = confusion_matrix(predicted, targets, 3)
    assert confusion.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]
    found = classification_scores(confusion)
    assert (found.samples, found.correct, found.accuracy) == (5, 3, 0.6)
    assert label_f1(confusion) == [pytest.approx(1 / 2), pytest.approx(2 / 3), None]
    assert found.macro_f1 == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_a_label_that_is_never_right_counts_as_zero():
    confusion = confusion_matrix(torch.tensor([0, 2]), torch.tensor([0, 0]), 3)
    assert label_f1(confusion) == [pytest.approx(2 / 3), None, 0.0]
    assert classification_scores(confusion).macro_f1 == pytest.approx(1 / 3)


def test_nothing_to_score():
    found = classification_scores(torch.zeros(2, 2).long())
    assert found.accuracy is None
    assert found.macro_f1 is None


def test_the_development_loss_is_that_of_the_right_labels(monkeypatch):
    """A label with probability 0 costs what the smallest probability costs, not infinity."""
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    monkeypatch.setattr(classification, "class_probabilities", lambda model, texts: shares)
    found = development_scores(None, None, torch.tensor([0, 2, 1]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(-(math.log(0.5) + math.log(0.7) + math.log(1e-30)) / 3, rel=1e-5)


@pytest.mark.parametrize("kind", ["convolution", "recurrent", "differential"])
def test_probabilities_do_not_depend_on_the_batch(kind, monkeypatch):
    """Each text's row is what the model says of that text alone, in the order given, empty texts too."""
    import antiphase
    from antiphase.lab.lineage.models.convolution import ConvolutionForSequenceClassification
    from antiphase.lab.lineage.models.recurrent import RecurrentForSequenceClassification
    from antiphase.lab.lineage.models.vanilla import VanillaForSequenceClassification

    words = {"vocab_size": 17, "pad_token_id": 0, "num_labels": 3}
    model = {
        "convolution": lambda: ConvolutionForSequenceClassification(
            antiphase.ConvolutionConfig(embedding_size=5, num_filters=4, **words)
        ),
        "recurrent": lambda: RecurrentForSequenceClassification(
            antiphase.RecurrentConfig(embedding_size=5, hidden_size=6, bidirectional=True, **words)
        ),
        "differential": lambda: VanillaForSequenceClassification(
            antiphase.VanillaConfig(hidden_size=8, num_hidden_layers=1, attention_type="differential", **words)
        ),
    }[kind]()
    texts = EncodedTexts([[3, 4, 5, 6, 7, 8, 9], [], [3], [16, 2, 1], [5, 5]], 0)
    monkeypatch.setattr(classification, "TOKENS", 9)
    model.train()
    found = class_probabilities(model, texts)
    assert model.training
    model.eval()
    for row, ids in enumerate(texts.ids):
        ids_, mask = EncodedTexts([ids], 0).batch([0])
        with torch.no_grad():
            alone = model(input_ids=ids_, attention_mask=mask).logits.softmax(-1)[0]
        torch.testing.assert_close(found[row], alone, rtol=0, atol=1e-6)
