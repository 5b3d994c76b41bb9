"""Sinks on text: sums over batches are those of one batch, and a planted sink leads the ranking."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import InputError
from antiphase.base.records import Record, finite
from antiphase.lab.measures.probe import Probe, ProbeSettings, presentation
from antiphase.lab.measures.probe import measure as module
from antiphase.lab.measures.probe.measure import sinks_on_text
from antiphase.lab.pages import write_report
from antiphase.lab.scoring.loading import load_model
from support.models import save

N, SINK = 40, 7


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    seen = {}
    model.model.embed_tokens.register_forward_pre_hook(lambda module, args: seen.update(ids=args[0]))

    def add_to_keys(module, args, out):  # in head 1 of layer 1 every query looks at the token, where there is one
        out = out.clone()
        out[..., 15] += 6.0 * (seen["ids"] == SINK)
        return out

    def add_to_queries(module, args, out):
        out = out.clone()
        out[..., 15] += 6.0
        return out

    model.model.layers[1].self_attn.k_proj.register_forward_hook(add_to_keys)
    model.model.layers[1].self_attn.q_proj.register_forward_hook(add_to_queries)
    return model


@pytest.fixture(scope="module")
def ids():
    ids = torch.randint(8, 30, (5, N), generator=torch.Generator().manual_seed(0))
    ids[:, 3] = SINK
    return ids


def test_the_planted_sink_is_found(model, ids):
    found = sinks_on_text(model, ids, str, alpha=5.0)
    assert found.tokens[0].token == str(SINK)
    assert found.tokens[0].occurrences == 5
    assert found.tokens[0].sink_rate >= 1 / 6  # one of six maps
    assert found.tokens[1].sink_rate < found.tokens[0].sink_rate
    heads = {(row.layer, row.head): row for row in found.heads}
    assert max(heads, key=lambda head: heads[head].sink_share) == (1, 1)
    rates = torch.tensor(found.positions.sink_rate)
    assert rates.shape == (3, N)
    assert rates[1, 3] == pytest.approx(0.5)  # one of two maps of the layer
    assert rates[1].argmax() == 3
    assert found.judged_positions == N - 7  # seen by N / 5 queries at least
    judged = ids[:, : N - 7]
    for row in found.tokens:
        assert row.occurrences == int((judged == int(row.token)).sum())
    page = found._repr_html_()
    assert "Sinks that enough queries see" in page
    assert page.count("<img") == 3


def test_pictures_come_before_the_tables_and_heads_are_folded(model, ids, tmp_path):
    page = write_report([sinks_on_text(model, ids, str).record()], tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.rindex("</figure>") < page.index("<caption>Layers")
    assert page.index("<summary>The numbers behind it: Heads") < page.index("<caption>Heads") < page.index("</details>")
    assert page.count("<caption>Heads") == 1


def test_figures_name_the_layers_that_have_attention(model, ids):
    found = sinks_on_text(model, ids, str)
    for row in (*found.layers, *found.heads):
        object.__setattr__(row, "layer", {0: 3, 1: 7, 2: 11}[row.layer])
    object.__setattr__(found, "judged_positions", found.length)
    record = found.record()
    whole, heads = presentation.sink_map(record), presentation.sink_heads(record)
    for axes in (whole.axes[0], heads.axes[0]):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["3", "7", "11"]
    assert not any("too few" in text.get_text() for text in whole.axes[0].texts)


def test_batches_change_nothing(model, ids, monkeypatch):
    whole = sinks_on_text(model, ids, str)
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 2 * N)
    seen = []
    parts = sinks_on_text(model, ids, str, report=lambda done, count: seen.append((done, count)))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    for key in ("persistence", "persistence_chance"):
        assert getattr(parts, key) == pytest.approx(getattr(whole, key))
    for one, other in zip(parts.heads, whole.heads, strict=True):
        assert vars(one) == pytest.approx(vars(other))
    assert parts.tokens == whole.tokens


def test_means_are_those_of_the_statistics(model, ids):
    found = sinks_on_text(model, ids, str, alpha=3.0)
    direct = attention_statistics(model, alpha=3.0, input_ids=ids)
    for row in found.heads:
        layer, head = row.layer, row.head
        assert row.first_share == pytest.approx(direct.first_share[layer, :, head].mean().item())
        assert row.entropy == pytest.approx(direct.entropy[layer, :, head].mean().item())
        assert row.top_logit == pytest.approx(direct.top_logits[layer, :, head, 0].mean().item())
        assert row.sinks == pytest.approx(direct.sinks[layer, :, head].double().mean().item())
    assert found.layers[1].sinks == pytest.approx(direct.sinks[1].double().mean().item())


def test_rates_and_occurrences_of_tokens_are_of_the_same_positions(ids):
    """A layer with a window judges keys at the end, of which a layer without one sees too little."""
    torch.manual_seed(4)
    config = Qwen2Config(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, max_position_embeddings=64, initializer_range=0.5, sliding_window=8,
        use_sliding_window=True, layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).double().eval()
    found = sinks_on_text(model, ids, str, alpha=2.0)
    direct = attention_statistics(model, alpha=2.0, input_ids=ids)
    judged = direct.enough_queries.all(0)
    assert direct.enough_queries[1].sum() > direct.enough_queries[0].sum() == judged.sum()
    assert found.judged_positions == int(judged[0].sum())
    length = ids.shape[1]
    # A key makes a sink of itself alone if fewer than N / α queries see it: 8 / 2 with the window
    assert found.null_local == pytest.approx(((length / 2 - 1) + (8 / 2 - 1)) / 2 / length, abs=1 / length)
    assert found.tokens
    for row in found.tokens:
        here = (ids == int(row.token)) & judged
        assert row.occurrences == int(here.sum())
        assert row.sink_rate == pytest.approx(direct.sinks.double().mean((0, 2))[here].mean().item())


def test_long_sequences_share_columns(model, ids, monkeypatch):
    fine = torch.tensor(sinks_on_text(model, ids, str).positions.sink_rate)
    monkeypatch.setattr(module, "BINS", 8)
    found = sinks_on_text(model, ids, str).positions
    assert found.first == [0, 5, 10, 15, 20, 25, 30, 35]
    torch.testing.assert_close(torch.tensor(found.sink_rate), fine.view(3, 8, 5).mean(-1))


def test_a_decoder_reads_the_text_alone(antiphase, tmp_path, tiny_model, text_tokenizer, book):
    model = tiny_model("softmax", vocab_size=len(text_tokenizer))
    save(model, text_tokenizer, tmp_path / "model")
    settings = ProbeSettings(name="model", paths=[str(tmp_path / book)], length=32, samples=3)
    loaded = load_model(str(tmp_path / "model"))
    ids = module.prepare(loaded, settings, tmp_path / "o", print)
    text = text_tokenizer((tmp_path / book).read_text())["input_ids"]
    assert ids[0].tolist() == text[:32]
    assert antiphase("probe model --data", book, "--length 32 --samples 3 --output o")[0] == 0
    assert Probe.of(Record.load(tmp_path / "o")).length == 32


def test_an_encoder_reads_its_text_between_its_own_tokens(antiphase, tmp_path):
    torch.manual_seed(0)
    words = {
        word: index for index, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "was", "calm"))
    }
    backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )
    config = BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    save(BertForMaskedLM(config), tokenizer, tmp_path / "bert")
    (tmp_path / "text.txt").write_text("the sea was calm " * 40)
    antiphase("probe", "bert", "--data", "text.txt", "--length", 16, "--samples", 3, "--output", "o")
    found = Probe.of(Record.load(tmp_path / "o"))
    assert (found.sequences, found.length, found.judged_positions) == (3, 16, 16)
    assert (found.null_local, found.null_uniform) == (0, 0)  # every key is seen by every query
    loaded = load_model(str(tmp_path / "bert"), with_head=False)
    settings = ProbeSettings(name=str(tmp_path / "bert"), paths=[str(tmp_path / "text.txt")], length=16, samples=3)
    ids = module.prepare(loaded, settings, tmp_path / "o", print)
    assert ids.shape == (3, 16)
    assert ids[:, 0].tolist() == [2] * 3
    assert ids[:, -1].tolist() == [3] * 3
    assert not set(ids[:, 1:-1].flatten().tolist()) & {0, 1, 2, 3}
    with pytest.raises(InputError, match="--length 2 has no room"):
        module.prepare(loaded, replace(settings, length=2), tmp_path / "o", print)


WORDS = 400
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
SMALL_T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(("make", "part"), [
    (lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8)), None),
    (lambda: BertModel(BertConfig(**SMALL), add_pooling_layer=False), None),
    (lambda: T5EncoderModel(T5Config(**SMALL_T5)), None),
    (lambda: T5ForConditionalGeneration(T5Config(**SMALL_T5)), "encoder"),
], ids=["soft caps", "without a pooler", "an encoder alone", "an encoder and decoder"])  # fmt: skip
def test_every_reader_of_text_is_probed_whole(antiphase, tmp_path, text_tokenizer, book, make, part):
    torch.manual_seed(2)
    model = make()
    save(model, text_tokenizer, tmp_path / "model")
    assert antiphase("probe model --data", book, "--length 32 --samples 3 --output o")[0] == 0
    found = Probe.of(Record.load(tmp_path / "o"))
    assert found.part == part
    settings = ProbeSettings(name="model", paths=[str(tmp_path / book)], length=32, samples=3)
    ids = module.prepare(load_model(str(tmp_path / "model"), with_head=False), settings, tmp_path / "o", print)
    model.set_attn_implementation("eager")
    reader = model.get_encoder() if part else model
    with torch.no_grad():
        maps = reader.eval()(input_ids=ids, output_attentions=True).attentions
    for layer, whole in zip(found.layers, maps, strict=True):
        assert layer.first_share == pytest.approx(whole[..., 0].mean().item(), rel=1e-4)
        assert layer.entropy == pytest.approx(torch.special.entr(whole).sum(-1).mean().item(), rel=1e-4)


def test_a_model_of_images_is_refused_by_what_it_reads(refused, tmp_path, text_tokenizer, book):
    sizes = {name: size for name, size in SMALL.items() if name != "vocab_size"}
    save(ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8), add_pooling_layer=False), text_tokenizer,
         tmp_path / "model")  # fmt: skip
    why = "MODEL model is of type vit, which reads images and no text"
    refused(why, "probe model --data", book, "--output o")


def test_the_encoder_of_a_pair_has_an_embedding_for_every_word(refused, tmp_path, text_tokenizer, book):
    save(T5ForConditionalGeneration(T5Config(**{**SMALL_T5, "vocab_size": 40})), text_tokenizer, tmp_path / "model")
    refused("MODEL model: its tokenizer is another model's", "probe model --data", book, "--length 32 --output o")


@pytest.mark.parametrize(("logit", "unspent"), [(60.0, 1.0), (-60.0, None)])
def test_what_a_learned_sink_takes_is_a_column_of_its_own(tiny_model, logit, unspent):
    model, ids = tiny_model("softmax", sink_logits=True), torch.randint(3, 61, (2, 9))
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, logit)
    found = sinks_on_text(model, ids, str)
    assert [row.unspent for row in (*found.layers, *found.heads)] == pytest.approx(
        [unspent] * (len(found.layers) + len(found.heads))
    )
    record = Record(kind="probe", values=finite(found))
    assert Probe.of(record) == found
    for table in (presentation.layers(record), presentation.heads(record)):
        assert ("On no token" in [column.name for column in table.columns]) == (unspent is not None)
