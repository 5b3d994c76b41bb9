"""Where sentences end, in any script, and where else a text may be cut.

The rules are Unicode's (UAX 29, section 5), with four additions:

- Titles and initials do not end a sentence.
- An opening bracket or quotation mark before a letter without case, as in Chinese, begins the next sentence.
- Thai and Lao have no full stop: a space between their letters ends a sentence.
- Where lines are broken at a width, as in books, only an empty line ends a paragraph.
"""

from __future__ import annotations

import regex

LONGEST = 500
"""Number of characters after which text without the end of a sentence is cut."""
NO_TITLE = r"(?<!\b(?:\p{Lu}|Mr|Mrs|Ms|Dr|St|No))"
LINE_END = r"(?>\r\n|[\p{SB=CR}\p{SB=LF}\p{SB=Sep}])"
IGNORED = r"[\p{SB=Extend}\p{SB=Format}]*+"  # SB5
NEITHER = r"[^\p{SB=OLetter}\p{SB=Upper}\p{SB=Lower}\p{SB=CR}\p{SB=LF}\p{SB=Sep}\p{SB=STerm}\p{SB=ATerm}]"
CLOSE = r"(?![\p{Ps}\p{Pi}]\p{SB=OLetter})\p{SB=Close}"
THAI = r"[\p{Thai}\p{Lao}]"
BREAKABLE = regex.compile(r"\s+|\X")


def _ends(inner: str, paragraph: str) -> regex.Pattern[str]:
    """The end of a sentence and the white space after it.

    Args:
        inner: a line end inside a paragraph.
        paragraph: the end of a paragraph.
    """
    after = rf"(?:{CLOSE}{IGNORED})*+(?:(?:\p{{SB=Sp}}|{inner}){IGNORED})*+"
    between_capitals = rf"(?<=[\p{{SB=Upper}}\p{{SB=Lower}}]{IGNORED}\p{{SB=ATerm}}{IGNORED})\p{{SB=Upper}}"
    full_stop = (
        rf"{NO_TITLE}\p{{SB=ATerm}}{IGNORED}(?!\p{{SB=Numeric}}|{between_capitals})"  # SB6, SB7
        rf"{after}(?!(?:{NEITHER}|{inner})*+\p{{SB=Lower}})"  # SB8
    )
    goes_on = r"[\p{SB=SContinue}\p{SB=STerm}\p{SB=ATerm}]"  # SB8a
    stop = rf"(?:\p{{SB=STerm}}{IGNORED}{after}|{full_stop})(?!{goes_on})(?:{paragraph})?+"  # SB9 to SB11
    space = rf"{THAI}\p{{SB=Sp}}++(?={THAI})"
    first = rf"(?=[\p{{SB=STerm}}\p{{SB=ATerm}}\p{{SB=CR}}\p{{SB=LF}}\p{{SB=Sep}}]|{THAI})"  # only for speed
    return regex.compile(rf"{first}(?:{stop}|{paragraph}|{space})")  # SB4


NEVER = r"(?!)"
EACH_LINE = _ends(NEVER, LINE_END)
WRAPPED = _ends(rf"{LINE_END}(?!\p{{SB=Sp}}*+{LINE_END})", rf"{LINE_END}(?:\p{{SB=Sp}}*+{LINE_END})++")


def sentence_ends(text: str, *, wrapped: bool = False) -> list[int]:
    """The position after the last visible character of each sentence; text after the last of them is one as well.

    Args:
        wrapped: lines are broken at a width, so that only an empty line ends a paragraph.
    """
    found, start = [], 0
    for match in (WRAPPED if wrapped else EACH_LINE).finditer(text):
        if sentence := text[start : match.end()].rstrip():
            found.append(start + len(sentence))
        start = match.end()
    return found


def with_cuts(text: str, ends: list[int]) -> list[int]:
    """The ends, and cuts between them such that no sentence has more than ``LONGEST`` characters, or few more."""
    found, start = [], 0
    for end in (*ends, len(text)):
        while end - start > LONGEST:
            start = cut_near(text, start + LONGEST, LONGEST // 2)
            if start < end:
                found.append(start)
        found.append(end)
        start = end
    return found[:-1]


def cut_near(text: str, target: int, reach: int) -> int:
    """The beginning of white space nearest to ``target``, within ``reach``; without any, a boundary of characters."""
    low = max(0, target - reach)
    matches = list(BREAKABLE.finditer(text, low, min(len(text), target + reach)))[1:]  # the first may begin before low
    spaces = [match.start() for match in matches if match[0].isspace()]
    return min(spaces or [match.start() for match in matches], key=lambda at: abs(at - target), default=target)
