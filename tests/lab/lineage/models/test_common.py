"""The models that led here, all of them: learning, padding, saving, initial weights, losses and refusals."""

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.functional import cross_entropy

import antiphase
from antiphase.base.errors import InputError
from antiphase.lab.lineage.models.common import OneHot
from antiphase.layers.differential import DifferentialAttentionV1
from support.models import padded

VOCABULARY = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NARROW = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 40}


def recurrent(**fields):
    sizes = {"embedding_size": 10, "hidden_size": 24, "num_hidden_layers": 2}
    return antiphase.RecurrentConfig(**{**VOCABULARY, **sizes, **fields})


def convolution(**fields):
    return antiphase.ConvolutionConfig(**{**VOCABULARY, "embedding_size": 10, "num_filters": 7, **fields})


def vanilla(**fields):
    return antiphase.VanillaConfig(**{**VOCABULARY, **NARROW, **fields})


def pair(**fields):
    return antiphase.SequenceToSequenceConfig(**{**VOCABULARY, **NARROW, **fields})


TEXT_MODELS = {
    "rnn": lambda **fields: recurrent(cell="rnn", **fields),
    "lstm": lambda **fields: recurrent(**fields),
    "bilstm": lambda **fields: recurrent(bidirectional=True, **fields),
    "one-hot lstm": lambda **fields: recurrent(embeddings="one_hot", **fields),
    "cnn": lambda **fields: convolution(**{"dropout": 0.0, **fields}),
    "encoder": lambda **fields: vanilla(**fields),
    "decoder": lambda **fields: vanilla(is_causal=True, **fields),
    "differential encoder": lambda **fields: vanilla(attention_type="differential", **fields),
    "modern encoder": lambda **fields: vanilla(
        attention_type="differential_v2", norm="rms_norm", norm_position="pre", activation="swiglu", mlp_bias=False,
        attention_bias=False, positions="rotary", mlp_ratio=8 / 3, **fields,
    ),
    "batch-norm encoder": lambda **fields: vanilla(norm="batch_norm", positions="learned", activation="gelu", **fields),
    "one-hot encoder": lambda **fields: vanilla(embeddings="one_hot", norm_position="pre", **{
        **fields, "hidden_size": 32}),
}  # fmt: skip
"""Name and configuration of each kind of classifier."""
LANGUAGE_MODELS = ["rnn", "lstm", "one-hot lstm", "decoder"]

every_classifier = pytest.mark.parametrize("name", TEXT_MODELS)


def classifier(name, **fields):
    return hf.AutoModelForSequenceClassification.from_config(TEXT_MODELS[name](num_labels=3, **fields))


def language_model(name, **fields):
    return hf.AutoModelForCausalLM.from_config(TEXT_MODELS[name](**fields))


def texts():
    """Of all lengths down to one token, shorter than the filters too."""
    return [torch.randint(3, 31, (length,)) for length in (7, 1, 11, 4, 2)]


def trained(model, batch, *, steps, rate=5e-3):
    """Train on the batches; the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    loss = torch.tensor(0.0)
    for step in range(steps):
        loss = model(**batch(step)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return loss.item()


# ------------------------------------------------------------------------------------------ they learn


def marked_texts(generator):
    """Texts of 3 to 9 words of which one, anywhere, says the class."""
    lengths = torch.randint(3, 10, (32,), generator=generator)
    mask = (torch.arange(9) < lengths[:, None]).long()
    ids = torch.randint(6, 31, (32, 9), generator=generator)
    labels = torch.randint(0, 3, (32,), generator=generator)
    places = (torch.rand(32, generator=generator) * lengths).long()
    ids[torch.arange(32), places] = 3 + labels
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


@pytest.mark.slow
@every_classifier
def test_a_classifier_learns_which_word_decides(name):
    model = classifier(name)
    generator = torch.Generator().manual_seed(1)
    trained(model, lambda step: marked_texts(generator), steps=250)
    test = marked_texts(torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = model(**test).logits.argmax(-1)
    assert (found == test["labels"]).float().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_overfits_a_batch_and_says_it_again(name):
    ids = torch.randint(3, 31, (4, 12))
    ids[:, 0] = torch.arange(3, 7)  # so that the first token says which text it is
    model = language_model(name)
    assert trained(model, lambda step: {"input_ids": ids, "labels": ids}, steps=250) < 0.1
    said = model.generate(ids[:, :3], attention_mask=torch.ones(4, 3), max_new_tokens=9, do_sample=False)
    assert torch.equal(said, ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "differential encoder", "batch-norm encoder"])
def test_an_encoder_names_masked_tokens_from_both_sides(name):
    """Each token is the one before it plus one, so either neighbour says what is hidden."""
    hidden_token = 30

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(3, 20, (32, 1), generator=generator) + torch.arange(6)
        place = torch.randint(0, 6, (32, 1), generator=generator)
        labels = torch.full_like(ids, -100).scatter(1, place, ids.gather(1, place))
        return {"input_ids": ids.scatter(1, place, hidden_token), "labels": labels}

    model = hf.AutoModelForMaskedLM.from_config(TEXT_MODELS[name](tie_word_embeddings=True))
    trained(model, batch, steps=300)
    test = batch(10_000)
    with torch.no_grad():
        found = model(**test).logits.argmax(-1)
    chosen = test["labels"] != -100
    assert (found == test["labels"])[chosen].float().mean() > 0.9


# ------------------------------------------------------------------------------------------ padding


@pytest.mark.parametrize("left", [False, True])
@every_classifier
def test_a_padded_batch_gives_what_single_texts_give(name, left):
    model = classifier(name).double().eval()
    rows = texts()
    ids, mask = padded(rows, left=left, more=2)
    ids[mask == 0] = 17  # what stands at padding is not read
    found = model(ids, attention_mask=mask).logits
    single = torch.cat([model(row[None]).logits for row in rows])
    torch.testing.assert_close(found, single, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_reads_no_padding(name, left):
    model = language_model(name).double().eval()
    rows = texts()
    ids, mask = padded(rows, left=left, more=2)
    ids[mask == 0] = 17
    logits = model(ids, attention_mask=mask).logits
    for index, row in enumerate(rows):
        torch.testing.assert_close(logits[index][mask[index] == 1], model(row[None]).logits[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("left", [False, True])
@every_classifier
def test_gradients_of_a_padded_batch_are_those_of_single_texts(name, left):
    model = classifier(name).double()
    if name == "batch-norm encoder":
        model.eval()  # in training the texts of a batch share their statistics
    rows, labels = texts(), torch.tensor([0, 2, 1, 1, 0])
    ids, mask = padded(rows, left=left, more=2)
    model(ids, attention_mask=mask, labels=labels).loss.backward()
    found = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    for row, label in zip(rows, labels, strict=True):
        (model(row[None], labels=label[None]).loss / len(rows)).backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-6, atol=1e-8, msg=key)  # losses are fp32


@every_classifier
def test_a_text_without_tokens_gets_an_answer_that_padding_does_not_change(name):
    model = classifier(name).eval()
    found = [model(torch.zeros(1, n, dtype=torch.int64), attention_mask=torch.zeros(1, n)).logits for n in (1, 6)]
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("name", ["lstm", "cnn", "encoder"])
def test_a_mask_of_another_shape_is_refused(name):
    with pytest.raises(ValueError, match="attention_mask"):
        classifier(name)(torch.ones(2, 5, dtype=torch.int64), attention_mask=torch.ones(2, 4))


@pytest.mark.parametrize("name", ["lstm", "cnn", "encoder"])
def test_tokens_or_their_vectors_but_not_both(name):
    model = classifier(name).eval()
    ids = torch.randint(3, 31, (2, 5))
    vectors = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=vectors).logits, model(ids).logits)
    for given in ({}, {"input_ids": ids, "inputs_embeds": vectors}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**given)


# ------------------------------------------------------------------------------------------ losses and dropout


@every_classifier
def test_the_loss_is_the_mean_cross_entropy_or_the_sum_over_a_given_number(name):
    model = classifier(name).eval()
    ids, labels = torch.randint(3, 31, (4, 6)), torch.tensor([0, 1, 2, 1])
    out = model(ids, labels=labels)
    torch.testing.assert_close(out.loss, cross_entropy(out.logits, labels))
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=10).loss, 0.4 * out.loss)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_predicts_the_next_token(name):
    model = language_model(name).eval()
    ids = torch.randint(3, 31, (3, 8))
    labels = ids.masked_fill(torch.rand(3, 8) < 0.3, -100)
    out = model(ids, labels=labels)
    expected = cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, out.logits[:, -2:])
    later = torch.cat([ids[:, :5], ids.flip(1)[:, 5:]], dim=1)
    torch.testing.assert_close(model(later).logits[:, :5], out.logits[:, :5])


@every_classifier
def test_autocast_to_bf16_stays_near_and_trains(name):
    model = classifier(name)
    batch = marked_texts(torch.Generator().manual_seed(3))
    exact = model(**batch).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**batch)
    out.loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    torch.testing.assert_close(out.logits.float(), exact, rtol=0.1, atol=0.1)


# ------------------------------------------------------------------------------------------ saving


@every_classifier
def test_a_saved_classifier_loads_as_it_was(tmp_path, name):
    model = classifier(name).eval()
    ids = torch.randint(3, 31, (4, 6))
    with torch.no_grad():
        for tensor in model.state_dict().values():  # no initial value of a fresh model
            if tensor.is_floating_point():
                tensor += 0.1 * torch.rand_like(tensor)
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert loaded.config.to_dict() == hf.AutoConfig.from_pretrained(tmp_path).to_dict()
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    for (key, saved), value in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(saved, value), key


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["rnn", "lstm", "decoder"])
def test_a_saved_language_model_loads_as_it_was(tmp_path, name, tied):
    model = language_model(name, tie_word_embeddings=tied, **({} if name == "decoder" else {"embedding_size": 24}))
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    model.eval().save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(3, 31, (4, 6))
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-6)


def test_saved_encoders_and_pairs_load_as_they_were(tmp_path):
    ids = torch.randint(3, 31, (4, 6))
    for auto, config in ((hf.AutoModelForMaskedLM, vanilla()), (hf.AutoModelForSeq2SeqLM, pair(source_vocab_size=40))):
        model = auto.from_config(config).eval()
        model.save_pretrained(tmp_path / config.model_type)
        loaded = auto.from_pretrained(tmp_path / config.model_type).eval()
        assert torch.equal(loaded(input_ids=ids, labels=ids).logits, model(input_ids=ids, labels=ids).logits)


def test_a_language_model_lends_its_weights_to_a_classifier(tmp_path):
    model = language_model("lstm").eval()
    model.save_pretrained(tmp_path)
    found = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    for key, value in model.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[key], value), key
    assert found.classifier.weight.std() > 0


# ------------------------------------------------------------------------------------------ initial weights


@every_classifier
def test_initial_weights_follow_the_papers(name):
    model = classifier(name, num_hidden_layers=1) if name != "cnn" else classifier(name)
    for key, module in model.named_modules():
        if isinstance(module, nn.Linear):
            fan_in, fan_out = module.weight.shape[1], module.weight.shape[0]
            if module.weight.numel() > 500:
                assert module.weight.std().item() == pytest.approx((2 / (fan_in + fan_out)) ** 0.5, rel=0.1), key
            assert module.bias is None or not module.bias.any(), key
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d)):
            assert (module.weight == 1).all(), key
        elif isinstance(module, DifferentialAttentionV1):
            assert module.lambda_q1.std() > 0, key
        elif isinstance(module, nn.RNNBase):
            for direction in ("", "_reverse") if module.bidirectional else ("",):
                matrix = getattr(module, f"weight_hh_l0{direction}")
                for gate in matrix.chunk(len(matrix) // module.hidden_size):
                    torch.testing.assert_close(gate @ gate.T, torch.eye(module.hidden_size), rtol=0, atol=1e-5)
                biases = getattr(module, f"bias_ih_l0{direction}") + getattr(module, f"bias_hh_l0{direction}")
                expected = torch.zeros_like(biases)
                if isinstance(module, nn.LSTM):
                    expected[24:48] = 1.0  # torch's order of gates: input, forget, cell, output
                assert torch.equal(biases, expected), key
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, OneHot):
        spread = 24**-0.5 if "coder" in name else 0.25 / 3**0.5
        assert not embedding.weight[0].any()
        assert embedding.weight[1:].std().item() == pytest.approx(spread, rel=0.15)


def test_one_hot_tokens_are_unit_vectors():
    model = classifier("one-hot lstm")
    vectors = model.get_input_embeddings()(torch.tensor([[4, 30]]))
    assert torch.equal(vectors, torch.eye(31, dtype=torch.int64)[torch.tensor([[4, 30]])])
    assert model.model.network.input_size == 31
    assert not any("embed" in name for name, _ in model.named_parameters())


# ------------------------------------------------------------------------------------------ refusals


def test_a_causal_request_on_a_bidirectional_model_is_an_error():
    with pytest.raises(InputError, match="a bidirectional network cannot predict the next token; set bidirectional"):
        language_model("bilstm")
    with pytest.raises(InputError, match=r"an encoder .* cannot predict the next token; set is_causal to true"):
        language_model("encoder")
    with pytest.raises(InputError, match="needs an encoder; set is_causal to false"):
        hf.AutoModelForMaskedLM.from_config(TEXT_MODELS["decoder"]())
    ids = torch.randint(3, 31, (1, 4))
    cache = language_model("decoder")(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values cannot be used in an encoder"):
        classifier("encoder")(ids, past_key_values=cache)


@pytest.mark.parametrize("name", ["lstm", "cnn"])
def test_models_without_attention_say_so_when_they_are_probed(name):
    with pytest.raises(ValueError, match="attention function"):
        antiphase.attention_statistics(classifier(name), input_ids=torch.randint(3, 31, (1, 4)))


@pytest.mark.parametrize(("build", "fields", "message"), [
    (recurrent, {"cel": "rnn"}, "unknown configuration field 'cel'; did you mean 'cell'"),
    (recurrent, {"hidden_size": 0}, "hidden_size must be a whole number of at least 1, got 0"),
    (recurrent, {"tie_word_embeddings": True}, r"embedding_size \(10\) equal to hidden_size \(24\)"),
    (recurrent, {"embeddings": "one_hot", "tie_word_embeddings": True}, "no matrix to share"),
    (convolution, {"filter_widths": []}, r"filter_widths must be whole numbers of at least 1, got \[\]"),
    (convolution, {"max_norm": 0.0}, "max_norm must be above 0"),
    (convolution, {"tie_word_embeddings": True}, "predicts no tokens"),
    (vanilla, {"norm": "layernorm"}, "did you mean 'layer_norm'"),
    (vanilla, {"num_attention_heads": 5}, r"num_attention_heads \(5\) does not divide hidden_size \(24\)"),
    (vanilla, {"attention_type": "differential", "num_attention_heads": 3}, "num_attention_heads must be even"),
    (vanilla, {"positions": "rotary", "num_attention_heads": 8}, "must be even for positions=rotary, got 3"),
    (vanilla, {"mlp_ratio": 0.01}, "gives an MLP of width 0"),
    (vanilla, {"embeddings": "one_hot"}, r"hidden_size \(24\) must be at least vocab_size \(31\)"),
    (pair, {"is_causal": False}, "is_causal must be true"), (pair, {"bos_token_id": None}, "bos_token_id must be set"),
    (pair, {"pad_token_id": None}, "pad_token_id must be set"),
])  # fmt: skip
def test_impossible_configurations_are_refused_by_field(build, fields, message):
    with pytest.raises(InputError, match=message):
        build(**fields)


@pytest.mark.parametrize("build", [recurrent, convolution, vanilla, pair])
def test_a_configuration_survives_saving_with_every_field(tmp_path, build):
    config = build(dropout=0.25, num_labels=5)
    config.save_pretrained(tmp_path)
    loaded = hf.AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    ours, theirs = config.to_dict(), loaded.to_dict()
    assert {key for key in ours if ours[key] != theirs[key]} <= {"_name_or_path"}
    assert (loaded.dropout, loaded.num_labels) == (0.25, 5)
