"""Sentences end where UAX 29's rules say, applied one by one; texts without full stops are cut elsewhere."""

import random
from itertools import pairwise

import pytest
import regex

from antiphase.lab.text.sentences import LONGEST, cut_near, sentence_ends, with_cuts

CLASSES = ["CR", "LF", "Sep", "Sp", "Lower", "Upper", "OLetter", "Numeric", "ATerm", "SContinue", "STerm", "Close"]
CLASSES += ["Extend", "Format"]
OF_CLASS = {name: regex.compile(rf"\p{{SB={name}}}") for name in CLASSES}
PARAGRAPH, STOPS = {"CR", "LF", "Sep"}, {"STerm", "ATerm"}


def class_of(character):
    return next((name for name, pattern in OF_CLASS.items() if pattern.match(character)), "Other")


def boundaries(text):
    """Where UAX 29 has a boundary inside a text, rule by rule."""
    kinds = [class_of(character) for character in text]
    found = []
    for at in range(1, len(text)):
        if kinds[at - 1] == "CR" and kinds[at] == "LF":  # SB3
            continue
        if kinds[at - 1] in PARAGRAPH:  # SB4
            found.append(at)
            continue
        if kinds[at] in {"Extend", "Format"}:  # SB5
            continue
        # SB5: before the place, marks are ignored unless they begin the text or a paragraph
        before = [
            kind
            for place, kind in enumerate(kinds[:at])
            if kind not in {"Extend", "Format"} or place == 0 or kinds[place - 1] in PARAGRAPH
        ]
        if breaks(before, kinds[at:]):
            found.append(at)
    return found


def breaks(before, after):
    """Whether rules SB6 to SB11 break between these classes of characters."""
    rest, seen_space = list(before), False
    while rest and rest[-1] == "Sp":
        seen_space = bool(rest.pop())
    closed = False
    while rest and rest[-1] == "Close":
        closed = bool(rest.pop())
    if not rest or rest[-1] not in STOPS:  # SB998; a paragraph's end after a stop is SB4's
        return False
    full_stop, plain = rest[-1] == "ATerm", not seen_space and not closed
    if full_stop and plain and after[0] == "Numeric":  # SB6
        return False
    if full_stop and plain and rest[-2:-1] and rest[-2] in {"Upper", "Lower"} and after[0] == "Upper":  # SB7
        return False
    if full_stop:  # SB8
        ahead = next((k for k in after if k in {"OLetter", "Upper", "Lower", *PARAGRAPH, *STOPS}), None)
        if ahead == "Lower":
            return False
    if after[0] in {"SContinue", *STOPS}:  # SB8a
        return False
    if after[0] == "Close" and not seen_space:  # SB9
        return False
    return after[0] not in {"Sp", *PARAGRAPH}  # SB9, SB10; SB11


def visible(text, places):
    """The boundaries before the white space in front of them, as ``sentence_ends`` gives them."""
    found, start = [], 0
    for place in places:
        if part := text[start:place].rstrip():
            found.append(start + len(part))
        start = place
    return found


def test_random_texts_end_where_the_rules_say():
    # No title, no opening bracket before a letter without case, no Thai: those are additions
    alphabet = ["\r", "\n", "\u2029", " ", "\t", "ab", "é", "XY", "\u05d0", "7", ".", "\uff0e", ",", "、", "!", "。"]
    alphabet += [")", "’", "」", "\u0301", "\u200d", "=", "…"]
    generator = random.Random(0)
    for _ in range(3000):
        text = "".join(generator.choices(alphabet, k=generator.randint(1, 12)))
        ends = sentence_ends(text)
        wanted = visible(text, [*boundaries(text), len(text)])
        assert sorted({*ends, *wanted[-1:]}) == wanted, repr(text)


def sentences(text, **options):
    ends = [0, *sentence_ends(text, **options), len(text)]
    return [part for start, stop in pairwise(ends) if (part := text[start:stop].strip())]


@pytest.mark.parametrize(
    "text",
    [
        "他们来了。|我们走了！|「天黑了。」|“下雨了？”|（完。）",
        "彼は来た。|「行こう。」|と言った｡",
        "هل أنت هنا؟| نعم۔| «لا!»| قال ذلك.",
        "मैं आया।| वह गया॥| ठीक है।",
        "ខ្ញុំទៅ។| គាត់មក។",
        "สวัสดีครับ| ผมชื่อ ABC 12 คน",
        "Он пришёл.| А. С. Пушкин ушёл!",
        'He paid 3.5 e.g. "here", etc. and left the U.S.A. then.| "Go!"| (Mr. Brown stayed.)',
        "one.|\ntwo|\nThree|\n\nFour.",
    ],
)
def test_sentences_of_many_scripts(text):
    assert sentences(text.replace("|", "")) == [part.strip() for part in text.split("|")]


def test_only_an_empty_line_ends_a_paragraph_of_broken_lines():
    text = "It was\ndark etc.\nand cold. A\r\nlight\n \nChapter\r\n\r\nShe came.\n"
    wanted = ["It was\ndark etc.\nand cold.", "A\r\nlight", "Chapter", "She came."]
    assert sentences(text, wrapped=True) == wanted
    assert len(sentences(text)) == 7


def test_a_text_without_full_stops_is_cut_at_spaces_or_between_characters():
    generator = random.Random(1)
    for text in ("word and word " * 300, "天" * 3000, "กำ" * 1500, "नि" * 1501):
        places = [0, *with_cuts(text, []), len(text)]
        lengths = [stop - start for start, stop in pairwise(places)]
        assert max(lengths) <= 1.5 * LONGEST
        for place in places[1:-1]:
            assert text[place] == " " or (" " not in text and not regex.match(r"\p{M}|ำ", text[place]))
        target = generator.randrange(100, len(text) - 100)
        assert abs(cut_near(text, target, 30) - target) <= 14
    assert with_cuts("a. b" * 50, [2, 6]) == [2, 6]
    assert cut_near("no", 1, 0) == 1
