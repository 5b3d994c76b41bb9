"""The decoder: fair pairs, caches, padding, masks, losses, saving, and everything transformers expects of a model."""

import copy

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, DynamicCache, StaticCache

import antiphase
from antiphase.base.errors import InputError
from antiphase.models import lengths
from antiphase.models.initialization import initialize
from support.models import assert_near, ids_of, padded

KINDS = ["softmax", "differential"]
"""The fair pair."""
IMPLEMENTATIONS = ["antiphase", "eager", "sdpa"]

every_kind = pytest.mark.parametrize("kind", [*KINDS, "differential_v2"])
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


ROUNDED = 5e-5
"""Bound where transformers computes in fp32: losses, and rotary angles once a shift changes the positions."""


# ------------------------------------------------------------------------------------------ the fair pair


@pytest.mark.parametrize("key_maps", [8, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_the_kinds_differ_by_lambda_vectors_and_head_norms_only(tiny_config, key_maps, tied):
    softmax, differential = (
        antiphase.AntiphaseForCausalLM(tiny_config(kind, num_key_value_heads=key_maps, tie_word_embeddings=tied))
        for kind in KINDS
    )
    shared = {name: parameter.shape for name, parameter in softmax.named_parameters()}
    all_of_them = {name: parameter.shape for name, parameter in differential.named_parameters()}
    assert shared.items() <= all_of_them.items()
    extra = all_of_them.keys() - shared.keys()
    assert {name.rpartition("self_attn.")[2] for name in extra} == {
        "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "head_norm.weight"
    }  # fmt: skip
    layers, width = 3, 6
    assert differential.num_parameters() - softmax.num_parameters() == layers * (4 * width + 2 * width)


@pytest.mark.parametrize("tied", [True, False])
def test_initialize_gives_shared_parameters_equal_values_and_depends_on_the_seed_alone(tiny_config, tied):
    models = {}
    for kind in KINDS:
        for seed in (0, 1):
            model = antiphase.AntiphaseForCausalLM(tiny_config(kind, tie_word_embeddings=tied))
            initialize(model, seed)
            models[kind, seed] = dict(model.named_parameters())
    for name, parameter in models["softmax", 0].items():
        assert torch.equal(parameter, models["differential", 0][name]), name
        if "norm" not in name:
            assert not torch.equal(parameter, models["softmax", 1][name]), name
    again = antiphase.AntiphaseForCausalLM(tiny_config("differential", tie_word_embeddings=tied))
    initialize(again, 0)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, models["differential", 0][name]), name


@pytest.mark.parametrize("how", ["initialize", "transformers"])
def test_initial_values_have_the_spread_of_the_paper(tiny_config, how):
    model = antiphase.AntiphaseForCausalLM(tiny_config(hidden_size=128, num_hidden_layers=6, initializer_range=0.05))
    if how == "initialize":
        initialize(model, 3)
    matrices, vectors = [], []
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif "lambda" in name:
            vectors.append(parameter)
        else:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
            matrices.append(parameter)
    assert torch.cat(vectors).std().item() == pytest.approx(0.1, rel=0.15)
    assert all(vector.dtype == torch.float32 for vector in vectors)


# ------------------------------------------------------------------------------------------ caches


@pytest.mark.grid
@pytest.mark.parametrize("key_maps", [8, 2])
@every_kind
@every_implementation
def test_decoding_with_a_cache_equals_one_forward(tiny_model, kind, key_maps, implementation):
    key_maps = min(key_maps, 4) if kind == "differential_v2" else key_maps  # there, two maps share a key at least
    model = tiny_model(kind, num_key_value_heads=key_maps, attn_implementation=implementation).double()
    ids = ids_of(2, 17)
    expected = model(ids, use_cache=False).logits
    for steps in ([17], [1] * 17, [5, 1, 7, 4], [16, 1], [2, 15]):
        cache, logits = None, []
        for part in ids.split(steps, dim=1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits)
        assert cache.get_seq_length() == 17
        assert_near(torch.cat(logits, dim=1), expected)


@pytest.mark.parametrize("static", [False, True])
@every_kind
@every_implementation
def test_a_window_is_kept_with_every_cache(tiny_model, kind, implementation, static):
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    model = tiny_model(kind, sliding_window=5, layer_types=layers, attn_implementation=implementation).double()
    ids, mask = padded([ids_of(13), ids_of(9)], left=True)
    expected = model(ids, attention_mask=mask, use_cache=False).logits
    cache = StaticCache(model.config, max_cache_len=20) if static else DynamicCache(config=model.config)
    start, logits = 0, []
    for size in (6, 1, 1, 1, 1, 1, 1, 1):
        end = start + size
        seen = torch.cat([mask[:, :end], torch.zeros(2, 20 - end, dtype=mask.dtype)], 1) if static else mask[:, :end]
        out = model(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        logits.append(out.logits)
        start = end
    assert_near(torch.cat(logits, dim=1)[mask.bool()], expected[mask.bool()], ROUNDED)


# ------------------------------------------------------------------------------------------ padding


@pytest.mark.parametrize("left", [True, False])
@every_kind
@every_implementation
def test_padding_on_either_side_changes_no_real_token(tiny_model, kind, implementation, left):
    model = tiny_model(kind, attn_implementation=implementation).double()
    rows = [ids_of(11), ids_of(4), ids_of(7)]
    ids, mask = padded(rows, left=left)
    logits = model(ids, attention_mask=mask).logits
    assert torch.isfinite(logits).all()
    for index, row in enumerate(rows):
        assert_near(logits[index][mask[index].bool()], model(row[None]).logits[0], ROUNDED)


@every_kind
@every_implementation
def test_padding_gets_no_gradient_from_real_tokens(tiny_model, kind, implementation):
    model = tiny_model(kind, attn_implementation=implementation).double()
    rows = [ids_of(11), ids_of(4)]
    ids, mask = padded(rows, left=True)
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, 7] = -100  # a row's first token would be predicted from padding
    model(ids, attention_mask=mask, labels=labels).loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    losses = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    (sum(losses) / (10 + 3)).backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(found[name]).all(), name
        assert_near(found[name], parameter.grad, ROUNDED)


@every_kind
def test_a_left_padded_batch_generates_what_each_row_generates_alone(tiny_model, kind):
    model = tiny_model(kind).double()
    rows = [ids_of(9), ids_of(3), ids_of(6)]
    ids, mask = padded(rows, left=True)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    together = model.generate(ids, attention_mask=mask, **options)[:, 9:]
    for index, row in enumerate(rows):
        alone = model.generate(row[None], attention_mask=torch.ones(1, len(row), dtype=torch.int64), **options)
        assert torch.equal(together[index], alone[0, len(row) :])


# ------------------------------------------------------------------------------------------ generation


@pytest.mark.parametrize("options", [
    {"do_sample": False}, {"do_sample": True, "temperature": 0.9, "top_k": 0}, {"do_sample": False, "num_beams": 3},
    {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
], ids=["greedy", "sampling", "beam", "beams"])  # fmt: skip
@every_kind
def test_generation_with_a_cache_equals_generation_without(tiny_model, kind, options):
    model = tiny_model(kind).double()
    ids, mask = padded([ids_of(7), ids_of(4)], left=True)
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        found.append(model.generate(ids, attention_mask=mask, use_cache=use_cache, max_new_tokens=9, **options))
    assert found[0].shape == found[1].shape
    assert torch.equal(*found)


# ------------------------------------------------------------------------------------------ training


@every_kind
def test_gradient_checkpointing_changes_no_gradient(tiny_model, kind):
    ids = ids_of(2, 13)
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model(kind).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert_near(gradients[1][name], expected)


@every_kind
def test_training_under_autocast_stays_near_fp32(tiny_model, kind):
    model, ids = tiny_model(kind), ids_of(2, 13)
    expected = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids, labels=ids).loss
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=0.05)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_the_loss_predicts_the_next_token_and_skips_what_is_ignored(tiny_model):
    model, ids = tiny_model().double(), ids_of(2, 12)
    labels = ids.clone()
    labels[0, :5], labels[1, 8] = -100, -100
    out = model(ids, labels=labels)
    each = cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    assert_near(out.loss, each.sum() / (labels[:, 1:] != -100).sum())
    divided = model(ids, labels=labels, num_items_in_batch=40).loss
    assert_near(divided, each.sum() / 40)
    assert_near(model(ids, labels=labels, num_items_in_batch=torch.tensor(40)).loss, divided)


def test_logits_to_keep_and_tuples_are_parts_of_the_same_answer(tiny_model):
    model, ids = tiny_model().double(), ids_of(2, 12)
    full = model(ids).logits
    assert_near(model(ids, logits_to_keep=3).logits, full[:, -3:])
    assert_near(model(ids, logits_to_keep=torch.tensor([0, 7])).logits, full[:, [0, 7]])
    assert_near(model(ids, return_dict=False)[0], full)


# ------------------------------------------------------------------------------------------ saving and loading


@pytest.mark.parametrize("tied", [True, False])
@every_kind
def test_a_saved_model_comes_back_equal(tiny_model, tmp_path, kind, tied):
    model, ids = tiny_model(kind, tie_word_embeddings=tied), ids_of(1, 9)
    model.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert not list(tmp_path.glob("*.bin"))
    loaded, notes = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(notes.values()), notes
    assert type(loaded) is antiphase.AntiphaseForCausalLM
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_implementation_can_be_chosen_while_loading(tiny_model, tmp_path, implementation):
    tiny_model().save_pretrained(tmp_path)
    assert "attn_implementation" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation)
    assert loaded.config._attn_implementation == implementation
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "antiphase"


@every_kind
def test_saving_writes_a_model_card_and_replaces_nobodys_own(tiny_model, tmp_path, kind):
    model = tiny_model(kind).double()
    model.save_pretrained(tmp_path / "new")
    card = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers")
    assert f"{kind} attention" in card
    assert f"- {kind.replace('_', '-')}-attention" in card
    assert f"{model.num_parameters():,} parameters" in card
    own = tmp_path / "own"
    own.mkdir()
    (own / "README.md").write_text("mine")
    model.save_pretrained(own)
    assert (own / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("head", "pipeline"),
    [("ForCausalLM", "text-generation"), ("ForSequenceClassification", "text-classification"),
     ("ForTokenClassification", "token-classification"), ("", "feature-extraction")],
)  # fmt: skip
@pytest.mark.parametrize("portable", [False, True])
def test_the_model_card_loads_the_model_with_its_head(tiny_model, tmp_path, head, pipeline, portable):
    kind = getattr(transformers, f"AutoModel{head}")
    model = kind.from_config(tiny_model("cog").config)
    type("Own", (type(model),), {})(model.config).save_pretrained(tmp_path / "own")  # somebody's subclass
    model.save_pretrained(tmp_path, portable=portable)
    assert f"pipeline_tag: {pipeline}\n" in (tmp_path / "own" / "README.md").read_text(encoding="utf-8")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert f"pipeline_tag: {pipeline}\n" in card
    assert "# Transformer\n" in card
    code = card.partition("```python\n")[2].partition("tokenizer =")[0].replace("PATH", str(tmp_path))
    names = {}
    exec(code, names)
    assert type(names["model"]).__name__ == f"Antiphase{head or 'Model'}"


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_can_be_resized(tiny_model, tied):
    model, ids = tiny_model(tie_word_embeddings=tied).double(), ids_of(1, 9)
    before = model(ids).logits
    model.resize_token_embeddings(70)
    assert model.config.vocab_size == model.lm_head.out_features == 70
    after = model(ids, labels=ids)
    assert_near(after.logits[..., :61], before)
    assert torch.isfinite(after.loss)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


# ------------------------------------------------------------------------------------------ lengths, masks, positions


@pytest.fixture
def warnings(monkeypatch):
    """What is said of lengths, each time that it would be."""
    said = []
    monkeypatch.setattr(lengths.logger, "warning_once", said.append)
    return said


@every_kind
def test_a_sequence_longer_than_the_positions_is_told(tiny_model, kind, warnings):
    model, longer = tiny_model(kind, max_position_embeddings=12), tiny_model(kind, max_position_embeddings=13)
    ids = ids_of(1, 13)
    cache = model(ids[:, :10]).past_key_values
    model(ids[:, :12])
    assert warnings == []
    found = model(ids).logits
    assert len(warnings) == 1
    assert "max_position_embeddings (12)" in warnings[0]
    assert torch.equal(found, longer(ids).logits)
    model(ids[:, 10:], past_key_values=cache)
    assert len(warnings) == 2
    stretched = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}  # made for that
    assert not torch.equal(tiny_model(kind, max_position_embeddings=12, rope_parameters=stretched)(ids).logits, found)
    assert len(warnings) == 2


@every_kind
def test_implementations_agree_in_output_and_gradients(tiny_model, kind):
    ids, mask = padded([ids_of(13), ids_of(8)], left=True)
    labels = ids.masked_fill(mask == 0, -100)
    found = []
    for implementation in IMPLEMENTATIONS:
        model = tiny_model(kind, attn_implementation=implementation).double()
        assert model.config._attn_implementation == implementation
        out = model(ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append((out.logits[mask.bool()], gradients))
    for logits, gradients in found[1:]:
        assert_near(logits, found[0][0])
        for name, gradient in gradients.items():
            assert_near(gradient, found[0][1][name])


@every_kind
def test_eager_shows_the_weights_which_are_signed_where_maps_are_subtracted(tiny_model, kind):
    model = tiny_model(kind, attn_implementation="eager").double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.0 if "lambda" in name else 1.0)  # λ = λinit > 0
    ids = ids_of(2, 9)
    out = model(ids, output_attentions=True, output_hidden_states=True)
    heads = 8 if kind == "softmax" else 4
    totals = {"softmax": 1.0, "differential_v2": 0.5}  # sigmoid(0) = 1/2
    assert len(out.attentions) == 3
    assert len(out.hidden_states) == 4
    for layer, weights in zip(model.model.layers, out.attentions, strict=True):
        assert weights.shape == (2, heads, 9, 9)
        assert torch.equal(weights, weights.tril())
        total = totals[kind] if kind in totals else 1 - layer.self_attn.lam().item()
        assert_near(weights.sum(-1), torch.full((2, heads, 9), total, dtype=torch.float64))
        assert (weights.min() < -1e-3) == (kind != "softmax")
    assert_near(out.logits, model(ids).logits)


@every_kind
@every_implementation
def test_a_boolean_mask_of_four_dimensions_is_used_as_it_stands(tiny_model, kind, implementation):
    model = tiny_model(kind, attn_implementation=implementation).double()
    first, second = ids_of(1, 5), ids_of(1, 6)
    mask = torch.block_diag(torch.ones(5, 5), torch.ones(6, 6)).bool().tril()[None, None]
    logits = model(torch.cat([first, second], 1), attention_mask=mask).logits
    assert_near(logits[:, :5], model(first).logits)
    assert_near(logits[:, 5:], model(second).logits, ROUNDED)  # rotary positions are relative
    free = torch.ones(1, 1, 11, 11, dtype=torch.bool)  # a prefix that sees its future, say
    seen = model(torch.cat([first, second], 1), attention_mask=free).logits
    assert (seen[:, 0] - logits[:, 0]).abs().max() > 1e-2


@every_kind
@every_implementation
@pytest.mark.parametrize("use_cache", [True, False, None])
def test_packed_sequences_do_not_see_each_other(tiny_model, kind, implementation, use_cache):
    model = tiny_model(kind, attn_implementation=implementation).double()
    parts = [ids_of(1, 5), ids_of(1, 1), ids_of(1, 6)]
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    logits = model(torch.cat(parts, 1), position_ids=positions, use_cache=use_cache).logits
    expected = torch.cat([model(part).logits for part in parts], dim=1)
    assert_near(logits, expected)


def test_embeddings_can_be_given_in_place_of_ids(tiny_model):
    model, ids = tiny_model(), ids_of(2, 9)
    embeddings = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embeddings).logits, model(ids).logits)
    for inputs in ({}, {"input_ids": ids, "inputs_embeds": embeddings}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**inputs)


# ------------------------------------------------------------------------------------------ classification


@every_kind
@pytest.mark.parametrize("left", [True, False])
def test_the_classifier_reads_the_last_real_token(tiny_model, kind, left):
    model = tiny_model(kind, kind=antiphase.AntiphaseForSequenceClassification, num_labels=5).double()
    rows = [ids_of(9), ids_of(4), ids_of(6)]
    ids, mask = padded(rows, left=left)
    out = model(ids, attention_mask=mask, labels=torch.tensor([0, 4, 2]))
    assert out.logits.shape == (3, 5)
    for index, row in enumerate(rows):
        assert_near(out.logits[index], model(row[None]).logits[0], ROUNDED)
    assert_near(out.loss, cross_entropy(out.logits, torch.tensor([0, 4, 2])), ROUNDED)
    out.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.score.weight.grad.abs().sum() > 0


def test_a_classifier_starts_from_a_saved_language_model(tiny_model, tmp_path):
    model, ids = tiny_model(), ids_of(1, 9)
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    assert type(classifier) is antiphase.AntiphaseForSequenceClassification
    assert classifier(ids).logits.shape == (1, 3)
    assert torch.equal(classifier.model(ids).last_hidden_state, model.model(ids).last_hidden_state)


@pytest.mark.parametrize(("end", "is_trained"), [(0, True), (1, False)])
def test_the_embedding_of_a_padding_token_is_trained_where_it_also_ends_texts(tiny_model, end, is_trained):
    """Tokenizers whose padding is their end token would otherwise leave that token at its random start."""
    model = tiny_model("softmax", pad_token_id=0, bos_token_id=None, eos_token_id=end, tie_word_embeddings=False)
    ids = torch.tensor([[0, 5, 6, 7]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert bool(model.get_input_embeddings().weight.grad[0].any()) == is_trained


def test_layers_that_are_added_run_or_are_refused(tiny_model):
    model, ids = tiny_model("softmax"), ids_of(1, 7)
    new = copy.deepcopy(model.model.layers[-1])
    new.self_attn.layer_idx = 3
    model.model.layers.append(new)
    before = model(ids, use_cache=False).logits  # the configuration still says three
    model.config.num_hidden_layers = 4
    with pytest.raises(ValueError, match="layer_types names 3 layers and the model has 4; name those that were added"):
        model(ids, use_cache=False)
    model.config.layer_types = ["full_attention"] * 4
    assert not torch.allclose(model(ids, use_cache=False).logits, before)
    config = tiny_model("softmax").config
    config.num_hidden_layers = 5
    with pytest.raises(InputError, match="layer_types names 3 layers, num_hidden_layers is 5; give both"):
        AutoModelForCausalLM.from_config(config)


def test_a_direction_cannot_be_given_to_a_call(tiny_model):
    """It is neither ignored nor, under transformers' own functions, turned around."""
    for kind in ("softmax", "differential", "differential_v2"):
        model = tiny_model(kind)
        for implementation in ("antiphase", "eager", "sdpa"):
            model.set_attn_implementation(implementation)
            model(ids_of(1, 5), is_causal=True)
            with pytest.raises(ValueError, match="does not support the arguments is_causal"):
                model(ids_of(1, 5), is_causal=False)


def test_an_eager_model_has_second_derivatives(tiny_model):
    """As gradient penalties and influence functions need them; native norm and loss included."""
    for kind in ("softmax", "differential", "differential_v2"):
        model = tiny_model(kind).double()
        model.set_attn_implementation("eager")
        ids = ids_of(1, 4)
        embedded = model.get_input_embeddings()(ids).detach()[:, :, :2]
        rest = model.get_input_embeddings()(ids).detach()[:, :, 2:]

        def loss(part, model=model, ids=ids, rest=rest):
            return model(inputs_embeds=torch.cat([part, rest], dim=-1), labels=ids).loss

        assert torch.autograd.gradgradcheck(loss, (embedded.requires_grad_(),))
