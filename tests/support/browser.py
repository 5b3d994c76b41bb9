"""Pages in headless Chromium. Tests are skipped where it or Playwright is not installed; Playwright's own downloads are
not used.
"""

import importlib.util
import shutil

import numpy
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="Playwright for Python is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"),
]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
WAYS = {
    "desktop": DESKTOP, "dark": {**DESKTOP, "color_scheme": "dark"}, "phone": PHONE,
    "dark phone": {**PHONE, "color_scheme": "dark"},
}  # fmt: skip


def drawn(page, plot="map", trace=0):
    """The weights of a map, from what plotly was given; NaN where the mask hides."""
    at = f"document.getElementById('{plot}').data[{trace}].z"
    roots = page.evaluate(f"Array.from({at}, (row) => Array.from(row))")
    found = numpy.array([[numpy.nan if cell is None else cell for cell in row] for row in roots])
    return numpy.sign(found) * found**2


def words(page, selector):
    return " ".join(page.locator(selector).inner_text().split())
