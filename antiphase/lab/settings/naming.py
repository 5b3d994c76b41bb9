"""Other words in errors of the laboratory, whose texts name flags and settings themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from antiphase.base.errors import InputError


@contextmanager
def naming(words: Mapping[str, str]) -> Iterator[None]:
    """Say in errors what this command calls a setting: a flag, or another field."""
    pattern = re.compile(r"(?<![\w./-])(" + "|".join(map(re.escape, words)) + r")(?![\w/-]|\.\w)")
    try:
        yield
    except InputError as error:
        if words:
            error.rewrite(lambda text: pattern.sub(lambda found: words[found[1]], text))
        raise
