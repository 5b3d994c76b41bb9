"""Tokenizers: lossless, digit by digit, the same for the same text, and usable after saving."""

import copy
import json
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import DataSettings, load_preset
from antiphase.lab.text import tokenization
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.retrieval import TextLanguage
from antiphase.lab.text.tokenization import (
    END,
    PAD,
    PAGE_OPENING,
    id_count,
    note_training,
    opened_tokens,
    opening_of_page,
    opening_of_text,
    openings,
    pieces,
    prompt_tokens,
    train_tokenizer,
)
from antiphase.lab.text.vocabulary import tokenizer_for, with_tasks
from antiphase.lab.training.run_model import model_config
from antiphase.models.sources.tokenizers import load_tokenizer

PROSE = [
    "It was the best of times, it was the worst of times, it was the age of wisdom, "
    "it was the age of foolishness.\n\n"
    "In 1775 there were 12 of them; “don't,” she said -- 日本語もある。 The end.\n",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse,\n"
    "I thought I would sail about a little and see the watery part of the world 100 times, or 2000 times.\n",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(PROSE, 400)


@given(text=st.text(st.characters(codec="utf-8")))
@example("a\u0085b\u2028c\r\nd\x00\x1b\x7f")
@example("👩🏽‍🚀 e\u0301 \u200f\ufeff 汉字 . , 's ?")
@example(f"literal {END} and {PAD} ")
@example("  leading, 12  \n\n \t trailing  ")
def test_decoding_gives_back_the_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_numbers_of_one_width_have_equally_many_tokens(tokenizer, width, source):
    numbers = ["".join(source.choices("0123456789", k=width)) for _ in range(5)]
    for template in ("{}", "the {} of", "x={};", "({}, "):
        assert len({len(tokenizer(template.format(number))["input_ids"]) for number in numbers}) == 1


def test_no_entry_joins_a_digit_to_anything(tokenizer):
    joined = [
        token for token in tokenizer.get_vocab() if len(token) > 1 and any(char in "0123456789" for char in token)
    ]
    assert joined == []


def test_digits_stay_together_in_twos_where_asked():
    numbers = [f"{10 + index % 90}{index:02}" for index in range(100)]
    pairs = train_tokenizer([" ".join(["The number is", *numbers]) * 20], 700, digits=2)
    digits = [sum(char.isdigit() for char in pairs.decode(index)) for index in range(len(pairs))]
    assert max(digits) == 2
    for number in range(1000, 10000, 37):
        tokens = pairs.tokenize(f" {number}")
        assert tokens == [f"Ġ{number // 100}", f"{number % 100:02}"]
    assert pairs.tokenize(" 123") == ["Ġ12", "3"]
    assert pairs.decode(pairs("in 1999,  12 of 7")["input_ids"]) == "in 1999,  12 of 7"


def test_special_tokens_padding_and_size(tokenizer):
    assert len(tokenizer) == 400
    assert set(tokenizer.get_vocab().values()) == set(range(400))
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == (END, END, PAD)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    batch = tokenizer(["a b c", ""], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][1] == [tokenizer.pad_token_id] * len(batch["input_ids"][0])
    uneven = tokenizer(["the", "the end of it all"], padding=True)["attention_mask"]
    assert uneven[0][0] == 0
    assert uneven[0][-1] == 1
    assert tokenizer(END)["input_ids"] == [tokenizer.eos_token_id]


def test_words_of_the_text_become_entries(tokenizer):
    assert "Ġtimes" in tokenizer.get_vocab()
    assert len(tokenizer(PROSE[0])["input_ids"]) < 0.6 * len(PROSE[0].encode())


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("text", ["The end.", "", END, f"so {END}"])
def test_a_text_that_goes_on_is_opened_and_not_closed(tokenizer, before, after, text):
    changed = copy.deepcopy(tokenizer)
    single = " ".join([END] * before + ["$A"] + [END] * after)
    changed.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=[(END, tokenizer.eos_token_id)]
    )
    expected = [tokenizer.eos_token_id] * before + tokenizer(text)["input_ids"]
    assert opened_tokens(changed, text) == prompt_tokens(changed, text) == expected


@pytest.mark.parametrize("before", [0, 1, 2])
def test_models_from_elsewhere_read_what_their_tokenizer_puts_before_a_text(tokenizer, before, tmp_path):
    changed = copy.deepcopy(tokenizer)
    del changed.init_kwargs[PAGE_OPENING]
    changed.backend_tokenizer.post_processor = TemplateProcessing(
        single=" ".join([END] * before + ["$A"]), special_tokens=[(END, tokenizer.eos_token_id)]
    )
    changed.save_pretrained(tmp_path)
    for one in (changed, load_tokenizer(str(tmp_path))):
        assert opening_of_text(one) == opening_of_page(one) == (tokenizer.eos_token_id,) * before
        assert openings(one) == {"text": [END] * before, "page": [END] * before}


@pytest.mark.parametrize("left_out", [(), ("bos_token",), ("bos_token", "eos_token")])
def test_models_trained_here_read_pages_after_bos_or_eos_and_text_without(tokenizer, left_out, tmp_path):
    own = copy.deepcopy(tokenizer)
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{PAD} $A", special_tokens=[(PAD, tokenizer.pad_token_id)]
    )
    for name in left_out:
        setattr(own, name, None)
    note_training(own)
    own.save_pretrained(tmp_path)
    opening = () if len(left_out) == 2 else (tokenizer.eos_token_id,)
    for one in (own, load_tokenizer(str(tmp_path))):
        assert opening_of_text(one) == ()
        assert opening_of_page(one) == opening


@pytest.mark.parametrize("named", ["<|none|>", 5, None, ["a"]])
def test_an_opening_that_is_no_special_token_is_refused(tokenizer, named):
    broken = copy.deepcopy(tokenizer)
    broken.init_kwargs[PAGE_OPENING] = named
    with pytest.raises(InputError, match=r"^tokenizer_config\.json: page_opening is .*, which is no special token"):
        opening_of_page(broken)


def test_training_is_deterministic_and_reads_a_stream():
    def stream():
        yield from PROSE

    first, second = train_tokenizer(stream(), 350), train_tokenizer(list(PROSE), 350)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_cutting_long_documents_does_not_change_the_vocabulary(monkeypatch):
    text = "\n".join(PROSE * 20)
    whole = train_tokenizer([text], 400)
    monkeypatch.setattr(tokenization, "TRAINING_PIECE", 50)
    assert train_tokenizer([text], 400).get_vocab() == whole.get_vocab()


def test_document_marks_in_the_text_spend_no_merges():
    text = END.join(["abc"] * 1000)
    assert not [token for token in train_tokenizer([text], 300).get_vocab() if "end" in token and token != END]


@pytest.mark.parametrize(
    ("needle_share", "repeat_share", "one_token_numbers", "pages_to_text"),
    [(0.25, 0, True, 1 / 3), (0.25, 0.5, True, 1), (0.5, 0.5, True, 5), (0.25, 0.5, False, 1 / 3)],
)
def test_the_wording_of_facts_is_to_text_as_in_a_batch_also_where_tokens_repeat(
    needle_share, repeat_share, one_token_numbers, pages_to_text
):
    """Text is at least a tenth; repeated tokens count as text unless numbers are one token."""
    settings = DataSettings(
        source="text", sequence_length=64, vocabulary_size=400, needle_share=needle_share, repeat_share=repeat_share,
        one_token_numbers=one_token_numbers,
    )  # fmt: skip
    read = list(with_tasks(["text" * 5_000] * 10, settings))
    assert sum(map(len, read)) - 200_000 == pytest.approx(200_000 * pages_to_text, rel=0.05)


def test_a_tokenizer_is_made_for_every_share_of_repeated_tokens_that_counts(tmp_path, book):
    settings = DataSettings(
        source="text", sequence_length=64, vocabulary_size=400, needle_share=0.25, paths=[str(book)],
        one_token_numbers=True,
    )  # fmt: skip
    for share in (0.0, 0.25, 0.5, 0.25):
        tokenizer_for(replace(settings, repeat_share=share), tmp_path, lambda message: None)
    assert len(list(tmp_path.glob("tokenizer-*"))) == 3


def test_a_cached_tokenizer_is_that_of_the_mixture_also_where_a_share_is_below_the_floor(tmp_path, book):
    settings = DataSettings(source="text", sequence_length=64, vocabulary_size=400, paths=[str(book)])
    made = [
        tokenizer_for(replace(settings, needle_share=share), tmp_path / cache, lambda message: None).get_vocab()
        for cache, share in (("shared", 0.02), ("shared", 0.24), ("own", 0.24))
    ]
    assert made[1] == made[2]
    assert len(list((tmp_path / "shared").glob("tokenizer-*"))) == 2


@pytest.mark.parametrize("size", [-1, 0, 257])
def test_a_vocabulary_without_room_for_all_bytes_is_refused(size):
    with pytest.raises(InputError, match=rf"data\.vocabulary_size must be at least 258.*got {size}"):
        train_tokenizer(PROSE, size)


def test_the_smallest_vocabulary_still_holds_every_text():
    smallest = train_tokenizer(["aaaa"], 258)
    assert len(smallest) == 258
    assert smallest.decode(smallest("日本 🙂 12")["input_ids"]) == "日本 🙂 12"


# ----------------------------------------------------------------------------------------- saving and loading


def test_a_saved_tokenizer_comes_back_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for loaded in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert isinstance(loaded, PreTrainedTokenizerFast)
        assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
        for name in ("padding_side", "eos_token", "bos_token", "pad_token", "model_input_names"):
            assert getattr(loaded, name) == getattr(tokenizer, name)
        assert not loaded.clean_up_tokenization_spaces
        text = f"Wait , it 's  2026 .{END}"
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == text


@pytest.mark.parametrize("name", ["newer", "newer/tokenizer.json", "missing", "a/b/c", "", "nobody-here/nothing"])
def test_a_tokenizer_that_cannot_be_loaded_names_the_field(tmp_path, monkeypatch, name):
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "tokenizer.json").write_text('{"added_tokens": [], "model": {"type": "Future"}}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_tokenizer(name, field="tokenizer")
    assert str(caught.value).startswith(f"tokenizer {name}: ")
    assert "\n" not in str(caught.value)


def test_code_of_a_repository_is_never_run(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["code.X", null]}}'
    )
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass X: pass\n")
    with pytest.raises(InputError):
        load_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------------------------ pieces


@given(st.text(st.sampled_from("ab \n。"), max_size=200), st.integers(1, 20))
def test_pieces_join_to_the_text_and_none_is_empty(text, size):
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(found)
    assert all(len(piece) <= 3 * size for piece in found)
    assert list(pieces(text, size, lambda text, position: False)) == ([text] if text else [])


def test_pieces_cut_before_single_white_space():
    assert list(pieces("aa bb  cc\ndd", 3, lambda text, position: True)) == ["aa bb  cc", "\ndd"]
    assert list(pieces("aaaa bbbb cccc", 5)) == ["aaaa bbbb", " cccc"]
    assert list(pieces("a" * 10, 3)) == ["aaa", "aaa", "aaaa"]


@pytest.fixture
def gap_tokenizer(text_tokenizer):
    """The small tokenizer with a gap in its ids: the largest one is more by 37."""
    tree = json.loads(text_tokenizer.backend_tokenizer.to_str())
    vocabulary = tree["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] += 37
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(tree)), eos_token=END, pad_token=PAD)


def test_ids_may_leave_gaps(gap_tokenizer, text_tokenizer, book, tmp_path):
    largest = len(text_tokenizer) - 1 + 37
    assert id_count(text_tokenizer) == len(text_tokenizer)
    assert id_count(gap_tokenizer) == largest + 1
    ids, places = TextLanguage(gap_tokenizer, numpy.full(40, largest)).filler(9, torch.Generator())
    assert ids == [largest] * 9
    assert places[0] == 0
    gap_tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = [f"data.tokenizer={tmp_path / 'tokenizer'}", "data.repeat_share=0.5", "data.needle_share=0.25"]
    run = load_preset("half-hour", settings, data=[book]).run
    data = prepare(replace(run.data, sequence_length=256, needles=2, queries=1), tmp_path / "cache")
    assert model_config(run, data.tokenizer).vocab_size == largest + 1
    stream = data.stream(batch_size=8, seed=0)
    drawn = {token for step in range(20) for token in stream.batch(step).input_ids.unique().tolist()}
    assert largest in drawn
    assert not drawn & set(range(len(text_tokenizer) - 1, largest))
