"""Where dropout acts: at each place alone, with all others off."""

import pytest
import torch

import antiphase
from antiphase.lab.lineage.models.convolution import ConvolutionForSequenceClassification
from antiphase.lab.lineage.models.recurrent import (
    RecurrentForCausalLM,
    RecurrentForSequenceClassification,
    RecurrentModel,
)
from antiphase.lab.lineage.models.vanilla import VanillaModel

IDS = torch.randint(1, 31, (3, 7), generator=torch.Generator().manual_seed(0))


def is_random(model, at, **fields):
    """Whether two calls differ with ``at`` alone in training mode."""
    model.eval()
    at.train()
    found = [model(IDS, **fields)[0] for _ in range(2)]
    assert torch.isfinite(found[0]).all()
    return not torch.equal(*found)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_recurrent_networks_drop_embeddings_between_layers_and_before_the_head(cell):
    for layers in (1, 2):
        model = RecurrentModel(
            antiphase.RecurrentConfig(vocab_size=31, hidden_size=16, cell=cell, num_hidden_layers=layers, dropout=0.5)
        )
        assert is_random(model, model.dropout)
        assert is_random(model, model.network) == (layers == 2)
    for kind in (RecurrentForCausalLM, RecurrentForSequenceClassification):
        whole = kind(antiphase.RecurrentConfig(vocab_size=31, hidden_size=16, cell=cell, dropout=0.5))
        assert is_random(whole, whole.dropout)


def test_the_convolutional_classifier_drops_before_the_classifier_alone():
    model = ConvolutionForSequenceClassification(antiphase.ConvolutionConfig(vocab_size=31, embedding_size=8))
    assert is_random(model, model.dropout)
    assert not is_random(model, model.model)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_transformers_drop_sums_with_positions_and_the_output_of_each_sublayer(place):
    config = antiphase.VanillaConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=1, norm_position=place, dropout=0.5
    )
    model = VanillaModel(config)
    (layer,) = model.layers
    assert is_random(model, model.dropout)
    assert not is_random(model, layer.self_attn)
    assert not is_random(model, layer.mlp)
    for silent in (layer.self_attn.o_proj, layer.mlp.down_proj):  # what is zero cannot be dropped, so the other one is
        with torch.no_grad():
            kept = [parameter.clone() for parameter in silent.parameters()]
            for parameter in silent.parameters():
                parameter.zero_()
        assert is_random(model, layer.dropout)
        with torch.no_grad():
            for parameter, value in zip(silent.parameters(), kept, strict=True):
                parameter.copy_(value)
