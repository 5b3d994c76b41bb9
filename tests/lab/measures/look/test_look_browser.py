"""The interactive page in a browser: it loads without an error; mouse and keyboard find the record's numbers."""

import re

import numpy
import pytest

from antiphase.lab.measures.look.page import framed, look_page, write_look
from antiphase.lab.measures.look.tables import layers_of, sinks_of
from support.browser import DESKTOP, IN_BROWSER, WAYS, drawn, words

pytestmark = IN_BROWSER


def difference(layer, head, which):
    return layer.weights[head] if which == "difference" else layer.maps[head, {"first": 0, "second": 1}[which]]


def shown_number(weight):
    """As the page writes it."""
    size = abs(weight)
    digits = "0" if size == 0 else "<0.0005" if size < 0.0005 else f"{size:.3f}"
    return ("−" if weight < 0 else "") + digits


def number_in(text):
    return float(re.findall(r"−?\d+\.\d+|−?\b0\b", text)[-1].replace("−", "-"))


def test_the_maps_of_a_head_and_of_other_models_stand_beside_each_other(show, look_record):
    records = [look_record(layers=3), look_record(differential=False, layers=1, heads=2, model="runs/other")]
    page = show(*records, at="layer=2&head=1")
    titles = page.evaluate("document.getElementById('beside').layout.annotations.map((one) => one.text)")
    own, other = (layers_of(record) for record in records)
    assert [title.split(": ")[1] for title in titles] == ["first map", "second map", "difference", "map"]
    for trace, expected in enumerate((*own[2].maps[1], own[2].weights[1], other[0].weights[1])):
        found = drawn(page, "beside", trace)
        assert numpy.allclose(found[~numpy.isnan(found)], expected[~numpy.isnan(found)], atol=1e-3)
    page.locator("#head").select_option("0")
    found = drawn(page, "beside", 2)
    assert numpy.allclose(found[~numpy.isnan(found)], own[2].weights[0][~numpy.isnan(found)], atol=1e-3)
    records[1].values["maps"][0]["layer"] = 1  # found by its number, where there is one
    page = show(*records, at="model=1&layer=1&head=1")
    found = drawn(page, "beside", 2)
    assert numpy.allclose(found[~numpy.isnan(found)], own[1].weights[1][~numpy.isnan(found)], atol=1e-3)
    assert show(records[1]).locator("#beside-part").is_hidden()


@pytest.mark.parametrize("way", WAYS)
def test_it_fits_the_screen_and_can_be_read(show, look_record, way):
    page = show(look_record(words=[f"word{number} " for number in range(60)]), **WAYS[way])
    assert page.evaluate("document.documentElement.scrollWidth") <= WAYS[way]["viewport"]["width"]
    assert page.locator("#error").is_hidden()
    assert page.locator("#viewer").get_attribute("aria-busy") == "false"
    for part in ("map", "beside", "overview", "heads", "masks", "positions"):
        assert page.locator(f"#{part} .main-svg").first.is_visible()
        box = page.locator(f"#{part} .plot-container").bounding_box()
        assert box["width"] <= WAYS[way]["viewport"]["width"]
        assert box["height"] > 100
    assert page.locator("#curves-part").is_hidden()
    light = contrast(page, "body", "body")
    assert light > 7
    for selector in (".note", ".pieces small", "label"):
        assert contrast(page, selector, "body") > 4.5, selector
    label = page.evaluate("getComputedStyle(document.querySelector('#map .xtick text, #map .ytick text')).fill")
    assert ratio(label, page.evaluate("getComputedStyle(document.body).backgroundColor")) > 7


def contrast(page, front, back):
    colours = page.evaluate(
        "([front, back]) => [getComputedStyle(document.querySelector(front)).color, "
        "getComputedStyle(document.querySelector(back)).backgroundColor]",
        [front, back],
    )
    return ratio(*colours)


def ratio(one, other):
    """Contrast of two colours (WCAG 2)."""

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(numpy.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_tokens_stay_readable_on_their_shade(show, look_record):
    for options in (DESKTOP, WAYS["dark"]):
        page = show(look_record(spread=6.0), **options)
        text, under = page.evaluate(
            "['body', '#queries'].map((part) => getComputedStyle(document.querySelector(part)))"
            ".map((style, index) => (index ? style.backgroundColor : style.color))"
        )
        base = numpy.array([int(part) for part in re.findall(r"\d+", under)[:3]])
        shades = page.evaluate(
            "Array.from(document.querySelectorAll('#queries span'), (span) => span.style.background)"
        )
        strong = [shade for shade in shades if shade]
        assert len(strong) > 3
        for shade in strong:
            *colour, alpha = [float(part) for part in re.findall(r"[\d.]+", shade)][:4]
            mixed = numpy.rint(alpha * numpy.array(colour) + (1 - alpha) * base).astype(int)
            assert ratio(text, f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})") > 4.5, shade


def test_every_map_of_every_head_is_the_records(show, look_record):
    record = look_record()
    page = show(record)
    for index, layer in enumerate(layers_of(record)):
        page.select_option("#layer", str(index))
        for head in range(3):
            page.select_option("#head", str(head))
            for which in ("first", "second", "difference"):
                page.check(f"input[value={which}]")
                found = drawn(page)
                numpy.testing.assert_array_equal(numpy.isnan(found), ~layer.visible)
                numpy.testing.assert_allclose(
                    found[layer.visible], difference(layer, head, which)[layer.visible], atol=1e-6
                )
            low, high = layer.lam[head].min(), layer.lam[head].max()
            assert words(page, "#lambda") == f"λ from {low:.3f} to {high:.3f} by token"
    assert (found[layer.visible] < 0).any(), "differences have signs"


def test_hovering_shows_the_weight(show, look_record):
    record = look_record()
    layer = layers_of(record)[0]
    page = show(record)
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map .plot .hm, #map .heatmaplayer").first.bounding_box()
    side = box["width"] / 7, box["height"] / 7
    for query, key in ((6, 2), (4, 0), (5, 5)):
        page.mouse.move(box["x"] + (key + 0.4) * side[0], box["y"] + (query + 0.4) * side[1])
        page.mouse.move(box["x"] + (key + 0.5) * side[0], box["y"] + (query + 0.5) * side[1])
        hover = page.wait_for_selector("#map .hoverlayer .hovertext")
        page.wait_for_function(
            "text => document.querySelector('#map .hoverlayer').textContent.includes(text)", arg=f"query {query} "
        )
        text = page.locator("#map .hoverlayer").text_content()
        assert hover is not None
        assert f"key {key} " in text
        assert text.endswith(shown_number(float(layer.weights[0, query, key])))
    token = page.locator("#queries-2")
    assert token.get_attribute("title") == f"{shown_number(float(layer.weights[0, 6, 2]))} · token 2"


@pytest.mark.essential
def test_clicks_choose(show, look_record):
    record = look_record()
    layers = layers_of(record)
    page = show(record)
    page.locator("#overview").scroll_into_view_if_needed()
    box = page.locator("#overview .heatmaplayer").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / 3, box["y"] + box["height"] * 0.75)
    page.wait_for_function("document.getElementById('layer').value === '1'")
    assert page.input_value("#head") == "2"
    assert "Layer 1, head 2" in words(page, "#map-title")
    page.click("#queries-4")
    assert words(page, "#said").startswith("Token 4 “↵” looks at")
    best = int(numpy.abs(layers[1].weights[2, 4]).argmax())
    row = page.locator("#strongest tbody tr").first
    assert row.locator("th").inner_text().startswith(f"{best} ")
    assert row.locator("td").first.inner_text() == shown_number(float(layers[1].weights[2, 4, best]))
    assert page.locator("#strongest tbody tr").count() == 5, "what the mask hides is not listed"
    page.check("input[value=to]")
    column = layers[1].weights[2, :, 4]
    assert int(numpy.abs(column).argmax()) == int(page.locator("#strongest th").first.inner_text().split()[0])
    assert "is looked at by" in words(page, "#said")
    page.locator("#heads").scroll_into_view_if_needed()
    box = page.locator("#heads .heatmaplayer").nth(1).bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.8 * box["height"])
    page.wait_for_function("document.getElementById('head').value === '1'")


def test_the_keyboard_reaches_everything(show, look_record):
    record = look_record()
    layers = layers_of(record)
    page = show(record)
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
    order = [name for name in reached if name in ("layer", "head", "map", "side", "queries", "measure", "overview")]
    assert list(dict.fromkeys(order)) == ["layer", "head", "map", "side", "queries", "measure", "overview"]
    page.focus("#queries")
    for key, chosen in (("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("End", 6), ("ArrowLeft", 5)):
        page.keyboard.press(key)
        assert page.locator("#queries").get_attribute("aria-activedescendant") == f"queries-{chosen}"
        assert page.locator("#queries .chosen").get_attribute("id") == f"queries-{chosen}"
        assert page.locator("#queries [aria-selected=true]").count() == 1
    page.focus("div#map")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert words(page, "#cell").startswith("Query 4 “↵”, key 3 “.”: ")
    assert number_in(words(page, "#cell")) == pytest.approx(layers[0].weights[0, 4, 3], abs=6e-4)
    page.keyboard.press("End")
    assert words(page, "#cell").endswith("key 6 “ dog”: hidden by the mask.")
    page.focus("#overview")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert (page.input_value("#layer"), page.input_value("#head")) == ("1", "1")
    assert page.locator("#overview-said").get_attribute("aria-live") == "polite"
    page.focus("#head")
    page.keyboard.press("ArrowDown")
    assert page.input_value("#head") == "2"
    page.focus("#queries")
    outline = page.evaluate("getComputedStyle(document.getElementById('queries')).outlineStyle")
    assert outline == "solid"


def test_the_overview_is_the_mean_over_queries(show, look_record):
    record = look_record()
    page = show(record)
    layers = layers_of(record)
    distance = numpy.abs(numpy.arange(7)[:, None] - numpy.arange(7))
    for measure, value in {
        "first": lambda layer: layer.shares[:, :, 0].mean(1),
        "entropy": lambda layer: -(layer.shares * numpy.log(numpy.maximum(layer.shares, 1e-30))).sum(-1).mean(1),
        "distance": lambda layer: (layer.shares * distance).sum(-1).mean(1),
        "negative": lambda layer: (layer.shares * (layer.weights < 0)).sum(-1).mean(1),
    }.items():
        page.select_option("#measure", measure)
        found = page.evaluate("document.getElementById('overview').data[0].z")
        numpy.testing.assert_allclose(found, [value(layer) for layer in layers], rtol=1e-4, atol=1e-6)
    record.values["segment"] = 4  # tokens of each row and column: the unit stays
    page = show(record)
    page.select_option("#measure", "distance")
    assert page.locator("#measure option[value=previous]").is_disabled(), "most of the previous token is in the segment"
    expected = 4 * (layers[0].shares[0] * distance).sum(-1).mean()
    assert number_in(words(page, "#overview-said").partition(", mean")[0]) == pytest.approx(expected, abs=1e-3)


def test_the_sinks_are_those_of_the_table(show, look_record):
    record = look_record(words=[f" w{place}" for place in range(30)], spread=3)
    page = show(record)
    for index, layer in enumerate(layers_of(record)):
        page.select_option("#layer", str(index))
        received = layer.shares.sum(1) / layer.visible.sum(0)
        for head, sinks in enumerate(sinks_of(layer)):
            page.select_option("#head", str(head))
            expected = [str(key) for key in numpy.argsort(-received[head]) if sinks[key]]
            assert re.findall(r"(\d+) “", words(page, "#sinks")) == expected


def test_text_of_others_is_only_text(show, look_record, hostile_words):
    record = look_record(words=hostile_words, model=hostile_words[0])
    record.values["masks"][0]["kind"] = "<img src=x onerror=document.title='run'>"
    record.values["runs"] = [{"arm": hostile_words[0], "seed": 1, "curve": [{"step": 1, "loss": 2.0}]}]
    page = show(record)
    title = page.title()
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map .heatmaplayer").bounding_box()
    side = box["width"] / 13, box["height"] / 13
    for key in range(5):
        page.mouse.move(box["x"] + (key + 0.4) * side[0], box["y"] + 12.4 * side[1])
        page.mouse.move(box["x"] + (key + 0.5) * side[0], box["y"] + 12.5 * side[1])
        page.wait_for_function(
            "text => document.querySelector('#map .hoverlayer').textContent.includes(text)",
            arg=f"key {key} “{hostile_words[key][:20]}",
        )
        page.click(f"#queries-{key}")
        assert hostile_words[key][:20] in words(page, "#said")
    assert page.title() == title == f"Attention of {hostile_words[0].rpartition('/')[2]}"
    assert page.locator("img, a:not([download]), svg a").count() == 0
    assert page.locator("#queries b").count() == 0
    assert page.locator("#queries-0").inner_text() == hostile_words[0]
    assert hostile_words[0] in page.locator("#curves .legend").text_content()
    assert words(page, "#queries-11") == "∅"


def test_maps_between_two_sequences_are_rectangles(show, look_record):
    record = look_record(target=["Der", " Hund", " schläft"], differential=False)
    page = show(record)
    layer = layers_of(record)[0]
    numpy.testing.assert_allclose(drawn(page), layer.weights[0], atol=1e-6)
    assert page.locator("#queries span").count() == 3
    assert page.locator("#keys").is_visible()
    assert page.locator("fieldset#maps").is_hidden()
    assert page.locator("#measure option[value=distance]").is_disabled()
    page.click("#queries-1")
    best = int(layer.weights[0, 1].argmax())
    assert page.locator("#strongest th").first.inner_text().startswith(f"{best} ")
    assert page.locator("#keys-0").get_attribute("style")
    page.click("#keys-5")
    assert page.is_checked("input[value=to]")
    assert words(page, "#said").startswith("Token 5 “No” is looked at by")
    assert int(page.locator("#strongest th").first.inner_text().split()[0]) == int(layer.weights[0, :, 5].argmax())


@pytest.mark.parametrize("way", ["desktop", "dark phone"])
def test_an_encoder_and_decoder_show_their_alignment_and_each_side(show, pair_record, way):
    record = pair_record()
    page = show(record, **WAYS[way])
    layers = layers_of(record)
    assert page.locator("#layer option").all_inner_texts() == [layer.name for layer in layers]
    assert page.locator("#layer option").first.inner_text() == "0 (target → source)"
    for index, layer in enumerate(layers):
        page.select_option("#layer", str(index))
        numpy.testing.assert_allclose(drawn(page)[layer.visible], layer.weights[0][layer.visible], atol=1e-6)
        assert page.locator("#keys").is_visible() == (layer.queries != layer.keys)
        sizes = {"target": 4, "target so far": 4, "source": 5}
        assert page.locator("#queries span").count() == sizes[layer.queries]
        assert words(page, "#map-title").startswith(f"Layer {layer.name}, head 0")
    ticks = page.locator("#overview .ytick text").all_text_contents()
    assert ticks == [layer.name for layer in layers]
    hovered = page.evaluate("document.getElementById('overview').data[0].text")
    assert [row[0] for row in hovered] == ticks, "of many layers, not every one has a tick"
    masks = page.locator("#masks .annotation-text").all_text_contents()
    assert [text.split(": ")[1] for text in masks] == ["target → source", "source", "target so far"]
    page.select_option("#layer", "1")
    page.focus("#queries")
    page.keyboard.press("Home")
    assert words(page, "#said").startswith("Token 0 “das” looks at")
    gap = page.evaluate("getComputedStyle(document.querySelector('#queries span')).marginRight")
    assert float(gap.removesuffix("px")) > 2, "words without spaces of their own stand apart"
    assert page.evaluate("document.documentElement.scrollWidth") <= WAYS[way]["viewport"]["width"]


def test_several_models_stand_on_one_page(show, look_record):
    records = [look_record(layers=3), look_record(differential=False, layers=1, heads=2, model="runs/other")]
    records[1].values["runs"] = [
        {"arm": "softmax", "seed": 0, "curve": [{"step": 1, "loss": 3.0, "accuracy": None}, {"step": 2, "loss": 2.0}]}
    ]
    page = show(*records)
    page.select_option("#layer", "2")
    page.select_option("#model", label="other")
    assert page.locator("#layer option").count() == 1
    numpy.testing.assert_allclose(numpy.nan_to_num(drawn(page)), layers_of(records[1])[0].weights[0], atol=1e-6)
    assert page.locator("#maps").is_hidden()
    assert page.locator("#curves-part").is_visible()
    (curve,) = page.evaluate("document.getElementById('curves').data.map((one) => [one.x, one.y])")
    assert curve == [[1, 2], [3, 2]]


def test_a_change_to_dark_redraws(show, look_record):
    page = show(look_record())
    before = page.evaluate("document.getElementById('map').layout.font.color")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("before => document.getElementById('map').layout.font.color !== before", arg=before)
    assert contrast(page, "body", "body") > 7


def test_without_javascript_pieces_and_tables_stand(browser, look_record, tmp_path):
    path = write_look([look_record()], tmp_path / "page.html")
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript").is_visible()
    assert page.locator("ol.pieces li").count() == 5
    assert "Attention by layer" in page.inner_text("main")


def test_a_page_of_full_size_loads(show, look_record):
    """12 layers, 12 heads, 256 tokens."""
    record = look_record(layers=12, heads=12, differential=False, words=[f"w{number} " for number in range(256)])
    page = show(record)
    page.select_option("#layer", "11")
    page.select_option("#head", "7")
    layer = layers_of(record)[11]
    numpy.testing.assert_allclose(numpy.nan_to_num(drawn(page)), layer.weights[7], atol=1e-6)
    assert page.locator("#heads .heatmaplayer").count() >= 12


def test_no_control_names_a_server_and_none_sends_the_chart(show, look_record):
    """plotly.js 7.1 has a button by default that uploads the chart."""
    page = show(look_record())
    plots = page.evaluate(
        "Array.from(document.querySelectorAll('.js-plotly-plot'), (plot) => { "
        "const bar = plot._fullLayout._modeBar; "
        "return [plot.id, bar ? bar.buttons.flat().map((one) => one.name) : [], plot._context.plotlyServerURL] })"
    )
    assert {"map", "beside", "overview", "heads", "masks", "positions"} == {plot for plot, _, _ in plots}
    for plot, names, server in plots:
        assert set(names) <= {"zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"}, plot
        assert server == "", plot
    said = page.evaluate(
        "Array.from(document.querySelectorAll('a, button, [data-title], [title], [aria-label]'), (one) => "
        "[one.textContent, one.dataset.title, one.getAttribute('title'), one.getAttribute('aria-label'), one.href])"
    )
    for texts in said:
        assert not re.search(r"https?:|cloud|server|share|upload", " ".join(filter(None, texts)), re.IGNORECASE), texts


@pytest.mark.parametrize("way", ["desktop", "dark phone"])
def test_a_map_is_saved_as_svg_and_png(show, look_record, way):
    record = look_record()
    for entry in record.values["maps"]:
        entry["layer"] += 4  # a file has the layer's number, not its place
    page = show(record, **WAYS[way])
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    box = page.locator("#map").bounding_box()
    for kind in ("svg", "png"):
        with page.expect_download() as started:
            page.click(f"button[data-plot=map][data-format={kind}]")
        assert started.value.suggested_filename == f"attention-map-layer5-head2.{kind}"
        content = started.value.path().read_bytes()
        if kind == "png":
            width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
            assert content.startswith(b"\x89PNG")
            assert (width, height) == (2 * round(box["width"]), 2 * round(box["height"]))
            continue
        svg = content.decode()
        assert "data:image/png;base64," in svg, "the cells"
        assert "dog" in svg, "the tokens on the axes"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert f"fill: {ground}; fill-opacity: 1" in svg.partition("/>")[0], "light labels need the page's dark sheet"


def test_a_second_map_that_is_added_is_named_where_its_factor_stands(show, look_record):
    record = look_record()
    record.arrays["maps.0.lambda"][0] = -0.2
    record.arrays["maps.0.lambda"][1, 2] = -0.2
    page = show(record)
    assert words(page, "#lambda") == "λ = -0.200; below 0: the second map is added"
    page.select_option("#head", "1")
    assert words(page, "#lambda").endswith("by token; where it is below 0, the second map is added")
    page.select_option("#head", "2")
    assert "added" not in words(page, "#lambda")
    assert page.locator(".remark").is_visible()


def test_the_page_works_within_a_notebook(browser, look_record, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<p>cell</p>{framed(look_page([look_record()]))}", encoding="utf-8")
    page = browser.new_context(**DESKTOP, offline=True).new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(timeout=60_000)
    frame.locator("#layer").select_option("1")
    assert frame.locator("#map-title").inner_text().startswith("Layer 1")
    assert page.url.endswith("notebook.html"), "the address is the notebook's"
