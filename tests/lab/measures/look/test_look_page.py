"""The page of attention maps, without a browser: whole, escaped, small enough, and the record's numbers."""

import base64
import copy
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy
import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.look import Look, StoredMask
from antiphase.lab.measures.look.page import look_page, write_look
from antiphase.lab.measures.look.tables import layer_table, layers_of, mask_words, piece_counts, remarks

LARGEST = 8_000_000
"""Bytes of a page for 12 layers of 12 heads on 256 tokens."""


class Page(HTMLParser):
    """Scripts by id, tags, and the text outside scripts."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.scripts = {}
        self.tags = []
        self.text = ""
        self.inside = None
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = str(dict(attrs).get("id") or "code") if tag == "script" else None
        if tag == "script":
            self.scripts[str(self.inside)] = ""

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside is None:
            self.text += data
        else:
            self.scripts[self.inside] += data


def blob(page, name):
    return gzip.decompress(base64.b85decode(page.scripts[name].replace(",", "<")))


@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_the_arrays_on_the_page_are_those_of_the_record(look_record, differential, causal):
    record = look_record(differential=differential, causal=causal)
    page = Page(look_page([record]))
    (model,) = json.loads(page.scripts["meta"])["models"]
    assert len(model["layers"]) == 2
    for entry, layer in zip(model["layers"], layers_of(record), strict=True):
        heads, each, rows, columns = layer.codes.shape
        content = blob(page, entry["blob"])
        numbers = heads * each * rows
        scales = numpy.frombuffer(content, "<f4", numbers)
        numpy.testing.assert_array_equal(scales.reshape(heads, each, rows), layer.scales)
        if layer.lam is not None:
            numpy.testing.assert_array_equal(
                numpy.frombuffer(content, "<f4", heads * rows, 4 * numbers).reshape(heads, rows), layer.lam
            )
            numbers += heads * rows
        codes = numpy.frombuffer(content, numpy.uint8, -1, 4 * numbers)
        numpy.testing.assert_array_equal(codes.reshape(heads, each, -1), layer.codes[..., layer.visible])
        bits = numpy.frombuffer(blob(page, model["masks"][entry["mask"]]["blob"]), numpy.uint8)
        numpy.testing.assert_array_equal(bits.reshape(rows, columns), layer.visible)
        assert codes.size == heads * each * (28 if causal else 49), "of 7 tokens a triangle is stored"
    assert blob(page, "model0-positions") == record.arrays["positions"].tobytes()


def test_only_two_scripts_may_run_and_nothing_is_loaded(look_record, hostile_words):
    source = look_page([look_record(words=hostile_words, model=hostile_words[0])])
    page = Page(source)
    (policy,) = [str(tag["content"]) for name, tag in page.tags if name == "meta" and "http-equiv" in tag]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "http" not in policy
    ran = [page.scripts["code"], blob(page, "plotly").decode()]
    assert re.findall(r"'sha256-([^']+)'", policy) == [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in ran
    ]
    assert "</script" not in page.scripts["code"].lower()
    assert "<!--" not in page.scripts["code"]
    assert not any("<" in page.scripts[name] for name in page.scripts if name != "code")
    others = [tag for name, tag in page.tags if name == "script" and "type" in tag]
    assert {tag["type"] for tag in others} == {"application/json", "text/plain"}
    assert sum(name == "script" for name, _ in page.tags) == len(others) + 1
    for name, attributes in page.tags:
        assert name not in ("img", "link", "iframe", "object", "embed"), name
        assert not {"src", "srcset", "data"} & attributes.keys()
        assert attributes.get("href", "data:text/csv;").startswith("data:text/csv;")
        assert not any(key.startswith("on") for key in attributes)


def test_text_of_others_is_text(look_record, hostile_words):
    page = Page(look_page([look_record(words=hostile_words, model="<b>model</b>")]))
    for word in hostile_words[:6]:
        assert word in page.text
    assert "<b>model</b>" in page.text
    (model,) = json.loads(page.scripts["meta"])["models"]
    assert [token["text"] for token in model["sequences"]["text"]] == list(hostile_words)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.3, 0.7, 1.0, 3.0])
def test_a_page_of_12_layers_12_heads_and_256_tokens_stays_small(look_record, spread):
    """Scores of independent noise compress worst: attention of trained models repeats itself."""
    words = [f"word{number}" for number in range(256)]
    record = look_record(layers=12, heads=12, differential=False, words=words, spread=spread)
    assert 3_500_000 < len(look_page([record]).encode()) < LARGEST


@pytest.mark.slow
def test_a_differential_model_of_equal_size_is_as_small(look_record):
    """12 maps a layer are 6 heads."""
    words = [f"word{number}" for number in range(256)]
    record = look_record(layers=12, heads=6, words=words, spread=1.0)
    assert len(look_page([record]).encode()) < LARGEST


def test_equal_records_give_equal_bytes(look_record, tmp_path):
    record = look_record()
    first = write_look([record], tmp_path / "a.html").read_bytes()
    assert first == write_look([copy.deepcopy(record)], tmp_path / "b.html").read_bytes()


def test_pieces_and_words_stand_on_the_page(look_record):
    record = look_record()
    assert piece_counts(Look.of(record).sequences["text"].tokens) == (6, 4)
    text = " ".join(Page(look_page([record])).text.split())
    assert "4 words in 6 pieces, 1.50 a word" in text
    for token in record.values["sequences"]["text"]["tokens"]:
        token["word"] = None
    assert piece_counts(Look.of(record).sequences["text"].tokens) == (7, None)
    assert "7 pieces; this tokenizer does not tell" in Page(look_page([record])).text


def test_the_table_of_layers_is_that_of_the_maps(look_record):
    record = look_record()
    table = layer_table(record)
    assert [column.name for column in table.columns][:4] == ["Layer", "Heads", "Mask", "On the first token"]
    for row, layer in zip(table.rows, layers_of(record), strict=True):
        first, second = layer.maps[:, 0].astype(float), layer.maps[:, 1].astype(float)
        weights = first - record.arrays[f"maps.{layer.layer}.lambda"][..., None] * second
        share = numpy.abs(weights) / numpy.abs(weights).sum(-1, keepdims=True)
        distance = numpy.abs(numpy.arange(7)[:, None] - numpy.arange(7))
        seen = share[share > 0]
        expected = [
            share[:, :, 0].mean(), -(seen * numpy.log(seen)).sum() / (3 * 7), (share * distance).sum() / (3 * 7),
            record.arrays[f"maps.{layer.layer}.lambda"].mean(), share[weights < 0].sum() / (3 * 7),
        ]  # fmt: skip
        assert row[:3] == [layer.layer, 3, "causal"]
        numpy.testing.assert_allclose(row[3:8], expected, rtol=1e-4)
        seen_by = 7 - numpy.arange(7)
        sinks = (share.sum(1) / seen_by > 5 / 7) & (seen_by >= 7 / 5)
        numpy.testing.assert_allclose(row[8], (share * sinks[:, None])[..., 1:].sum() / (3 * 7), rtol=1e-4, atol=1e-7)
    plain = layer_table(look_record(differential=False, target=["ein", "Hund"]))
    assert [column.name for column in plain.columns] == [
        "Layer", "Heads", "Mask", "On the first token", "Entropy, nats", "On other sinks",
    ]  # fmt: skip


def test_tokens_that_are_sinks_are_named_with_their_heads(look_record):
    record = look_record(differential=False)
    (codes,) = [
        name for name in record.arrays if name.startswith("maps.0.") and record.arrays[name].dtype == numpy.uint8
    ]
    record.arrays[codes][:2] = 0
    record.arrays[codes][:2, :, 2:, 2] = 255  # two heads whose queries see the third token alone from there on
    table = layer_table(record)
    words = {column.name: value for column, value in zip(table.columns, table.rows[0], strict=True)}
    name = record.values["sequences"]["text"]["tokens"][2]["text"]
    assert words["Sinks (heads)"].startswith(f"{name!r} (2)")
    assert words["On other sinks"] > 2 / 3 * 5 / 7 * 0.9


def test_a_sink_and_a_second_map_that_is_added_are_named(look_record):
    """Half of each row of layer 1 is on no token; λ is below 0 in layer 0."""
    record = look_record()
    assert remarks(record) == []
    assert "On no token" not in [column.name for column in layer_table(record).columns]
    record.arrays["maps.1.scales"] *= 0.5
    record.arrays["maps.0.lambda"][1, 2] = -0.1
    sink, added = remarks(record)
    assert sink.startswith("In layer 1 a query's weights do not sum to one: on average 50 % of its attention is on no")
    assert added == "In layer 0 λ is below 0 in places, where the second map is added, not subtracted."
    table = layer_table(record)
    assert table.note.endswith(f"{sink} {added}")
    place = [column.name for column in table.columns].index("On no token")
    assert [row[place] for row in table.rows] == [None, pytest.approx(0.5, abs=0.01)]
    text = " ".join(Page(look_page([record])).text.split())
    assert text.index(sink) < text.index("The text"), "before the pictures"
    assert added in text


def test_masks_have_words(look_record):
    look = Look.of(look_record())
    causal = StoredMask(array="masks.0", kind="causal", window=4)
    assert mask_words(look, causal) == "causal, window 4"
    assert mask_words(replace(look, segment=3), causal) == "causal, window 4 segments"
    assert mask_words(look, StoredMask(array="masks.0", kind="other", window=None)) == "of its own kind"


def test_a_record_without_its_arrays_is_refused(look_record, tmp_path):
    record = look_record()
    del record.arrays["maps.1.codes"]
    with pytest.raises(InputError, match=r"lacks the array maps\.1\.codes.*\.safetensors"):
        look_page([record])
    record = look_record()
    record.arrays["maps.1.scales"] = record.arrays["maps.1.scales"][:2]
    with pytest.raises(InputError, match=r"maps\.1\.scales has shape \(2, 2, 7\), expected \(3, 2, 7\)"):
        look_page([record])
    with pytest.raises(InputError, match="records of antiphase look only"):
        write_look([Record(kind="train", values={})], tmp_path / "a.html")
    with pytest.raises(InputError, match=r"is a folder; name a file, for example .*report\.html"):
        write_look([look_record()], tmp_path)
