"""Pairs of texts: files of every form, what is refused, the held-out part, and the made language's known alignment."""

import gzip
import json

import pytest

from antiphase.base.errors import InputError, worded
from antiphase.lab.lineage.data.generated_language import Clause, generated_pairs, lexicon, pair_of
from antiphase.lab.lineage.data.labelled_texts import normal_form
from antiphase.lab.lineage.data.parallel import Pair, held_out_pairs, read_pairs


def test_lines_and_named_columns_give_the_same_pairs(tmp_path):
    pairs = [("the  old boat", "das alte Boot"), ('say "yes" ,', "sag « ja »"), ("日本", "Japan")]
    tabbed = "".join(f"{source}\t{target}\r\n" for source, target in pairs)
    (tmp_path / "a.tsv").write_text(tabbed, encoding="utf-8", newline="")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(tabbed.encode()))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"en": s, "de": t, "id": 1}) + "\n" for s, t in pairs))
    (tmp_path / "d.json").write_text(json.dumps([{"en": s, "de": t} for s, t in pairs]))
    found = {name: read_pairs([str(tmp_path / name)]) for name in ("a.tsv", "b.txt.gz")}
    found |= {
        name: read_pairs([str(tmp_path / name)], source_field="en", target_field="de") for name in ("c.jsonl", "d.json")
    }
    for name, read in found.items():
        assert [(pair.source, pair.target) for pair in read] == pairs, name
        assert {pair.alignment for pair in read} == {None}
    assert worded(found["a.tsv"][1].place) == f"train {tmp_path / 'a.tsv'}, line 2"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\na b\n", r"train .*a\.tsv, line 2: there is no tab in the line; write the source, one tab"),
        ("a.tsv", "a\tb\tc\n", r"a\.tsv, line 1: there is 2 tabs in the line"),
        ("a.tsv", "a\tb\n\tc\n", r"a\.tsv, line 2: the source is empty"),
        ("a.tsv", "a\tb\nc\t \n", r"a\.tsv, line 2: the target is empty"),
        ("a.tsv", "a\tb\n\nc\td\n", r"a\.tsv, line 2: the line is empty; remove it"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": "a", "tagret": "b"}\n',
         r"a\.jsonl, line 2: there is no column 'target' of --target-field; did you mean 'tagret'"),
        ("a.jsonl", '{"source": "a", "target": 7}\n', r"line 1: the column 'target' holds int instead of text"),
        ("a.jsonl", '{"source": null, "target": "b"}\n', r"a\.jsonl, line 1: the source is empty"),
        ("a.jsonl", '{"source": "a", "target": ""}\n', r"a\.jsonl, line 1: the target is empty"),
        ("a.jsonl", '{"source": "a", "target": "\\ud800"}\n', "an unpaired surrogate"),
    ],
)  # fmt: skip
def test_lines_that_are_not_pairs_are_refused_by_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_pairs([str(tmp_path / name)])


def test_one_column_cannot_be_both_sides(tmp_path):
    with pytest.raises(InputError, match="--source-field and --target-field name the same column, en"):
        read_pairs(["x.jsonl"], source_field="en", target_field="en")


def test_no_source_text_stands_on_both_sides_of_the_held_out_part(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"s{row % 41}\tt{row}\n" for row in range(123)))
    pairs = read_pairs([str(path)])
    train, test = held_out_pairs(pairs, 3)
    assert {pair.source for pair in train}.isdisjoint(pair.source for pair in test)
    assert sorted([*train, *test], key=pairs.index) == pairs
    assert len(test) == 3 * 4  # a tenth of 41 texts
    assert held_out_pairs(pairs, 3) == (train, test) != held_out_pairs(pairs, 4)
    with pytest.raises(InputError, match="one source text only"):
        held_out_pairs(pairs[:1], 0)


def test_sources_that_differ_in_capitals_and_white_space_stay_together():
    pairs = [Pair("", text, "x") for row in range(20) for text in (f"a s{row}", f"A  S{row} ")]
    for seed in range(3):
        train, test = held_out_pairs(pairs, seed)
        assert len(test) == 4
        assert {normal_form(pair.source) for pair in train}.isdisjoint(normal_form(pair.source) for pair in test)


def test_the_lexicon_is_a_bijection_without_common_words():
    words = lexicon()
    assert len(set(words.values())) == len(words)
    assert set(words).isdisjoint(words.values())


def test_the_rules_of_order_on_sentences_made_by_hand():
    to = lexicon()
    one = Clause(subject=["old", "boat"], verb="saw", object=["gull"], place=["near", "red", "lamp"])
    pair = pair_of([one])
    assert pair.source == "old boat saw gull near red lamp"
    assert pair.target == " ".join(to[word] for word in ["boat", "old", "lamp", "red", "near", "gull", "saw"])
    assert pair.alignment == (1, 0, 6, 5, 4, 3, 2)
    other = Clause(subject=["wolf"], verb="hid", object=["small", "wet", "key"])
    pair = pair_of([one, other], "while")
    assert pair.source == "old boat saw gull near red lamp while wolf hid small wet key"
    assert pair.alignment == (8, 12, 11, 10, 9, 7, 1, 0, 6, 5, 4, 3, 2)
    assert pair.target.split()[:6] == [to[word] for word in ["wolf", "key", "wet", "small", "hid", "while"]]


def test_every_made_pair_is_aligned_word_by_word_and_no_word_stands_twice():
    to = lexicon()
    pairs = generated_pairs(200, "here")
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        assert len(set(source)) == len(source)
        assert sorted(pair.alignment) == list(range(len(source)))
        assert target == [to[source[place]] for place in pair.alignment]
    assert len({pair.source for pair in pairs}) == 200
    assert {len(pair.source.split()) for pair in pairs} >= {3, 10, 15}


def test_made_pairs_are_a_function_of_their_key_and_leave_out_what_they_are_given():
    pairs = generated_pairs(300, "here")
    assert generated_pairs(300, "here") == pairs != generated_pairs(300, "there")
    unlike = {pair.source for pair in pairs[:150]}
    rest = generated_pairs(300, "here", unlike=unlike)
    assert unlike.isdisjoint(pair.source for pair in rest)
    assert rest[:150] == pairs[150:]
