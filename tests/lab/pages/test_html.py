"""The page is valid, self-contained, escaped, complete and the same every time."""

import base64
import copy
import json
import re
from html.parser import HTMLParser

import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures import retrieval_presentation
from antiphase.lab.measures.perplexity.presentation import losses
from antiphase.lab.pages import summary, tables, write_report
from antiphase.lab.pages.presentation import Presentation, by_model
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.compare import tables as trained
from antiphase.lab.studies.compare.reading import comparison_of, retrieval_of
from support.paths import ROOT

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting; collects text, tables, tags and attributes."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = []
        self.text = ""
        self.rows = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def write(tmp_path, *records):
    return Page(write_report(records, tmp_path / "report.html"))


@pytest.fixture(scope="module")
def both(both_on_a_page):
    """The page of the plain and the awkward record, and its source."""
    return Page(both_on_a_page), both_on_a_page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_table_stands_on_the_page(comparison, both):
    page, _ = both
    found = [
        *summary.main_tables(comparison),
        *(
            trained.comparison(comparison_of(comparison)),
            trained.runs_table(comparison_of(comparison)),
            trained.curve_table(comparison_of(comparison)),
        ),
        *(
            retrieval_presentation.needle_summary(retrieval_of(comparison)),
            retrieval_presentation.needle_cells(retrieval_of(comparison)),
            losses(comparison_of(comparison).perplexity),
        ),
        *(
            retrieval_presentation.allocation(retrieval_of(comparison)),
            retrieval_presentation.allocation(retrieval_of(comparison), by_layer=True),
        ),
        *(tables.settings(comparison), tables.environment(comparison), tables.provenance(comparison)),
        trained.by_layer(comparison_of(comparison), lambda run: run.gradient_norms, ""),
    ]
    for table in found:
        assert [column.name for column in table.columns] in page.rows
        assert all(row in page.rows for row in table.text()), table.title
    captions = page.text.count("Learning curves (78 rows)")
    assert captions == 1, "a table that stands behind a figure is not repeated in the details"


def test_the_verdict_and_a_picture_come_before_the_tables(both):
    _, source = both
    assert source.index('<p class="verdict"') < source.index("<figure") < source.index("<caption>Headline")
    assert (
        source.index("first-query accuracy is") < source.index("<figure") < source.index("reaches the guess rate (12.5")
    )


def test_sentences_and_verdict_are_verbatim(comparison, awkward, both):
    page, _ = both
    for record in (comparison, awkward):
        for entry in record.values["comparison"]:
            assert entry["sentence"] in page.text
    assert comparison.values["verdict"] in page.text


def test_text_of_others_is_escaped(both):
    page, _ = both
    assert not page.attributes("script")
    assert not page.attributes("b")
    assert '<script>alert("x")</script>' in page.text
    assert "<b>$x^ & [red]'s</b>" in page.text


def test_nothing_is_loaded_and_nothing_runs(both):
    page, source = both
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "data"):
                assert str(value).startswith(("data:image/", "#", "data:text/csv;")), value
    assert "url(" not in source
    assert "@import" not in source
    for content in re.findall(r'data:image/svg\+xml;base64,([^"]+)"', source):
        drawing = base64.b64decode(content).decode()
        assert not re.search(r'href="(?!#)', drawing)
        assert "<script" not in drawing
    assert len(source) < 3_000_000


def test_figures_and_tables_are_accessible(both):
    page, _ = both
    assert len(page.attributes("img")) == 5 + 4
    assert all(attributes.get("alt") for attributes in page.attributes("img"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.attributes("th"))
    (html,) = page.attributes("html")
    assert html["lang"] == "en"
    anchors = [value for _, attributes in page.tags if (value := attributes.get("id"))]
    assert len(set(anchors)) == len(anchors)
    links = page.attributes("a")
    assert {link["href"].removeprefix("#") for link in links if "download" not in link} == set(anchors)


def test_every_table_and_every_figure_can_be_saved(both):
    page, _ = both
    files = {"csv": [], "svg": [], "png": []}
    for link in page.attributes("a"):
        if "download" in link:
            files[link["download"].rpartition(".")[2]].append(link["href"])
    contents = [base64.b64decode(link.removeprefix("data:text/csv;base64,")) for link in files["csv"]]
    assert len(contents) == len(page.attributes("table"))
    assert any(b"Seed" in content for content in contents)
    assert [*files["svg"], *files["png"]] == sorted(
        (image["src"] for image in page.attributes("img")), key=lambda source: not source.startswith("data:image/svg")
    )
    assert all(link.startswith("data:image/png;") for link in files["png"])


def test_the_map_says_which_head_it_shows(both):
    page, _ = both
    assert re.search(r"softmax: layer 1, head 1, counted from 0, with 0\.\d{3} of \|weight\| on the answer", page.text)


@pytest.mark.slow
def test_equal_records_give_equal_bytes(comparison, tmp_path):
    first = write_report([comparison], tmp_path / "first.html").read_bytes()
    second = write_report([copy.deepcopy(comparison)], tmp_path / "second.html").read_bytes()
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("part", ["runs", "needles", "allocation", "attention_map", "comparison", "parameters"])
def test_any_part_may_be_missing(comparison, tmp_path, part):
    del comparison.values[part]
    comparison.values |= {"runs": []} if part == "attention_map" else {"attention_map": {}}  # draw less, test faster
    write(tmp_path, comparison)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("train", {"final": {"loss": 2.5, "accuracy": 0.25}, "curve": [{"step": 1, "loss": 2.5}]}, "2.500"),
        (
            "evaluate-perplexity",
            {"rows": [{"sequences": 80, "loss": 2.5, "perplexity": 12.18, "tokens": 51200}]},
            "12.18",
        ),
        ("unheard-of", {"sinks": {"count": 17}, "list": [1]}, "17"),
        ("unheard-of", {}, "have no layout of their own"),
    ],
)
def test_other_kinds(tmp_path, kind, values, expected):
    page = write(tmp_path, Record(kind=kind, values=values))
    assert expected in page.text
    if kind == "unheard-of":
        assert "have no layout of their own" in page.text


def test_evaluations_of_one_model(comparison, tmp_path):
    summary = [row for row in comparison.values["needles"]["summary"] if row["arm"] == "softmax"]
    summary = [{key: row[key] for key in row if key not in ("arm", "trained")} for row in summary if row["trained"]]
    rows = [row for row in comparison.values["allocation"] if row["arm"] == "softmax" and row["trained"]]
    rows = [{key: row[key] for key in row if key not in ("arm", "seed", "trained")} for row in rows[:3]]
    page = write(
        tmp_path,
        Record(kind="evaluate-needles", values={"cells": [], "summary": summary, "guess_rate": 0.125}),
        Record(kind="evaluate-allocation", values={"rows": rows}),
    )
    assert len(page.attributes("img")) == 2
    assert "Needle accuracy by depth" in page.text
    assert "Attention by span" in page.text


def test_wrong_use_is_one_clear_error(comparison, tmp_path):
    with pytest.raises(InputError, match="at least one record"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match=r"is a folder.*report\.html"):
        write_report([comparison], tmp_path)


@pytest.mark.slow
def test_a_page_can_be_made_of_the_first_committed_record_of_every_kind(tmp_path):
    """Without the arrays, which are not committed."""
    records = {}
    for path in sorted((ROOT / "records").rglob("*.json")):
        if "kind" in json.loads(path.read_text(encoding="utf-8")):  # the files of records/evidence are no records
            record = Record.load(path)
            records.setdefault(record.kind, record)
    assert len(records) > 20
    for kind, record in records.items():
        assert kind in write_report([record], tmp_path / f"{kind}.html").read_text(encoding="utf-8")


def test_records_of_several_models_have_sections_of_their_own_names_and_no_settings_of_training(tmp_path):
    data = {"source": "text", "sequence_length": 32, "needle_share": 0.7, "keys": 64, "needles": 8}
    rows = [{"windows": 2}]
    records = [
        Record(kind="evaluate-x", values={"model": name, "rows": rows}, config={"data": data})
        for name in ("one", "two")
    ]
    text = write_report(records, tmp_path / "page.html").read_text()
    assert all(f'aria-label="evaluate-x, {name}"' in text for name in ("one", "two"))
    assert "data.sequence_length" in text
    assert not any(f"data.{name}" in text for name in ("needle_share", "keys", "needles"))


def test_models_measured_in_the_same_way_stand_in_one_table(tmp_path):
    def measured(model, loss, kind="evaluate-perplexity"):
        rows = [{"sequences": 2, "loss": loss, "perplexity": 2.0, "tokens": 8}]
        return Record(kind=kind, values={"model": model, "rows": rows})

    records = [measured("a/one", 1.25), measured("b/two", 2.5), measured("b/two", 9.0, "evaluate-x")]
    (joint,) = summary.side_by_side(records)
    assert joint.title == "Perplexity: side by side"
    assert [row[:3] for row in joint.rows] == [["one", 2, 1.25], ["two", 2, 2.5]]
    assert joint.title in write_report(records, tmp_path / "page.html").read_text()
    assert [row[0] for row in summary.side_by_side([measured("a/m", 1.0), measured("b/m", 1.0)])[0].rows] == [
        "a/m",
        "b/m",
    ]
    assert summary.side_by_side([measured("a", 1.25), measured("a", 2.5)]) == []  # of one model: not of several


@pytest.mark.parametrize(
    "name",
    ["real-model/document-gain", "real-model/hallucination", "classify-cr", "reproduce/ablations", "reproduce/scaling"],
)
def test_no_two_columns_of_a_table_have_one_name(name):
    """Readers of CSV files and frames tell columns apart by them."""
    record = Record.load(ROOT / "records" / f"{name}.json")
    further = summary.presentation_of(record.kind).details(record)
    for table in (*summary.main_tables(record), *filter(None, further)):
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.title


def test_only_models_measured_in_the_same_way_stand_in_one_table():
    def measured(model, **config):
        data = {"source": "text", "sequence_length": config.get("length") or 512, "tokenizer": model, "needles": 8}
        rows = [{"sequences": 2, "loss": 1.5, "perplexity": 2.0, "tokens": 8}]
        config = {"name": model, "data": data, "device": model, "dtype": model, "paths": ["book"], **config}
        return Record(kind="evaluate-perplexity", values={"model": model, "rows": rows}, config=config)

    def joined(*records):
        alike = [[row[0] for row in table.rows] for table in summary.side_by_side(records)]
        assert [list(by_model(record)) for record in summary.compared(records)] == alike
        return alike

    one, two = measured("one"), measured("two")
    two.config["data"] |= {"needles": 4, "needle_share": 0.5}  # of training
    assert joined(one, two) == [["one", "two"]]
    for same in ({"against": ["three"]}, {"a_later_setting": False}, {"length": 512}):
        assert joined(one, measured("two", **same)) == [["one", "two"]]
    shares = [measured("one"), measured("two")]
    for record, share in zip(shares, (0.05, 0.1), strict=True):
        record.config["data"] |= {"validation": ["book"], "validation_share": share}  # which cuts nothing off
    assert joined(*shares) == [["one", "two"]]
    for other in (measured("two", paths=["code"]), measured("two", length=128), measured("two", samples=9)):
        assert joined(one, other) == []
    short = [measured("three", length=128), measured("four", length=128)]
    assert joined(one, *short, two) == [["one", "two"], ["three", "four"]]
    two.config["data"]["sequence_length"] = 128  # of its own run
    assert joined(one, two) == []


def test_each_row_of_a_joint_table_names_its_model(monkeypatch):
    def measured(model, column, *cells):
        table = Table(title="Any", columns=[Column(column)], rows=[[cell] for cell in cells])
        monkeypatch.setitem(tables_of, model, table)
        return Record(kind="evaluate-x", values={"model": model})

    tables_of = {}
    shown = Presentation(introduction="", tables=lambda record: [tables_of[record.values["model"]]])
    monkeypatch.setattr(summary, "presentation_of", lambda kind: shown)

    def joined(*records):
        (joint,) = summary.side_by_side(records)
        assert joint.columns[0].name == "Model"
        return joint.rows

    states = [measured(f"a/{model}", "State", "trained", "untrained") for model in ("one", "two")]
    assert joined(*states) == [[model, state] for model in ("one", "two") for state in ("trained", "untrained")]
    alike = [measured(f"{folder}/m", "Model", "m", "m", "the paper") for folder in ("a", "b")]
    assert joined(*alike) == [["a/m"], ["a/m"], ["the paper"], ["b/m"], ["b/m"], ["the paper"]]
