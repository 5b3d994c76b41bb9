"""What the interactive page shows of all heads at once, and what its address keeps."""

import io
from urllib.parse import parse_qs

import numpy
import pytest
from matplotlib.image import imread

from antiphase.lab.measures.look.map_codes import encode
from antiphase.lab.measures.look.tables import chosen_head, layers_of
from support.browser import IN_BROWSER, drawn, words

pytestmark = IN_BROWSER

DRAWN = "(({ z, zmax }) => [z.map((row) => Array.from(row, Number)), zmax])(document.getElementById('map').data[0])"
MARK = "() => ['top', 'left', 'width'].map((one) => parseFloat(document.getElementById('grid-mark').style[one]))"
WHITE, RED, BLUE, HIDDEN = numpy.array([[255, 255, 255], [202, 62, 20], [26, 96, 196], [228, 231, 235]])


def told(page):
    """The state in the address."""
    return {name: values[0] for name, values in parse_qs(page.url.partition("#")[2]).items()}


def test_the_grid_shows_every_head_and_a_click_shows_it_large(show, look_record):
    record = look_record(layers=3, heads=4)
    page = show(record)
    page.wait_for_selector("#grid[data-drawn=yes]")
    sheet = 255 * imread(io.BytesIO(page.locator("#grid").screenshot()))[..., :3]
    layers = layers_of(record)
    for index, head in ((0, 0), (1, 3), (2, -1)):
        page.select_option("#layer", str(index))
        page.select_option("#head", str(head))
        top, left, width = page.evaluate(MARK)
        weights = layers[index].weights.mean(0) if head < 0 else layers[index].weights[head]
        for query, key in ((6, 0), (4, 2), (6, 3), (0, 5)):
            weight = weights[query, key]
            shade = WHITE + numpy.sqrt(abs(weight)) * ((BLUE if weight < 0 else RED) - WHITE)
            row, column = (round(at + 2 + (cell + 0.5) / 7 * (width - 4)) for at, cell in ((top, query), (left, key)))
            numpy.testing.assert_allclose(sheet[row, column], shade if query >= key else HIDDEN, atol=1.5)
    page.select_option("#layer", "0")
    page.locator("#grid").click(position={"x": left + 9, "y": top + 9})
    assert words(page, "#map-title").startswith("Layer 2, mean over heads")
    page.wait_for_function("() => document.getElementById('map').getBoundingClientRect().bottom <= innerHeight")
    page.focus("#grid")
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert (told(page)["layer"], told(page)["head"]) == ("1", "mean")
    numpy.testing.assert_allclose(numpy.nan_to_num(drawn(page)), layers[1].weights.mean(0), atol=1e-6)


def test_the_address_keeps_what_is_shown(show, look_record):
    record = look_record()
    page = show(record, at="")
    assert list(told(page).values())[:2] == [chosen_head(record)[0].name, str(chosen_head(record)[1])], "it opens there"
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    page.check("input[value=second]")
    page.select_option("#scale", "log")
    page.check("#first")
    page.click("#queries-4")
    second = layers_of(record)[1].maps[2, 1]
    other = show(record, at=page.url.partition("#")[2])
    for one in (page, other):
        assert list(told(one).values())[:6] == ["1", "2", "second", "log", "off", "4"]
        found, end = one.evaluate(DRAWN)
        expected = numpy.clip(1 + numpy.log10(numpy.maximum(second, 1e-4)) / 4, 0, 1) * layers_of(record)[1].visible
        expected[:, 0] = 0
        numpy.testing.assert_allclose(found, expected, atol=1e-5)
        assert one.locator("#strongest th").first.inner_text().startswith(f"{1 + int(second[4, 1:].argmax())} ")
        assert (end, one.is_checked("#first")) == (pytest.approx(expected.max(), abs=1e-5), True)
    other.evaluate("location.hash = 'layer=0&head=nonsense&scale=linear&query=99'")
    other.wait_for_function("() => document.getElementById('layer').value === '0'")
    assert [told(other)[name] for name in ("layer", "head", "scale", "query")] == ["0", "2", "linear", "6"]


def test_heads_are_sorted_by_what_they_do_and_sinks_are_named(show, look_record):
    record = look_record(words=["ab", "cd", "ef", "gh"] * 12, differential=False)
    for place, token in enumerate(record.values["sequences"]["text"]["tokens"]):
        token["id"] = place % 4
    maps = numpy.zeros((3, 1, 48, 48), numpy.float32)
    for query in range(48):
        maps[0, 0, query, max(0, query - 1)] = 1
        maps[1, 0, query, query - 3 if query > 3 else 0] = 1  # what followed the same token
        maps[2, 0, query, min(query, 7)] = 1
    record.arrays["maps.1.codes"], record.arrays["maps.1.scales"] = encode(maps)
    page = show(record, at="layer=1&head=2")
    for head, measure in enumerate(("previous", "induction")):
        page.select_option("#measure", measure)
        assert words(page, "#ranking tbody tr:first-child") == f"layer 1, head {head} 1.000"
    assert words(page, "#sinks").startswith("Keys that get over 5 / M of the attention, of M keys (sinks; ")
    assert words(page, "#sinks").endswith(": 7 “gh” 1.000.")
    assert page.locator("#map .xtick text").all_text_contents() == ["gh"]
    page.click("#ranking button >> nth=0")
    assert words(page, "#map-title") == "Layer 1, head 1"


def test_what_is_on_no_token_is_a_column_of_the_large_map_and_in_the_sentence(show, look_record):
    record = look_record(differential=False)
    record.arrays["maps.1.scales"] *= 0.5
    page = show(record, at="layer=1&head=0")
    assert page.locator("#map .xtick text").all_text_contents()[-1] == "no token"
    assert float(words(page, "#said").split(" and at no token ")[1].rstrip(".")) == pytest.approx(0.5, abs=0.002)
    page.select_option("#layer", "0")
    assert "no token" not in page.locator("#map .xtick text").all_text_contents()
    assert "no token" not in words(page, "#said")
