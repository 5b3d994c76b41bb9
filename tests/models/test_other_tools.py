"""What other libraries do with models of transformers works with these, or is refused at once with the reason."""

import accelerate
import peft
import pytest
import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    DynamicCache,
    LlamaConfig,
)

import antiphase
from antiphase.attention.caches import CACHE
from antiphase.lab.lineage.models.sequence_to_sequence import SequenceToSequenceForConditionalGeneration
from antiphase.models import lengths
from support.models import ids_of, randomize

KINDS = ["softmax", "differential", "differential_v2"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def inside():
    """A small Llama with differential attention, in fp64."""
    plain = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    return randomize(AutoModelForCausalLM.from_config(antiphase.differential_config(plain))).double()


@every_kind
def test_packed_texts_may_be_longer_together_than_one_may_be(tiny_model, kind, monkeypatch):
    warnings = []
    monkeypatch.setattr(lengths.logger, "warning_once", warnings.append)
    model = tiny_model(kind, max_position_embeddings=16).double()
    rows = [ids_of(16), ids_of(5), ids_of(11)]
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    found = model(torch.cat(rows)[None], position_ids=positions, use_cache=False).logits[0]
    torch.testing.assert_close(found, torch.cat([model(row[None]).logits[0] for row in rows]), rtol=1e-9, atol=1e-9)
    assert warnings == []
    model(ids_of(1, 17), position_ids=torch.arange(17)[None])
    assert len(warnings) == 1


@every_kind
def test_harmless_arguments_change_nothing_and_others_are_refused_by_name(tiny_model, kind):
    model, ids = tiny_model(kind), ids_of(1, 6)
    expected = model(ids).logits
    ends = torch.tensor([0, 6], dtype=torch.int32)
    positions = torch.arange(6)[None]
    found = model(
        ids, position_ids=positions, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=6, max_length_k=6,
        seq_idx=torch.zeros(1, 6, dtype=torch.int32), token_type_ids=torch.zeros_like(ids),
    ).logits  # fmt: skip
    assert torch.equal(found, expected)
    for name in ("cu_seq_lens_q", "seq_idx"):
        with pytest.raises(ValueError, match=f"{name} needs position_ids"):
            model(ids, **{name: ends})


def packed(*lengths):
    """Positions and ends of texts in one row."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    return positions, {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}


@pytest.mark.parametrize("implementation", ["antiphase", "sdpa", "eager"])
@every_kind
def test_packed_texts_that_nothing_separates_are_refused(tiny_model, kind, implementation):
    model, ids = tiny_model(kind), ids_of(1, 9)
    model.set_attn_implementation(implementation)
    positions, ends = packed(4, 5)
    numbers = {"seq_idx": torch.tensor([[0] * 4 + [1] * 5])}
    separated = model(ids, position_ids=positions, **ends).logits
    assert torch.equal(model(ids, position_ids=positions, **numbers).logits, separated)
    for given in (ends, numbers):
        with pytest.raises(ValueError, match="do not start again at 0"):
            model(ids, position_ids=torch.arange(9)[None], **given)
        with pytest.raises(ValueError, match="cannot be combined with attention_mask"):
            model(ids, position_ids=positions, attention_mask=torch.ones_like(ids), **given)
        with pytest.raises(ValueError, match="cannot be combined with past_key_values"):
            model(ids, position_ids=positions, past_key_values=DynamicCache(config=model.config), **given)
    _, one = packed(9)
    alone = model(ids, position_ids=torch.arange(9)[None], attention_mask=torch.ones_like(ids), **one).logits
    torch.testing.assert_close(alone, model(ids).logits)


@pytest.mark.parametrize("implementation", ["antiphase_inside", "sdpa", "eager"])
def test_other_architectures_refuse_packed_texts_that_nothing_separates(inside, implementation):
    inside.set_attn_implementation(implementation)
    ids, (positions, ends) = ids_of(1, 9), packed(4, 5)
    found = inside(ids, position_ids=positions, use_cache=False, **ends).logits
    expected = torch.cat([inside(part).logits for part in (ids[:, :4], ids[:, 4:])], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for wrong in ({}, {"use_cache": False, "attention_mask": torch.ones_like(ids)}):
        with pytest.raises(ValueError, match="which the mask does not separate"):
            inside(ids, position_ids=positions, **ends, **wrong)


@pytest.mark.parametrize("implementation", ["antiphase", "sdpa", "eager"])
@every_kind
def test_unknown_arguments_are_refused_under_every_implementation(tiny_model, kind, implementation):
    model, ids = tiny_model(kind), ids_of(1, 6)
    model.set_attn_implementation(implementation)
    for name in ("softcap", "position_bias", "invented"):
        with pytest.raises(ValueError, match=name):
            model(ids, **{name: torch.ones(1)})


@pytest.mark.parametrize("kind", [*KINDS, "inside"])
def test_weights_that_are_not_given_cost_a_warning(tiny_model, inside, kind):
    model, ids = inside if kind == "inside" else tiny_model(kind), ids_of(1, 6)
    with pytest.warns(UserWarning, match=r'call set_attn_implementation\("eager"\) first'):
        assert not model(ids, output_attentions=True).attentions
    model.set_attn_implementation("eager")
    assert all(weights.shape[-2:] == (6, 6) for weights in model(ids, output_attentions=True).attentions)


@every_kind
def test_shifted_labels_alone_give_the_loss(tiny_model, kind):
    model, ids = tiny_model(kind), ids_of(2, 6)
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, model(ids, labels=ids).loss)


def test_portable_is_refused_by_models_without_such_a_form(inside, tmp_path):
    pair = antiphase.SequenceToSequenceConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    for model in (inside, SequenceToSequenceForConditionalGeneration(pair)):
        with pytest.raises(ValueError, match="portable=True is only for AntiphaseForCausalLM"):
            model.save_pretrained(tmp_path / "portable", portable=True)
        model.save_pretrained(tmp_path / type(model).__name__)


def test_fields_given_at_loading_are_checked_like_those_of_the_file(tiny_model, tmp_path):
    model = tiny_model("differential", num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    smaller = AutoModelForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1).eval()
    assert len(smaller.model.layers) == len(smaller.config.layer_types) == 1
    assert torch.equal(smaller.model.layers[0].mlp.down_proj.weight, model.model.layers[0].mlp.down_proj.weight)
    for name, value in (("attention_type", "softmx"), ("num_attention_heads", 5), ("num_hidden_layers", "two")):
        with pytest.raises(ValueError, match=name):
            AutoModelForCausalLM.from_pretrained(tmp_path, **{name: value})


def test_v1_runs_only_under_functions_that_know_lambda(tiny_model):
    def ordinary(module, query, key, value, attention_mask, **kwargs):
        raise AssertionError("called")

    def knows(module, query, key, value, attention_mask, *, lam, **kwargs):
        heads = query.shape[1] // 2
        return query.new_zeros(len(query), query.shape[2], heads, 2 * query.shape[3]), None

    AttentionInterface.register("others", ordinary)
    AttentionInterface.register("others_with_lam", knows)
    model, ids = tiny_model("differential"), ids_of(1, 6)
    with pytest.raises(ValueError, match="'others', which has no parameter lam"):
        model.set_attn_implementation("others")
    model.config._attn_implementation = "others"
    with pytest.raises(ValueError, match="'others', which has no parameter lam"):
        model(ids)
    model.set_attn_implementation("others_with_lam")
    assert model(ids).logits.isfinite().all()


@pytest.mark.parametrize("kind", [*KINDS, "inside"])
def test_generate_batch_is_refused_at_once_where_it_would_give_nothing(tiny_model, inside, kind):
    model = inside if kind == "inside" else tiny_model(kind)
    reason = (
        "use generate"
        if kind in ("differential", "inside") or CACHE == "cache"
        else r"set_attn_implementation\(\"sdpa\"\) first"
    )
    with pytest.raises(ValueError, match=reason):
        model.generate_batch([[3, 4, 5]], max_new_tokens=2)


def test_differential_llama_gives_its_weights_under_eager(inside):
    ids, mask = ids_of(2, 7), torch.ones(2, 7, dtype=torch.int64)
    mask[1, :3] = 0
    expected = inside(ids, attention_mask=mask).logits[mask.bool()]
    for name in ("eager", "sdpa"):
        inside.set_attn_implementation(name)
        found = inside(ids, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    inside.set_attn_implementation("eager")
    attentions = inside(ids, output_attentions=True).attentions
    assert [weights.shape for weights in attentions] == [(2, 2, 7, 7)] * 2
    for layer, weights in zip(inside.model.layers, attentions, strict=True):
        rest = 1 - layer.self_attn.differential.lam()
        torch.testing.assert_close(weights.sum(-1), rest.expand(2, 2, 7).to(weights.dtype), rtol=1e-5, atol=1e-5)
    for name in ("flex_attention", "flash_attention_2"):
        with pytest.raises(ValueError, match=f"cannot run with attn_implementation='{name}'"):
            inside.set_attn_implementation(name)


@pytest.mark.parametrize("kind", [*KINDS, "inside"])
def test_weights_that_lie_on_disk_are_loaded_for_each_call(tiny_model, inside, tmp_path, kind):
    model = inside if kind == "inside" else tiny_model(kind).double()
    ids = ids_of(2, 6)
    mask = torch.ones_like(ids)
    settings = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 4, "eos_token_id": None}
    expected, tokens = model(ids).logits, model.generate(ids, **settings)
    accelerate.disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(model.generate(ids, **settings), tokens)


@pytest.mark.parametrize("source", [61, 50])
def test_embeddings_of_a_pair_can_be_resized(source):
    config = antiphase.SequenceToSequenceConfig(
        vocab_size=61, source_vocab_size=source, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = SequenceToSequenceForConditionalGeneration(config).eval()
    text, target = ids_of(2, 5, words=50), ids_of(2, 4)
    before = model(text, decoder_input_ids=target).logits
    model.resize_token_embeddings(70)
    assert model.get_input_embeddings().num_embeddings == model.lm_head.out_features == config.vocab_size == 70
    assert model.model.encoder.embed_tokens.num_embeddings == config.source_vocab_size == (70 if source == 61 else 50)
    after = model(text, decoder_input_ids=target).logits
    torch.testing.assert_close(after[..., :61], before)


@pytest.mark.parametrize("kind", [*KINDS, "inside"])
def test_lora_knows_which_layers_to_adapt(tiny_model, inside, kind):
    model = inside if kind == "inside" else tiny_model(kind)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    layers = {name.split(".lora_A")[0].split(".")[-1] for name, _ in adapted.named_parameters() if ".lora_A" in name}
    assert layers == {"q_proj", "v_proj"}


@every_kind
def test_every_token_can_be_labelled(tiny_model, kind, tmp_path):
    model, ids = tiny_model(kind, kind=antiphase.AntiphaseForTokenClassification, num_labels=5), ids_of(2, 6)
    found = model(ids, labels=ids % 5)
    assert found.logits.shape == (2, 6, 5)
    expected = torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), (ids % 5).flatten())
    torch.testing.assert_close(found.loss, expected)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids).logits, found.logits)
