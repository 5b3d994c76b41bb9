"""What vLLM's transformers backend does with a model, without vLLM.

It sets the attention implementation "vllm", whose function writes keys and values into vLLM's own cache; calls the base
model with the tokens of all texts in one row and their positions; and expects (tokens, maps · width) from the function
(vllm/model_executor/models/transformers/base.py).
"""

import pytest
import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase import AntiphaseForCausalLM


class PagedAttention:
    """Attention of one layer with a cache of its own; ``texts`` says to which text each token of a row belongs."""

    def __init__(self, texts, keys):
        self.texts, self.keys, self.scale = texts, keys, None
        self.cache = {}

    def forward(self, query, key, value, width):
        query, key, value = (x.unflatten(-1, (-1, width)) for x in (query, key, value))  # (tokens, maps, d)
        assert key.shape[1] == self.keys
        out = torch.empty_like(query)
        for text in dict.fromkeys(self.texts):
            own = torch.tensor([one == text for one in self.texts])
            earlier = self.cache.get(text, (key[:0], value[:0]))
            keys, values = (torch.cat([old, new[own]]) for old, new in zip(earlier, (key, value), strict=True))
            self.cache[text] = keys, values
            group = query.shape[1] // self.keys
            scores = torch.einsum("nhd,mhd->hnm", query[own], keys.repeat_interleave(group, 1)) * self.scale
            hidden = torch.ones_like(scores, dtype=torch.bool).triu(len(keys) - int(own.sum()) + 1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out[own] = torch.einsum("hnm,mhd->nhd", weights, values.repeat_interleave(group, 1))
        return out.flatten(1)


def vllm_attention(module, query, key, value, attention_mask, scaling=None, attention_instances=None, **kwargs):
    """As vLLM's: two-dimensional inputs and outputs."""
    assert attention_mask is None
    own = attention_instances[module.layer_idx]
    own.scale = scaling
    tokens, width = query.shape[-2], query.shape[-1]
    query, key, value = (x.transpose(1, 2).reshape(tokens, -1) for x in (query, key, value))
    return own.forward(query, key, value, width), None


class Missing(nn.Identity):
    """In the place of what another process of the pipeline has."""

    def forward(self, *args, **kwargs):
        return args[0] if args else next(iter(kwargs.values()))


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "vllm", vllm_attention)

    def build(model, stages=1):
        """The base models of the stages, as vLLM divides them."""
        found = []
        for stage in range(stages):
            config = type(model.config).from_dict(model.config.to_dict())
            config._attn_implementation = "vllm"
            base = AutoModel.from_config(config, dtype=model.dtype).eval()
            base.load_state_dict(model.model.state_dict())
            if stages > 1:
                assert base.supports_pp_plan
                first, layers, last = base._pp_plan
                if stage > 0:
                    setattr(base, first, Missing())
                if stage < stages - 1:
                    setattr(base, last, Missing())
                own = len(getattr(base, layers)) // stages
                for index in range(len(base.layers)):
                    if index // own != stage:
                        getattr(base, layers)[index] = Missing()
            found.append(base)
        return found

    return build


def flat(bases, instances, ids, positions):
    """One call: the tokens of all texts in a row, through all stages of the pipeline."""
    given = {"input_ids": ids[None]}
    for base in bases:
        hidden = base(
            **given, use_cache=False, position_ids=positions[None], attention_instances=instances, return_dict=False
        )[0][0]
        given = {"inputs_embeds": hidden[None]}
    return hidden


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("attention_type", ["softmax", "differential_v2"])
@torch.no_grad()
def test_texts_of_different_lengths_and_a_decoding_step(tiny_model, backend, attention_type, stages):
    model = tiny_model(
        attention_type, kind=AntiphaseForCausalLM, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=2,
        max_position_embeddings=16,
    ).double()  # fmt: skip
    lengths = (9, 13)  # together more than the positions of the model
    texts = [torch.randint(3, model.config.vocab_size, (1, length + 1)) for length in lengths]
    expected = [model.model(text).last_hidden_state[0] for text in texts]
    bases = backend(model, stages)
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    instances = {index: PagedAttention(numbers, model.config.num_key_value_heads) for index in range(2)}
    positions = torch.cat([torch.arange(length) for length in lengths])
    found = flat(bases, instances, torch.cat([text[0, :-1] for text in texts]), positions)
    torch.testing.assert_close(found, torch.cat([one[:-1] for one in expected]), atol=1e-10, rtol=0)
    for one in instances.values():
        one.texts = [0, 1]
    found = flat(bases, instances, torch.cat([text[0, -1:] for text in texts]), torch.tensor(lengths))
    torch.testing.assert_close(found, torch.stack([one[-1] for one in expected]), atol=1e-10, rtol=0)


def test_multiplied_embeddings_have_no_pipeline(tiny_model):
    """A later stage would multiply what it gets from the one before."""
    assert not tiny_model("softmax", embedding_multiplier=2.0).supports_pp_plan
    assert tiny_model("softmax").supports_pp_plan


def test_v1_is_refused_before_its_values_are_mixed_up(tiny_model, backend):
    model = tiny_model("differential", kind=AntiphaseForCausalLM)
    with pytest.raises(ValueError, match="vllm"):
        flat(backend(model), {}, torch.tensor([3, 4]), torch.arange(2))
