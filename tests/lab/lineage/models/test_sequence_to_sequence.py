"""Encoder and decoder for pairs of texts: learning, padding, caches, alignment."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq

import antiphase
from antiphase.models.configuration import ATTENTION_TYPES
from support.models import assert_near, padded, randomize

SIZES = {
    "vocab_size": 20, "source_vocab_size": 27, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "mlp_ratio": 2.0, "max_position_embeddings": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
START, END = 1, 2

every_type = pytest.mark.parametrize("attention_type", ATTENTION_TYPES)


def model_of(**fields):
    """In evaluation mode and fp64, every parameter random and large enough to matter."""
    config = antiphase.SequenceToSequenceConfig(**{**SIZES, **fields})
    return randomize(AutoModelForSeq2SeqLM.from_config(config).double())


def pairs(*, left=False):
    """Sources and targets of several lengths, and the batch of them."""
    sources = [torch.randint(3, 27, (length,)) for length in (6, 2, 4)]
    targets = [torch.randint(3, 20, (length,)) for length in (3, 7, 1)]
    ids, mask = padded(sources, left=left, more=2)
    labels, known = padded(targets, left=False, more=2)
    labels[known == 0] = -100
    return sources, targets, {"input_ids": ids, "attention_mask": mask, "labels": labels}


@every_type
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("left", [False, True])
def test_a_padded_batch_gives_what_single_pairs_give(left, norm, attention_type):
    model = model_of(attention_type=attention_type, norm=norm)
    sources, targets, batch = pairs(left=left)
    logits = model(**batch).logits
    for source, target, row in zip(sources, targets, logits, strict=True):
        assert_near(row[: len(target)], model(source[None], labels=target[None]).logits[0])


def test_the_decoder_reads_the_start_and_then_its_labels_and_predicts_them_unshifted():
    model = model_of()
    sources, targets, batch = pairs()
    out = model(**batch)
    read = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    for target, row in zip(targets, read, strict=True):
        assert row.tolist() == [START, *target.tolist(), *[0] * (9 - len(target))][:9]
    explicit = model(batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=read)
    real = batch["labels"] != -100
    assert_near(out.logits[real], explicit.logits[real])
    expected = cross_entropy(out.logits.flatten(0, 1).float(), batch["labels"].flatten())
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(model(**batch, num_items_in_batch=22).loss, expected * int(real.sum()) / 22)
    with pytest.raises(ValueError, match="labels or decoder_input_ids must be given"):
        model(sources[0][None])


def test_batches_of_transformers_collator_fit(text_tokenizer):
    model = model_of(vocab_size=len(text_tokenizer), source_vocab_size=len(text_tokenizer))
    collate = DataCollatorForSeq2Seq(text_tokenizer, model=model)
    texts = [{"input_ids": [5, 6, 7], "labels": [8, 9]}, {"input_ids": [5], "labels": [10, 11, 12]}]
    batch = collate([{**text, "attention_mask": [1] * len(text["input_ids"])} for text in texts])
    assert torch.isfinite(model(**batch).loss)


@pytest.mark.parametrize("field", ["batch_norm", "layer_norm"])
def test_padding_has_no_part_in_the_training_of_norms(field):
    found = []
    for length in (9, 14):
        torch.manual_seed(4)
        model = model_of(norm=field).train()
        batch = pairs()[2]
        batch["labels"] = nn.functional.pad(batch["labels"], (0, length - 9), value=-100)
        model(**batch).loss.backward()
        found.append(model.model.decoder.layers[1].cross_attn.k_proj.weight.grad)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)  # the loss is fp32


@every_type
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_generation_is_the_same_with_and_without_a_cache_and_padding(positions, attention_type):
    model = model_of(attention_type=attention_type, positions=positions)
    sources, _, batch = pairs()
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    given = {key: batch[key] for key in ("input_ids", "attention_mask")}
    said = model.generate(**given, **options)
    assert said.shape == (3, 10)
    assert (said[:, 0] == START).all()
    assert torch.equal(said, model.generate(**given, use_cache=False, **options))
    for source, row in zip(sources, said, strict=True):
        assert torch.equal(row, model.generate(source[None], **options)[0])
    logits = model(**given, decoder_input_ids=said).logits
    assert torch.equal(logits.argmax(-1)[:, :-1], said[:, 1:])
    beams = model.generate(**given, num_beams=3, max_new_tokens=5, do_sample=False)
    assert torch.equal(beams, model.generate(**given, num_beams=3, max_new_tokens=5, do_sample=False, use_cache=False))


@every_type
def test_alignment_is_the_cross_attention_by_hand(attention_type):
    model = model_of(attention_type=attention_type, num_hidden_layers=1)
    _, targets, batch = pairs()
    implementation = model.config._attn_implementation
    found = model.alignment(**batch)
    heads = 4 if attention_type == "softmax" else 2
    assert found.shape == (1, 3, heads, 9, 8)
    assert model.config._attn_implementation == implementation
    asked = []
    attention = model.model.decoder.layers[0].cross_attn

    def note(module, args, kwargs):
        asked.append((args[0], kwargs["context"]))

    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    model(**batch)
    handle.remove()
    (hidden, context), split = asked[0], (-1, 6)
    query = attention.q_proj(hidden).unflatten(-1, split).transpose(1, 2)
    key = attention.k_proj(context).unflatten(-1, split).transpose(1, 2)
    key = key.repeat_interleave(4 // key.shape[1], dim=1)
    scores = (query @ key.mT / 6**0.5).masked_fill(batch["attention_mask"][:, None, None] == 0, float("-inf"))
    maps = scores.softmax(-1)
    if attention_type != "softmax":
        lam = attention.lam() if attention_type == "differential" else attention.lam(hidden).unsqueeze(-1)
        maps = maps[:, 0::2] - lam * maps[:, 1::2]
    for index, target in enumerate(targets):
        expected = maps[index, :, : len(target)]
        torch.testing.assert_close(found[0, index, :, : len(target)].double(), expected, rtol=1e-5, atol=1e-6)


def reversed_texts(generator):
    """The target is the source back to front, its tokens numbered otherwise, and an end token."""
    lengths = torch.randint(3, 6, (48,), generator=generator)
    ids = torch.randint(10, 27, (48, 5), generator=generator)
    mask = (torch.arange(5) < lengths[:, None]).long()
    labels = torch.full((48, 6), -100)
    for index, length in enumerate(lengths.tolist()):
        labels[index, :length] = ids[index, :length].flip(0) - 7
        labels[index, length] = END
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


@pytest.mark.slow
@every_type
def test_a_pair_learns_to_reverse_and_its_alignment_runs_backwards(attention_type):
    fields = {**SIZES, "hidden_size": 32, "attention_type": attention_type, "norm_position": "pre"}
    model = AutoModelForSeq2SeqLM.from_config(antiphase.SequenceToSequenceConfig(**fields))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        loss = model(**reversed_texts(generator)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    test = reversed_texts(torch.Generator().manual_seed(2))
    labels = test.pop("labels")
    said = model.generate(**test, max_new_tokens=7, do_sample=False)[:, 1:]
    right = []
    looked = []
    weights = model.alignment(test["input_ids"], labels, test["attention_mask"])
    for index, row in enumerate(labels):
        expected = row[row != -100]
        right.append(said[index, : len(expected)].tolist() == expected.tolist())
        length = len(expected) - 1
        hits = weights[:, index, :, :length].argmax(-1) == torch.arange(length).flip(0)  # (layers, heads, N)
        looked.append(hits.float().mean(-1))
    assert sum(right) > 0.9 * len(right)
    assert torch.stack(looked).mean(0).max() > 0.8  # one head at least looks at the token that it writes
