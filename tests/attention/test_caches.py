"""A cache is taken by both of its names in transformers, whichever is installed."""

import inspect

import pytest
import torch
from transformers import DynamicCache

from antiphase.attention import caches


def test_a_forward_pass_takes_the_newer_name_where_transformers_gives_it(monkeypatch):
    def forward(ids, past_key_values=None, **kwargs):
        return ids, past_key_values, kwargs

    monkeypatch.setattr(caches, "CACHE", "past_key_values")
    assert caches.by_either_name(forward) is forward  # there it is the cache of continuous batching
    monkeypatch.setattr(caches, "CACHE", "cache")
    named = caches.by_either_name(forward)
    assert named(1, cache=2, more=3) == named(1, past_key_values=2, more=3) == (1, 2, {"more": 3})
    assert named(1, cache=None) == (1, None, {})
    with pytest.raises(ValueError, match="two names of one argument"):
        named(1, cache=2, past_key_values=3)
    assert list(inspect.signature(named).parameters) == ["ids", "past_key_values", "cache", "kwargs"]
    assert caches.cache_in({"cache": 4}) == caches.cache_in({"past_key_values": 4}) == 4
    assert caches.cache_in({"cache": None, "input_ids": 1}) is None


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2"])
def test_models_read_no_token_twice(tiny_model, kind):
    """Generation would be right, and slow, if a model ignored the cache that it is given."""
    model, read = tiny_model(kind).eval(), []
    model.model.embed_tokens.register_forward_pre_hook(lambda module, args: read.append(args[0].shape[1]))
    ids = torch.randint(3, 61, (2, 9))
    model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert read == [9, 1, 1, 1]
    for name in {caches.CACHE, "past_key_values"}:
        cache = DynamicCache()
        out = model(ids, **{name: cache})
        assert cache.get_seq_length() == 9
        assert caches.cache_in(out) is cache


def test_a_model_that_knows_only_the_older_name_is_asked_by_it(monkeypatch):
    """It would take the newer one for something else, and read without the tokens before."""

    class Older(torch.nn.Module):
        def forward(self, input_ids, past_key_values=None, **kwargs):
            return input_ids

    class Newer(torch.nn.Module):
        def forward(self, input_ids, cache=None, **kwargs):
            return input_ids

    monkeypatch.setattr(caches, "CACHE", "cache")
    assert (caches.cache_name(Older()), caches.cache_name(Newer())) == ("past_key_values", "cache")
