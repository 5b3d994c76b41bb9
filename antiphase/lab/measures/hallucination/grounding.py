"""Overlap of an output with its source: content words, entities and copied runs; and texts with deliberate errors.

Words are compared ignoring case. Function words are English; in other languages, every word counts as content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from antiphase.lab.text.sentences import sentence_ends, with_cuts

WORD = re.compile(r"\w+(?:(?!['’]s\b)['’.,-]\w+)*")
COPIED_RUN = 4
"""Number of consecutive words that count as copied; all words of a shorter text."""
FUNCTION_WORDS = frozenset(
    WORD.findall(
        "a about above after again against all also am an and any are as at be because been before being below between "
        "both but by can could did do does doing down during each few for from further had has have having he her here "
        "hers him his how i if in into is it its itself just me more most my no nor not now of off on once only or "
        "other our out over own same she should so some such than that the their them then there these they this those "
        "through to too under until up upon us very was we were what when where which while who whom why will with "
        "would you your"
    )
)
"""English function words."""
TITLES = ("Mr", "Mrs", "Ms", "Dr", "I")
"""Capitalized words that are not names."""


def words(text: str) -> list[str]:
    """Words and numbers in lower case, in order."""
    return [found.lower() for found in WORD.findall(text)]


def content_words(text: str) -> set[str]:
    """Set of words without function words."""
    return set(words(text)) - FUNCTION_WORDS


def entities(text: str, context: str = "") -> list[str]:
    """Names (runs of capitalized words) and numbers as written, in order, without repetition.

    A single capitalized word at the beginning of a sentence counts if it is also capitalized elsewhere, here or in the
    context.
    """
    inner = _inner_names(text) | _inner_names(context)
    found: list[str] = []
    run: list[re.Match[str]] = []
    starts = _starts(text)

    def close() -> None:
        kept = [*run]
        opens = bool(kept) and kept[0].start() in starts and kept[0][0] not in inner
        if opens and (len(kept) == 1 or kept[0][0].lower() in FUNCTION_WORDS):
            kept = kept[1:]
        if kept and not (len(kept) == 1 and kept[0][0] in TITLES):
            found.append(text[kept[0].start() : kept[-1].end()])
        run.clear()

    for match in WORD.finditer(text):
        named = match[0][0].isupper()
        if run and (not named or text[run[-1].end() : match.start()].strip(" ") or match.start() in starts):
            close()
        if named:
            run.append(match)
        elif any(letter.isdigit() for letter in match[0]):
            found.append(match[0])
    close()
    return list(dict.fromkeys(found))


def _starts(text: str) -> set[int]:
    """Positions of the first word of each sentence."""
    ends = [0, *sentence_ends(text)]
    return {match.start() for end in ends if (match := WORD.search(text, end))}


def _inner_names(text: str) -> set[str]:
    """Words that are capitalized inside a sentence."""
    starts = _starts(text)
    return {match[0] for match in WORD.finditer(text) if match[0][0].isupper() and match.start() not in starts}


def coverage(output: str, reference: str) -> float:
    """Share of the reference's content words (or of all its words, if none is) that occur in the output."""
    wanted = content_words(reference) or set(words(reference))
    return len(wanted & set(words(output))) / len(wanted) if wanted else 0.0


def entity_coverage(output: str, reference: str, context: str = "") -> float | None:
    """Share of the reference's entities that occur in the output; None if the reference has none."""
    wanted = entities(reference, context)
    own = _joined(output)
    return sum(_joined(entity) in own for entity in wanted) / len(wanted) if wanted else None


def copied_share(output: str, context: str) -> float:
    """Share of the output's words in runs that are copied verbatim from the context; 0 for an empty output."""
    own, source = words(output), words(context)
    size = min(COPIED_RUN, len(own))
    if not size:
        return 0.0
    runs = {tuple(source[start : start + size]) for start in range(len(source) - size + 1)}
    copied: set[int] = set()
    for start in range(len(own) - size + 1):
        if tuple(own[start : start + size]) in runs:
            copied.update(range(start, start + size))
    return len(copied) / len(own)


def first_sentences(text: str, count: int = 3) -> str:
    """The first sentences of a text, as the output of a faithful system that understands nothing."""
    ends = with_cuts(text, sentence_ends(text))[:count]
    return " ".join(text[: ends[-1] if len(ends) == count else len(text)].split())


def with_wrong_entity(text: str, context: str, pool: Sequence[str], generator: torch.Generator) -> str | None:
    """The text with one of its entities replaced by one that is not in the context, so that it is no longer faithful.

    Args:
        pool: entities of other texts; numbers are replaced by numbers, names by names.

    Returns:
        The text, or None if nothing can be replaced.
    """
    there, own = _joined(context), _joined(text)
    places = entities(text, context)
    supported = [entity for entity in places if _joined(entity) in there]  # surely introduces an error
    drawn = _shuffled(list(dict.fromkeys(pool)), generator)
    for entity in _shuffled(supported or places, generator):
        named, size = entity[0].isupper(), len(words(entity))
        fitting = (
            other
            for alike in (True, False)  # prefer one with as many words
            for other in drawn
            if other[0].isupper() == named and (len(words(other)) == size) == alike
            if _joined(other) not in there and _joined(other) not in own
        )
        other = next(fitting, None)
        if other is not None:
            return other.join(re.split(rf"(?<!\w){re.escape(entity)}(?!\w)", text))
    return None


def _joined(text: str) -> str:
    """The words between single spaces, so that texts can be matched at word boundaries."""
    return f" {' '.join(words(text))} "


def _shuffled(values: Sequence[str], generator: torch.Generator) -> list[str]:
    return [values[index] for index in torch.randperm(len(values), generator=generator).tolist()]


def mean_measures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of every measure over the rows that have it."""
    found: dict[str, float | None] = {}
    for name in rows[0] if rows else ():
        known = [value for row in rows if (value := row[name]) is not None]
        found[name] = sum(known) / len(known) if known else None
    return found
