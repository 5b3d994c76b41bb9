"""The record of one text: every map of the model within the bound of 8 bits, its tokens, its masks; limits in words."""

import io

import numpy
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import antiphase
from antiphase.attention.maps import attention_maps
from antiphase.base.errors import InputError, naming_fields
from antiphase.base.records import Record
from antiphase.cli.naming import flag_of
from antiphase.lab.lineage.commands.classify.measure import ClassifySettings, classify
from antiphase.lab.measures.look import Token
from antiphase.lab.measures.look.map_codes import decode
from antiphase.lab.measures.look.maps import mask_kind
from antiphase.lab.measures.look.measure import LookSettings
from antiphase.lab.measures.look.measure import evaluate as look
from antiphase.lab.measures.look.tables import layers_of, remarks
from antiphase.lab.measures.look.texts import tokens_of
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import curve_evaluations
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.loop import train
from support.map_codes import error_bound

SENTENCE = "Ein Stein, am Rand\tder Stadt:\n12 x <b> 日本"
SIZES = {
    "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 300, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def words_of_the_command_line():
    with naming_fields(flag_of):
        yield


@pytest.fixture
def saved(tmp_path, text_tokenizer):
    """A factory of model folders, random weights, with a tokenizer."""

    def save(kind):
        size = {**SIZES, "vocab_size": len(text_tokenizer)}
        torch.manual_seed(4)
        if kind == "bert":
            model = hf.BertModel(
                hf.BertConfig(**{name: value for name, value in size.items() if "key_value" not in name})
            )
        elif kind == "diffllama":
            model = hf.DiffLlamaForCausalLM(hf.DiffLlamaConfig(**size))
        else:
            windows = {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]}
            model = antiphase.AntiphaseForCausalLM(antiphase.AntiphaseConfig(attention_type=kind, **size, **windows))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "q_proj" in name or "k_proj" in name or "query.w" in name or "key.w" in name:
                    parameter.mul_(25)
        folder = tmp_path / kind
        model.save_pretrained(folder)
        text_tokenizer.save_pretrained(folder)
        return model.eval(), str(folder)

    return save


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "diffllama", "bert"])
def test_the_record_holds_every_map_within_its_bound(saved, tmp_path, text_tokenizer, kind):
    model, folder = saved(kind)
    made = look(LookSettings(name=folder, text=SENTENCE, device="cpu"), tmp_path / "out")
    record = Record.load(tmp_path / "out")
    assert record.values == made.values
    assert record.kind == "look"
    expected = attention_maps(model, text_tokenizer(SENTENCE, return_tensors="pt")["input_ids"])
    count = len(record.values["sequences"]["text"]["tokens"])
    assert count == expected[0].maps.shape[-1] > 20
    assert len(record.values["maps"]) == len(expected) == 2
    spread = 0.0
    for entry, one in zip(record.values["maps"], expected, strict=True):
        codes, scales = (record.arrays[f"{entry['arrays']}.{part}"] for part in ("codes", "scales"))
        whole = one.maps.numpy()
        error = numpy.abs(decode(codes, scales) - whole)
        assert (error <= error_bound(whole) + 1e-6).all()
        spread = max(spread, float(whole[..., -1, :].max()))
        differential = kind not in ("softmax", "bert")
        assert (entry["heads"], entry["maps_per_head"]) == ((2, 2) if differential else (4, 1))
        assert (entry["queries"], entry["keys"]) == ("text", "text")
        if differential:
            numpy.testing.assert_allclose(record.arrays[f"{entry['arrays']}.lambda"], one.lam.numpy())
        mask = record.values["masks"][entry["mask"]]
        numpy.testing.assert_array_equal(record.arrays[mask["array"]], one.visible.numpy())
    assert spread > 0.15
    kinds = [(mask["kind"], mask["window"]) for mask in record.values["masks"]]
    whole = {"bert": [("global", None)], "diffllama": [("causal", None)]}
    assert kinds == whole.get(kind, [("causal", None), ("causal", 7)])
    assert "positions" not in record.arrays  # they are rotary or learned


def test_tokens_have_their_words_pieces_and_text(saved, tmp_path, text_tokenizer):
    _, folder = saved("softmax")
    found = look(LookSettings(name=folder, text=SENTENCE), tmp_path / "out").values["sequences"]["text"]
    assert found["text"] == SENTENCE
    tokens = found["tokens"]
    assert [token["id"] for token in tokens] == text_tokenizer(SENTENCE)["input_ids"]
    assert [token["piece"] for token in tokens] == text_tokenizer.tokenize(SENTENCE)
    plain = SENTENCE.index("日")
    assert "".join(token["text"] for token in tokens if "[" not in token["text"]) == SENTENCE[:plain]
    assert [token["text"] for token in tokens[-6:]] == [
        f"{letter}[{part}/3]" for letter in "日本" for part in (1, 2, 3)
    ]
    words = [token["word"] for token in tokens]
    assert words == sorted(words)
    assert len({token["word"] for token in tokens if token["text"] in ("1", "2")}) == 2, "digits are words of their own"


def test_special_tokens_belong_to_no_word():
    backend = Tokenizer(models.WordLevel({"[CLS]": 0, "ab": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 0)])
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="[CLS]", unk_token="[UNK]")
    ids = torch.tensor(tokenizer("ab zz")["input_ids"])
    assert tokens_of(tokenizer, "ab zz", ids) == [
        Token(id=0, piece="[CLS]", text="[CLS]", word=None), Token(id=1, piece="ab", text="ab", word=0),
        Token(id=2, piece="[UNK]", text="[UNK]", word=1),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "expected"), [
    ("global", ("global", None)), ("causal", ("causal", None)), ("window", ("causal", 3)), ("local", ("local", 5)),
    ("other", ("other", None)), ("wide", ("global", None)), ("shifted", ("causal", None)),
])  # fmt: skip
def test_masks_are_named(kind, expected):
    distance = torch.arange(9)[:, None] - torch.arange(9)
    masks = {
        "global": distance == distance, "causal": distance >= 0, "window": (distance >= 0) & (distance < 3),
        "local": distance.abs() <= 2, "other": distance % 2 == 0, "wide": torch.ones(4, 9, dtype=torch.bool),
        "shifted": (distance >= 0)[4:],
    }  # fmt: skip
    assert mask_kind(masks[kind]) == expected


def test_a_learned_sink_leaves_weight_on_no_token(tmp_path, text_tokenizer):
    """With queries of 0 and a sink of log 3, a query of n keys has n / (n + 3) of its attention on them."""
    config = antiphase.AntiphaseConfig(
        attention_type="softmax", sink_logits=True, vocab_size=len(text_tokenizer), **SIZES
    )
    model = antiphase.AntiphaseForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.sinks.fill_(numpy.log(3.0))
    model.save_pretrained(tmp_path / "model")
    text_tokenizer.save_pretrained(tmp_path / "model")
    record = look(LookSettings(name=str(tmp_path / "model"), text="12 x"), tmp_path / "out")
    count = len(record.values["sequences"]["text"]["tokens"])
    expected = numpy.mean([3 / (n + 3) for n in range(1, count + 1)])
    assert [layer.lost for layer in layers_of(record)] == pytest.approx([expected] * 2, abs=0.01)
    assert "layers 0, 1" in remarks(record)[0]


def test_a_text_is_counted_before_weights_are_read(saved, tmp_path):
    _, folder = saved("softmax")
    (tmp_path / "softmax/model.safetensors").unlink()
    with pytest.raises(InputError, match=r"--text has 600 tokens, .*--truncate"):
        look(LookSettings(name=folder, text="1" * 600), tmp_path / "out")


@pytest.mark.parametrize(("kind", "length", "expected"), [("softmax", 8, 8), ("softmax", 512, 300), ("bert", 8, 8)])
def test_a_file_or_input_is_looked_at_from_its_beginning(saved, tmp_path, monkeypatch, kind, length, expected):
    _, folder = saved(kind)
    file = tmp_path / "long.txt"
    file.write_text("12 x Ein " * 99, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    records = [
        look(LookSettings(name=folder, text_file=name, length=length, truncate=True), tmp_path / f"out{number}")
        for number, name in enumerate([str(file), "-"])
    ]
    for record in records:
        sequence = record.values["sequences"]["text"]
        assert len(sequence["tokens"]) == expected
        assert file.read_text().startswith(sequence["text"])
        assert sequence["text"] == "".join(token["text"] for token in sequence["tokens"] if token["word"] is not None)
    with pytest.raises(InputError, match=r"--text-file has \d+ tokens, more than the"):
        look(LookSettings(name=folder, text_file=str(file), length=length), tmp_path / "out")


def test_a_text_that_is_the_name_of_a_file_is_pointed_out(saved, tmp_path):
    _, folder = saved("softmax")
    said = []
    (tmp_path / "a.txt").write_text("12 x", encoding="utf-8")
    look(LookSettings(name=folder, text=str(tmp_path / "a.txt")), tmp_path / "one", say=said.append)
    assert len(said) == 1
    assert "is the name of a file" in said[0]
    assert f"--text-file {tmp_path / 'a.txt'}" in said[0]
    look(LookSettings(name=folder, text="12 x"), tmp_path / "two", say=said.append)
    assert len(said) == 1


@pytest.mark.slow
def test_a_model_trained_here_brings_its_learning_curve(tiny_preset, tmp_path):
    run = load_preset(str(tiny_preset), ["training.seed=3"]).run
    data = prepare(run.data, tmp_path / "run-tokens")
    trained = train(run, data, tmp_path / "run", evaluations=curve_evaluations(run, data))
    known = " ".join(data.tokenizer.convert_ids_to_tokens([5, 9, 6]))
    record = look(LookSettings(name=str(tmp_path / "run"), text=known), tmp_path / "out")
    (found,) = record.values["runs"]
    assert found["seed"] == 3
    assert found["curve"] == trained.values["curve"]
    assert len(found["curve"]) > 4
    with pytest.raises(InputError, match=r"--text holds no word that .*run knows; give .* such as \w+ \w+ \w+$"):
        look(LookSettings(name=str(tmp_path / "run"), text="a harbour at noon"), tmp_path / "other")


@pytest.mark.slow
def test_a_classifier_brings_that_of_its_own_run(tmp_path):
    (tmp_path / "t.txt").write_text("".join(f"{'ab'[n % 2]} {('old', 'new')[n % 2]} boat {n}\n" for n in range(60)))
    request = ClassifySettings(
        train=[str(tmp_path / "t.txt")], models=["transformer", "differential"], settings=["epochs=2", "hidden_size=8"]
    )
    trained = classify(request, tmp_path / "runs").values
    for folder in ("", "transformer-seed0", "differential-seed0"):
        name = folder or trained["best"]
        record = look(LookSettings(name=str(tmp_path / "runs" / folder), text="old boat"), tmp_path / f"look-{folder}")
        (expected,) = [run for run in trained["runs"] if run["folder"] == name]
        (found,) = record.values["runs"]
        assert (found["arm"], found["seed"], found["curve"]) == (expected["model"], 0, expected["curve"])
        assert len(found["curve"]) == 2


@pytest.mark.parametrize(("fields", "message"), [
    ({"text": " \n"}, "--text is empty; give a sentence"), ({"text": "caf\udce9"}, "--text is not valid Unicode"),
    ({"length": 0}, "--length must lie between 1 and 8192, got 0"),
    ({"length": 8193}, "--length must lie between 1 and 8192, got 8193.*antiphase probe"),
    ({"queries": "1:4"}, "--queries and --keys are given together"),
    ({"queries": "1:4", "keys": "4"}, "--keys must be two numbers such as 90:200.* got 4"),
    ({"queries": "1:4", "keys": "3:3"}, "--keys must be two numbers"),
    ({"queries": "0:513", "keys": "0:3"}, "--queries must be two numbers .*at most 512 apart, got 0:513"),
    ({"queries": "0:1", "keys": "0:99"}, "--keys must end at 1 at most, as the text does, got 99"),
    ({"text": SENTENCE, "length": 8}, r"has \d\d tokens, more than the 8 of --length; give --length 512 or --truncate"),
    ({"text": "1" * 600}, "has 600 tokens, more than the 256 of --length; give --length 8192 or --truncate"),
    ({"text": "1" * 9000}, "has 9000 tokens, more than the 256 of --length; give --truncate .*`antiphase probe`"),
    ({"text": "1" * 301, "length": 400}, "--text has 301 tokens, more than the 300 positions .*; give --truncate"),
    ({"text_file": "missing.txt", "text": None}, "--text-file missing.txt: .*give a file of text"),
    ({"text": None}, "--text and --text-file are missing; give one of them"),
    ({"text_file": "a.txt"}, "--text and --text-file are both given; give one of them"),
])  # fmt: skip
def test_unsuitable_models_are_refused_in_one_sentence(saved, tmp_path, fields, message):
    _, folder = saved("softmax")
    with pytest.raises(InputError, match=message):
        look(LookSettings(**{"name": folder, "text": "a", **fields}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


TARGET = "12 Rand\tam Ein"


@pytest.fixture
def pair(tmp_path, text_tokenizer):
    """A factory of encoder–decoder folders with random weights."""

    def save(kind, **fields):
        start = text_tokenizer.pad_token_id
        if kind == "t5":
            config = hf.T5Config(
                vocab_size=len(text_tokenizer), d_model=24, d_kv=6, d_ff=24, num_layers=2, num_heads=4, pad_token_id=0,
                decoder_start_token_id=start,
            )  # fmt: skip
        elif kind == "bart":
            size = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}  # fmt: skip
            config = hf.BartConfig(
                vocab_size=len(text_tokenizer), max_position_embeddings=100, pad_token_id=0, bos_token_id=start,
                eos_token_id=start, decoder_start_token_id=start, **size,
            )  # fmt: skip
        else:
            config = antiphase.SequenceToSequenceConfig(**{
                "attention_type": kind, "vocab_size": len(text_tokenizer), "hidden_size": 24, "num_hidden_layers": 2,
                "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": start, **fields,
            })  # fmt: skip
        torch.manual_seed(4)
        model = hf.AutoModelForSeq2SeqLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight", "Attention.q.weight", "Attention.k.weight")):
                    parameter.mul_(9)
        folder = tmp_path / kind
        model.save_pretrained(folder)
        text_tokenizer.save_pretrained(folder)
        return model, str(folder)

    return save


@pytest.mark.parametrize("kind", ["softmax", "differential", "differential_v2", "bart", "t5"])
def test_a_pair_shows_its_alignment_first_and_both_its_texts(pair, tmp_path, text_tokenizer, kind):
    model, folder = pair(kind)
    look(LookSettings(name=folder, text=SENTENCE, target=TARGET, device="cpu"), tmp_path / "out")
    record = Record.load(tmp_path / "out")
    found = [(entry["queries"], entry["keys"], entry["layer"]) for entry in record.values["maps"]]
    ways = [("target", "source"), ("source", "source"), ("target so far", "target so far")]
    assert found == [(*way, layer) for way in ways for layer in (0, 1)]
    sequences = {name: one["tokens"] for name, one in record.values["sequences"].items()}
    source, target = (text_tokenizer(text, return_tensors="pt")["input_ids"] for text in (SENTENCE, TARGET))
    for name, ids in (("source", source), ("target", target)):
        assert [token["id"] for token in sequences[name]] == ids[0].tolist()
    start = text_tokenizer.pad_token_id
    assert [token["id"] for token in sequences["target so far"]] == [start, *target[0, :-1].tolist()]
    if kind in ("bart", "t5"):
        model.set_attn_implementation("eager")
        outputs = model(input_ids=source, labels=target, output_attentions=True)
        expected = torch.stack(outputs.cross_attentions)[:, 0].detach()
    else:
        expected = model.alignment(source, target)[:, 0]
    layers = layers_of(record)
    for layer, weights in zip(layers[:2], expected, strict=True):
        assert layer.weights.shape == weights.shape
        bound = 0.004 if layer.lam is None else 0.004 * (1 + float(layer.lam.max()))
        numpy.testing.assert_allclose(layer.weights, weights.numpy(), atol=bound)
    assert float(expected.max()) > 0.3
    maps = antiphase.look(model, text_tokenizer, SENTENCE, TARGET)
    torch.testing.assert_close(maps[1], expected[1].float(), atol=1e-3, rtol=0)
    assert (len(maps.queries), maps.part("encoder")[0].shape[-1]) == (target.shape[1], source.shape[1])
    masks = [record.values["masks"][entry["mask"]]["kind"] for entry in record.values["maps"]]
    assert masks == ["global"] * 4 + ["causal"] * 2
    assert [layer.name for layer in layers][::2] == ["0 (target → source)", "0 (source)", "0 (target so far)"]


def test_abilities_that_a_pair_lacks_are_named(pair, saved, tmp_path):
    _, folder = pair("softmax", vocab_size=90, source_vocab_size=4)
    _, whole = pair("differential")
    cases = [
        ({"text": "a"}, r"--target is missing: .*softmax has an encoder and a decoder; give the text that it writes"),
        ({"text": "a", "target": " "}, "--target is empty"),
        ({"text": "a", "target": "caf\udce9"}, "--target is not valid Unicode"),
        (
            {"name": whole, "text": "a", "target": SENTENCE, "length": 8},
            r"--target has \d\d tokens, more than the 8 of --length",
        ),
        ({"text": "a", "target": "b"}, r"--text has the token id \d+, but .*softmax knows 4 on this side"),
    ]
    for fields, message in cases:
        with pytest.raises(InputError, match=message):
            look(LookSettings(**{"name": folder, **fields}), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    _, folder = saved("differential_v2")
    with pytest.raises(
        InputError, match=r"--target is only for encoder–decoders; .*differential_v2 has no encoder and decoder"
    ):
        look(LookSettings(name=folder, text="a", target="b"), tmp_path / "out")
