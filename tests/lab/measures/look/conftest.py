"""Records of ``antiphase look``."""

import itertools
from urllib.parse import urlencode

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.measures.look.map_codes import encode
from antiphase.lab.measures.look.page import write_look
from antiphase.lab.measures.look.tables import layers_of
from support.browser import CHROMIUM, DESKTOP

HOSTILE = (
    "</script><img src=x onerror=document.title='run'>", "<b>bold</b>", "&lt;", "%{z}", "<a href='javascript:0'>a</a>",
    "$x^2$", '"', "\u2028", "\n", "\t", "日[1/3]", "", " ",
)  # fmt: skip


def make_look(
    *,
    layers=2,
    heads=3,
    differential=True,
    words=("The", " cat", " sat", ".", "\n", "No", " dog"),
    target=None,
    causal=True,
    spread=2.0,
    model="runs/model",
):
    """A record of ``antiphase look``; ``target`` makes its words the queries and those of ``words`` the keys."""
    generator = numpy.random.default_rng(7)
    rows, columns = len(words if target is None else target), len(words)
    visible = (
        numpy.tril(numpy.ones((rows, columns), bool))
        if causal and target is None
        else numpy.ones((rows, columns), bool)
    )
    maps, arrays = [], {"masks.0": visible, "positions": generator.uniform(-1, 1, (50, 128)).astype(numpy.float32)}
    each = 2 if differential else 1
    for layer in range(layers):
        scores = generator.normal(0, spread, (heads, each, rows, columns))
        raised = numpy.exp(scores) * visible
        codes, scales = encode((raised / raised.sum(-1, keepdims=True)).astype(numpy.float32))
        arrays |= {f"maps.{layer}.codes": codes, f"maps.{layer}.scales": scales}
        if differential:
            arrays[f"maps.{layer}.lambda"] = generator.uniform(0.2, 0.9, (heads, rows)).astype(numpy.float32)
        maps.append(
            {
                "layer": layer, "heads": heads, "maps_per_head": each, "mask": 0, "arrays": f"maps.{layer}",
                "queries": "text" if target is None else "target", "keys": "text",
            }
        )  # fmt: skip
    listed = {"text": words} if target is None else {"target": target, "text": words}
    sequences = {
        name: {
            "text": "".join(texts),
            "tokens": [
                {"id": 100 + place, "piece": text, "text": text, "word": place // 2 if place else None}
                for place, text in enumerate(texts)
            ],
        }
        for name, texts in listed.items()
    }
    kind = "causal" if causal and target is None else "global"
    return Record(
        kind="look",
        values={
            "model": model, "model_type": "antiphase", "attention_type": "differential", "sequences": sequences,
            "maps": maps, "masks": [{"array": "masks.0", "kind": kind, "window": None}], "runs": [],
        },
        command=f"antiphase look {model}", created="2026-01-02T03:04:05+00:00", environment={}, arrays=arrays,
    )  # fmt: skip


def make_pair(**fields):
    """A record of an encoder–decoder: maps from target to source, and those of each side."""
    words, target = ("the", "old", "boat", "sails", "."), ("das", "boot", "alte", ".")
    sides = {
        ("target", "source"): make_look(words=words, target=target, **fields),
        ("source", "source"): make_look(words=words, causal=False, **fields),
        ("target so far", "target so far"): make_look(words=("<s>", *target[:-1]), **fields),
    }
    cross, source, so_far = sides.values()
    values = {
        **cross.values, "maps": [], "masks": [],
        "sequences": {
            "source": source.values["sequences"]["text"], "target": cross.values["sequences"]["target"],
            "target so far": so_far.values["sequences"]["text"],
        },
    }  # fmt: skip
    arrays = {"positions": cross.arrays["positions"]}
    for number, ((queries, keys), record) in enumerate(sides.items()):
        arrays[f"masks.{number}"] = record.arrays["masks.0"]
        values["masks"].append({**record.values["masks"][0], "array": f"masks.{number}"})
        for entry in record.values["maps"]:
            name = f"maps.{len(values['maps'])}"
            values["maps"].append({**entry, "queries": queries, "keys": keys, "mask": number, "arrays": name})
            arrays |= {
                key.replace(entry["arrays"], name): array
                for key, array in record.arrays.items()
                if key.startswith(f"{entry['arrays']}.")
            }
    return Record(
        kind="look", values=values, command=cross.command, created=cross.created, environment={}, arrays=arrays
    )


@pytest.fixture(scope="session")
def pair_record():
    return make_pair


@pytest.fixture(scope="session")
def look_record():
    return make_look


@pytest.fixture(scope="session")
def hostile_words():
    return HOSTILE


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open the page of records, offline; what the console says or the page asks for fails the test at its end."""
    heard = []
    names = (f"page{number}.html" for number in itertools.count())

    def opened(*records, at=None, **options):
        """``at``: the end of the address; by default that of the first head."""
        path = write_look(records, tmp_path / next(names))
        at = urlencode({"layer": layers_of(records[0])[0].name, "head": 0}) if at is None else at
        context = browser.new_context(**(options or DESKTOP))
        context.set_offline(True)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on(
            "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or heard.append(request.url)
        )
        page.goto(f"{path.as_uri()}#{at}")
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield opened
    assert heard == []
