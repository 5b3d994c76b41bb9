"""Kim's convolutional classifier: against windows cut by hand, and its bound on the classes' weights."""

import pytest
import torch

import antiphase
from antiphase.lab.lineage.models.convolution import ConvolutionForSequenceClassification, ConvolutionModel

SIZES = {"vocab_size": 23, "embedding_size": 6, "num_filters": 5}


def by_hand(model, ids):
    """Maxima of one text without padding: every window with a token of it, zeros beyond its ends."""
    vectors, maxima = model.embed_tokens(ids), []
    for convolution, width in zip(model.filters, model.config.filter_widths, strict=True):
        beyond = torch.zeros(width - 1, 6, dtype=vectors.dtype)
        text = torch.cat([beyond, vectors, beyond])
        windows = torch.stack([text[start : start + width] for start in range(len(ids) + width - 1)])
        scores = torch.einsum("wkc,fck->wf", windows, convolution.weight) + convolution.bias
        maxima.append(scores.clamp(min=0).max(0).values)
    return torch.cat(maxima)


@pytest.mark.parametrize("widths", [[3, 4, 5], [1], [2, 7]])
def test_maxima_are_those_of_windows_cut_by_hand(widths):
    """Biases are positive, so that a window of padding alone would often win."""
    model = ConvolutionModel(antiphase.ConvolutionConfig(filter_widths=widths, **SIZES)).double().eval()
    for convolution in model.filters:
        torch.nn.init.uniform_(convolution.bias, 0.0, 3.0)
        torch.nn.init.normal_(convolution.weight)
    rows = [torch.randint(0, 23, (length,)) for length in (1, 2, 9, 4)]
    ids, mask = torch.randint(0, 23, (4, 15)), torch.zeros(4, 15, dtype=torch.int64)
    for index, row in enumerate(rows):
        start = (0, 13, 3, 11)[index]
        ids[index, start : start + len(row)], mask[index, start : start + len(row)] = row, 1
    found = model(ids, attention_mask=mask).pooler_output
    assert found.shape == (4, 5 * len(widths))
    for row, maxima in zip(rows, found, strict=True):
        torch.testing.assert_close(maxima, by_hand(model, row), rtol=1e-12, atol=1e-12)


def test_the_defaults_are_the_papers():
    config = antiphase.ConvolutionConfig(vocab_size=50)
    assert (config.filter_widths, config.num_filters) == ([3, 4, 5], 100)
    assert (config.embedding_size, config.dropout, config.max_norm) == (300, 0.5, 3.0)
    model = ConvolutionForSequenceClassification(config)
    assert model.num_parameters() == 50 * 300 + 300 * 100 * (3 + 4 + 5) + 300 + 300 * 2 + 2


def test_a_long_weight_vector_of_a_class_counts_as_one_of_the_greatest_length():
    config = antiphase.ConvolutionConfig(max_norm=2.0, **SIZES)
    model = ConvolutionForSequenceClassification(config).eval()
    ids = torch.randint(0, 23, (3, 8))
    with torch.no_grad():
        pooled = model.model(ids).pooler_output
        direction = torch.nn.functional.normalize(torch.randn(2, 15), dim=1)
        model.classifier.weight.copy_(direction * torch.tensor([[7.0], [0.5]]))
        expected = pooled @ (direction * torch.tensor([[2.0], [0.5]])).T
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-6)
        model.config.max_norm = None
        torch.testing.assert_close(model(ids).logits, pooled @ model.classifier.weight.T)
