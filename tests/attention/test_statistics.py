"""Statistics of whole models against the maps that their own eager attention returns."""

import copy
import weakref

import pytest
import torch
import transformers as hf

import antiphase
from antiphase.attention import statistics
from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError

LAYERS, MAPS, N = 3, 4, 33
SIZES = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": MAPS,
    "intermediate_size": 48, "max_position_embeddings": 128,
}  # fmt: skip
CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**SIZES, num_key_value_heads=2),
    "mistral": lambda: hf.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=11),
    "qwen2": lambda: hf.Qwen2Config(**SIZES, num_key_value_heads=4),
    "gpt2": lambda: hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=LAYERS, n_head=MAPS, n_positions=128),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SIZES),
    "gemma": lambda: hf.GemmaConfig(**SIZES, num_key_value_heads=2, head_dim=8),
    "bert": lambda: hf.BertConfig(**SIZES),
    "roberta": lambda: hf.RobertaConfig(**SIZES),
    "layoutlm": lambda: hf.LayoutLMConfig(**SIZES),  # its layers say neither their number nor their direction
    "esm": lambda: hf.EsmConfig(**SIZES, pad_token_id=0, mask_token_id=2),  # its layers' number is None
    "diffllama": lambda: hf.DiffLlamaConfig(**SIZES, num_key_value_heads=2),
    "softmax": lambda: antiphase.AntiphaseConfig(**SIZES, attention_type="softmax", num_key_value_heads=2),
}

ENCODERS = ("bert", "roberta", "layoutlm", "esm")


def build(config):
    torch.manual_seed(4)
    model = hf.AutoModel.from_config(config).double().eval()
    with torch.no_grad():  # attention that is far from uniform
        for field, weight in model.named_parameters():
            is_sharp = field.endswith(("query.weight", "key.weight"))  # norms before them make up for the others
            weight *= 1 if weight.dim() == 1 else 16 if is_sharp else 4
    return model


def inputs_of(side):
    ids = torch.randint(3, 61, (2, N), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if side == "left":
        mask[1, :9] = 0
    if side == "right":
        mask[1, -9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", list(CONFIGS))
@torch.no_grad()
def test_statistics_are_those_of_the_maps_that_the_model_returns(name, side):
    model = build(CONFIGS[name]())
    inputs = inputs_of(side)
    real = inputs["attention_mask"].bool()
    span = torch.zeros_like(real)
    span[:, 12:20] = True
    found = attention_statistics(model, spans={"middle": span}, alpha=2.0, **inputs)

    eager = copy.deepcopy(model).float()  # its softmax is fp32, where the mask of fp64 would be -inf
    eager.set_attn_implementation("eager")
    maps = torch.stack(
        eager(**inputs, use_cache=False, output_attentions=True).attentions
    ).double()  # (layers, B, maps, N, N)
    counted = maps.where(real[None, :, None, :, None], 0.0)
    distance = torch.arange(N)[:, None] - torch.arange(N)
    positions = torch.ones(N, N, dtype=torch.bool) if name in ENCODERS else distance >= 0
    positions = positions & (distance < 11) if name == "mistral" else positions
    visible = positions & real[:, :, None] & real[:, None]  # (B, N, N)
    queries = visible.sum(1)
    received = counted.sum(-2) / queries[None, :, None]
    seen = (queries > 0)[None, :, None].expand_as(received)
    torch.testing.assert_close(found.received[seen], received[seen], rtol=1e-3, atol=1e-5)
    assert found.received[~seen].isnan().all()
    assert bool((~seen).any()) == (side != "none")
    by_query = visible.sum(-1)
    last = by_query.where(real, 0).amax(1)
    expected = received > 2.0 / last[None, :, None, None]
    first = real.long().argmax(1)
    expected[:, torch.arange(2), :, first] = False
    assert torch.equal(found.sinks, expected & seen)
    assert expected.any()
    count = real.sum(1)[None, :, None]
    mass = counted.sum(-2) / count.unsqueeze(-1)
    torch.testing.assert_close(found.sink_share, (mass * found.sinks).sum(-1), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.span_share["middle"], (mass * span[None, :, None]).sum(-1), rtol=1e-3, atol=1e-5)
    on_first = torch.stack([mass[:, b, :, first[b]] for b in range(2)], dim=1)
    torch.testing.assert_close(found.first_share, on_first, rtol=1e-3, atol=1e-5)
    entropy = torch.special.entr(counted).sum((-1, -2)) / count
    torch.testing.assert_close(found.entropy, entropy, rtol=1e-3, atol=1e-5)
    assert torch.equal(found.enough_queries[0], queries >= last[:, None] / 2.0)
    others = real & (torch.arange(N) != first[:, None])
    alone = 1 / queries > 2.0 / last[:, None]
    torch.testing.assert_close(found.null_local[0], (alone & others).sum(-1) / real.sum(-1))
    spread = ((visible & real[:, :, None]) / by_query.clamp(min=1)[:, :, None]).sum(1) / queries
    torch.testing.assert_close(
        found.null_uniform[0], (spread > 2.0 / last[:, None]).logical_and(others).sum(-1) / real.sum(-1)
    )
    assert found.layers == list(range(LAYERS))


@torch.no_grad()
def test_no_call_is_kept_for_longer_than_its_layer(monkeypatch):
    model, alive, seen = build(CONFIGS["llama"]()), [], []
    look = statistics._Probe.__call__

    def counted(self, call, heads, weights):
        look(self, call, heads, weights)
        seen.append(weakref.ref(call.query))
        alive.append(sum(one() is not None for one in seen))

    monkeypatch.setattr(statistics._Probe, "__call__", counted)
    attention_statistics(model, **inputs_of("none"))
    assert alive == [1, 1, 1]


@torch.no_grad()
def test_what_is_kept_of_layers_lies_in_one_storage(monkeypatch):
    model, storages = build(CONFIGS["llama"]()), []
    look = statistics._Probe.__call__

    def counted(self, call, heads, weights):
        look(self, call, heads, weights)
        storages.append({name: rows.storage.data_ptr() for name, rows in self.rows.items()})

    monkeypatch.setattr(statistics._Probe, "__call__", counted)
    attention_statistics(model, **inputs_of("none"))
    assert storages == [storages[0]] * LAYERS
    assert len(storages[0]) == 10


def test_rows_grow_and_have_one_shape():
    rows = statistics._Rows(1, "llama")
    for value in range(5):
        rows.append(torch.full((2, 3), float(value)))
    assert torch.equal(rows.all(), torch.arange(5.0)[:, None, None].expand(5, 2, 3))
    with pytest.raises(ValueError, match="different numbers of heads"):
        rows.append(torch.zeros(2, 4))


@torch.no_grad()
def test_the_model_is_as_before_also_after_an_error():
    model = build(CONFIGS["llama"]())
    ids = inputs_of("none")["input_ids"]
    before = model(ids).last_hidden_state
    attention_statistics(model, input_ids=ids)
    with pytest.raises(Exception, match="index out of range"):
        attention_statistics(model, input_ids=ids + 1000)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).last_hidden_state, before)


def test_a_model_in_training_is_measured_without_dropout_and_every_part_is_in_its_mode_again():
    model = build(CONFIGS["llama"]())
    for layer in model.layers:
        layer.self_attn.attention_dropout = 0.5
    expected = attention_statistics(model, **inputs_of("none"))
    model.train()
    model.layers[0].eval()  # frozen
    found = attention_statistics(model, **inputs_of("none"))
    torch.testing.assert_close(found.received, expected.received, rtol=0, atol=0)
    assert [layer.training for layer in model.layers] == [False, True, True]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "must be tensors"), ({"input_ids": [[1, 2]]}, "must be tensors"),
        ({"input_ids": torch.ones(4, dtype=torch.int64)}, "must be tensors"),
        ({"input_ids": torch.ones(1, 0, dtype=torch.int64)}, "at least one token"),
        ({"input_ids": [[1, 2]], "attention_mask": torch.ones(1, 2)}, 'return_tensors="pt"'),
        ({**inputs_of("none"), "labels": torch.ones(2, N)}, "no labels"),
    ],
)  # fmt: skip
def test_inputs_that_are_no_batch_of_tokens_are_refused(inputs, said):
    with pytest.raises(ValueError, match=said):
        attention_statistics(build(CONFIGS["llama"]()), **inputs)


def test_unsuitable_models_are_refused_by_name():
    ids = inputs_of("none")["input_ids"]
    small_t5 = hf.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(
        InputError, match=r"attention of models of type t5 cannot be measured .* measure model.get_encoder"
    ):
        attention_statistics(hf.AutoModel.from_config(small_t5), input_ids=ids, decoder_input_ids=ids)
    model = build(CONFIGS["llama"]())
    with pytest.raises(ValueError, match="alpha must be above 0"):
        attention_statistics(model, alpha=0.0, input_ids=ids)
    with pytest.raises(ValueError, match="span answer must be bool"):
        attention_statistics(model, spans={"answer": torch.ones(2, N)}, input_ids=ids)


def test_persistence_counts_positions_that_stay():
    found = attention_statistics(build(CONFIGS["llama"]()), alpha=1.5, **inputs_of("none"))
    stays, before, chance = found.persistence_counts()
    by_layer = (found.sinks & found.enough_queries[:, :, None]).any(2)
    expected = sum(
        int(by_layer[layer, b, j] and by_layer[layer + 1, b, j])
        for layer in range(LAYERS - 1) for b in range(2) for j in range(N)
    )  # fmt: skip
    assert stays == expected
    assert before == int(by_layer[:-1].sum())
    assert 0 < chance < before


@pytest.mark.parametrize("name", ["llama", "softmax", "diffllama"])
def test_they_print_as_a_table_of_means_and_say_what_comes_next(name):
    found = attention_statistics(build(CONFIGS[name]()), alpha=1.5, **inputs_of("left"))
    (table,) = found.tables()
    sinks = (found.sinks & found.enough_queries[:, :, None]).sum(-1).double()
    assert sinks.any()
    shown = {"On the first token": found.first_share, "Sinks a map": sinks}
    shown |= {"On sinks": found.sink_share, "Entropy, nats": found.entropy}
    shown |= {"Negative": found.differences.negative_share} if name == "diffllama" else {}
    for index, row in enumerate(table.frame().to_dict("records")):
        assert row == pytest.approx({"Layer": index, **{key: float(part[index].mean()) for key, part in shown.items()}})
    assert "tensor" not in f"{found}{found!r}{found.differences}"
    assert str(found).startswith("Attention by layer\n\n| Layer | On the first token |")
    assert "antiphase.look(model, tokenizer, text)" in str(found).replace("\n", " ")
