"""Packing: the tokens are those of whole documents, made once for equal content, and never half of them."""

import json
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from antiphase.base.errors import InputError
from antiphase.lab.text import packing, token_files
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.packing import PackedTokens, pack
from antiphase.lab.text.tokenization import train_tokenizer
from support.paths import ROOT

BOOK = (
    "Chapter 12\n\nIt is a truth universally acknowledged, that a single man in possession of a good "
    "fortune, must be in want of a wife.  However little known the feelings or views of such a man may be on "
    "his first entering a neighbourhood -- in 1797, say, or 1813 -- this truth is so well fixed in the minds "
    "of the surrounding families,\nthat he is considered the rightful property of some one or other of their "
    "daughters.\n\n\n"
    "“My dear Mr. Bennet,” said his lady to him one day, “have you heard that Netherfield Park is let at last?”"
    "\r\n\r\n\t* * *\n\n 日本語も ある。 x = 10 + 200;\n"
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([BOOK], 420)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for index in range(3):
        (folder / f"{index}.txt").write_text(f"{index} " + BOOK * (index + 1), newline="")
    return [str(folder)]


def expected_tokens(paths, tokenizer):
    """Whole documents, one call each, the end token between them."""
    ids = []
    for number, text in enumerate(documents(paths)):
        ids += [tokenizer.eos_token_id] if number else []
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class Counter:
    """Counts corpora that are tokenized."""

    def __init__(self, monkeypatch):
        self.calls = 0
        original = packing.write_tokens

        def counted(*arguments, **options):
            self.calls += 1
            return original(*arguments, **options)

        monkeypatch.setattr(packing, "write_tokens", counted)


# ------------------------------------------------------------------------------------------ the tokens


def test_tokens_are_whole_documents_with_the_end_token_between(corpus, tokenizer, tmp_path, monkeypatch):
    expected = expected_tokens(corpus, tokenizer)
    assert expected.count(tokenizer.eos_token_id) == 2
    for piece, batch in [(token_files.PIECE, token_files.BATCH), (100, 1), (37, 250), (5, 10_000)]:
        monkeypatch.setattr(token_files, "PIECE", piece)
        monkeypatch.setattr(token_files, "BATCH", batch)
        packed = pack(corpus, tokenizer, sequence_length=16, cache=tmp_path / f"cache-{piece}")
        assert isinstance(packed.tokens, np.memmap)
        assert packed.tokens.dtype == np.uint16
        assert packed.tokens.tolist() == expected


def word_level(**parts):
    """BPE with the given parts of the pipeline, trained on ``BOOK``."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    for name, part in parts.items():
        setattr(backend, name, part)
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "</s>"], show_progress=False)
    backend.train_from_iterator([BOOK], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def with_special_tokens_around():
    found = train_tokenizer([BOOK], 400)
    around = processors.TemplateProcessing(single="<|pad|> $A <|pad|>", special_tokens=[("<|pad|>", 1)])
    found.backend_tokenizer.post_processor = around
    return found


# Word boundaries of GPT-4 and Llama 3: punctuation takes the line ends after it, digits go in threes
GPT_4 = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER_TOKENIZERS = {
    "ours": lambda: train_tokenizer([BOOK], 400),
    "gpt-4": lambda: word_level(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(GPT_4, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        ),
        decoder=decoders.ByteLevel(),
    ),
    "gpt-2 with prefix space": lambda: word_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": lambda: word_level(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    # Llama 2: every call would put one more mark in front, so there is nowhere to cut
    "sentencepiece": lambda: word_level(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "stripping": lambda: word_level(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()]),
        pre_tokenizer=pre_tokenizers.Whitespace(),
    ),
    "special tokens around": with_special_tokens_around,
}


@pytest.mark.parametrize("name", OTHER_TOKENIZERS)
def test_cutting_documents_changes_no_token_of_any_tokenizer(name, corpus, tmp_path, monkeypatch):
    other = OTHER_TOKENIZERS[name]()
    expected = expected_tokens(corpus, other)
    for piece in (7, 41, 300):
        monkeypatch.setattr(token_files, "PIECE", piece)
        packed = pack(corpus, other, sequence_length=8, cache=tmp_path / f"cache-{piece}")
        assert packed.tokens.tolist() == expected


AWKWARD = ["a", "the", "don't", "12", "7", " ", "  ", "\n", "\n\n", "\t", ".", "”", "\u0085", "\x1f", "\u00a0"]
AWKWARD += ["日本", "e\u0301", " \u0301", "<|endoftext|>", "🙂"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=60), st.integers(1, 30))
def test_cuts_are_exact_on_awkward_text(tokenizer, monkeypatch, words, piece):
    monkeypatch.setattr(token_files, "PIECE", piece)
    text = "".join(words)
    backend = packing.backend_of(tokenizer)[0]
    found = [cut for batch in token_files.batches([text], backend) for cut, _ in batch]
    assert "".join(found) == text
    ids = [token for cut in found for token in tokenizer(cut)["input_ids"]]
    assert ids == tokenizer(text)["input_ids"]


def test_long_documents_are_cut(tokenizer):
    backend = packing.backend_of(tokenizer)[0]
    batches = list(token_files.batches([BOOK * 2500, "short"], backend))
    longest = max(len(piece) for batch in batches for piece, _ in batch)
    assert longest < token_files.PIECE + 200
    assert len(batches) == 2
    assert [starts for batch in batches for _, starts in batch].count(True) == 2


@pytest.mark.slow
def test_large_vocabularies_take_32_bits(corpus, tmp_path):
    for count, dtype in [(2**16 - 420, np.uint16), (2**16 - 419, np.uint32)]:
        wide = train_tokenizer([BOOK], 420)
        assert wide.add_tokens([f"<extra {number}>" for number in range(count)]) == count
        packed = pack(corpus, wide, sequence_length=16, cache=tmp_path / "cache")
        assert packed.tokens.dtype == dtype
        assert packed.tokens.tolist() == expected_tokens(corpus, wide)
    last = f"<extra {count - 1}>"
    (tmp_path / "last.txt").write_text(last * 4)
    packed = pack([str(tmp_path / "last.txt")], wide, sequence_length=4, cache=tmp_path / "cache")
    assert packed.block(0).tolist() == [65536] * 4


# ------------------------------------------------------------------------------------------ blocks and split


def counting(count, sequence_length):
    return PackedTokens(np.arange(count, dtype=np.uint16), sequence_length)


def test_blocks_lie_end_to_end_and_the_rest_is_left_out():
    packed = counting(38, 7)
    assert len(packed) == 5
    blocks = torch.stack([packed.block(index) for index in range(5)])
    assert blocks.dtype == torch.int64
    assert torch.equal(blocks, torch.arange(35).view(5, 7))
    for index in (5, -1):
        with pytest.raises(IndexError):
            packed.block(index)
    with pytest.raises(FrozenInstanceError):
        packed.sequence_length = 3


def test_a_block_can_be_changed_without_changing_the_file(corpus, tokenizer, tmp_path):
    packed = pack(corpus, tokenizer, sequence_length=16, cache=tmp_path / "cache")
    before = packed.block(0).clone()
    packed.block(0).zero_()
    assert torch.equal(packed.block(0), before)
    with pytest.raises(ValueError, match="read-only"):
        packed.tokens[0] = 1


@given(st.integers(2, 300), st.integers(1, 9), st.integers(0, 8), st.floats(0.001, 0.999))
def test_split_holds_out_the_tail_in_whole_blocks(blocks, length, rest, share):
    packed = counting(blocks * length + min(rest, length - 1), length)
    train, validation = packed.split(share)
    assert len(train) >= 1
    assert len(validation) >= 1
    assert len(train.tokens) == len(train) * length
    assert len(validation.tokens) == len(validation) * length
    joined = np.concatenate([train.tokens, validation.tokens])
    assert np.array_equal(joined, packed.tokens[: blocks * length])
    assert abs(len(validation) - share * blocks) <= 1


def test_a_split_of_too_little_names_the_flag_and_the_sizes(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(BOOK)
    count = len(tokenizer(BOOK.replace("\r\n", "\n"))["input_ids"])
    packed = pack([str(tmp_path / "a.txt")], tokenizer, sequence_length=count // 2 + 1, cache=tmp_path, field="text")
    with pytest.raises(InputError, match=rf"^text holds {count} tokens, 1 whole block of {count // 2 + 1},.*takes 2"):
        packed.split(0.5)
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(InputError, match=r"data\.validation_share"):
            packed.split(share)


def test_less_than_one_block_is_refused_with_the_numbers(tokenizer, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a b c")
    count = len(tokenizer("a b c")["input_ids"])
    assert len(pack([str(path)], tokenizer, sequence_length=count, cache=tmp_path / "cache")) == 1
    with pytest.raises(InputError, match=rf"^validation holds {count} tokens, .*data.sequence_length={count + 1};"):
        pack([str(path)], tokenizer, sequence_length=count + 1, cache=tmp_path / "cache", field="validation")
    with pytest.raises(InputError, match=r"data\.sequence_length must be at least 1"):
        pack([str(path)], tokenizer, sequence_length=0, cache=tmp_path / "cache")


def test_a_text_that_gives_no_token_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("\u200b")
    deaf = word_level(normalizer=normalizers.Replace("\u200b", ""))
    with pytest.raises(InputError, match="holds 0 tokens"):
        pack([str(tmp_path / "a.txt")], deaf, sequence_length=1, cache=tmp_path / "cache")


def test_a_tokenizer_without_end_token_is_refused(corpus, tmp_path):
    endless = train_tokenizer([BOOK], 300)
    endless.eos_token = None
    with pytest.raises(InputError, match=r"data\.tokenizer"):
        pack(corpus, endless, sequence_length=16, cache=tmp_path / "cache")


# ------------------------------------------------------------------------------------------ the cache


def test_equal_content_is_tokenized_once(corpus, tokenizer, tmp_path, monkeypatch):
    counter = Counter(monkeypatch)
    reported = []
    cache = tmp_path / "deep" / "cache"
    first = pack(corpus, tokenizer, sequence_length=16, cache=cache, progress=reported.append)
    assert counter.calls == 1
    assert sum(reported) == len(first.tokens)

    moved = tmp_path / "elsewhere"
    Path(corpus[0]).rename(moved)
    tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)  # leaves both on in the backend
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    reloaded = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    for used, length in [(tokenizer, 16), (tokenizer, 5), (reloaded, 16)]:
        again = pack([str(moved)], used, sequence_length=length, cache=cache, progress=reported.append)
        assert np.array_equal(again.tokens, first.tokens)
        assert len(again) == len(first.tokens) // length
    assert counter.calls == 1
    assert sum(reported) == len(first.tokens)
    assert len(list(cache.glob("*.tokens"))) == 1


def test_other_content_tokenizer_or_column_is_tokenized_again(tokenizer, tmp_path, monkeypatch):
    counter = Counter(monkeypatch)
    path, cache = tmp_path / "a.jsonl", tmp_path / "cache"

    def packed(used=tokenizer, **options):
        return pack([str(path)], used, sequence_length=1, cache=cache, **options).tokens.tolist()

    path.write_text(json.dumps({"text": "one two", "other": "three"}))
    results = [packed(), packed(text_field="other")]
    path.write_text(json.dumps({"text": "one twO", "other": "three"}))
    results += [packed(), packed(train_tokenizer([BOOK * 2 + "one two" * 99], 300))]
    assert counter.calls == 4
    assert len({tuple(ids) for ids in results}) == 4


def test_packing_that_was_interrupted_is_not_taken_for_whole(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "PIECE", 100)
    monkeypatch.setattr(token_files, "BATCH", 200)
    cache = tmp_path / "cache"

    def interrupt(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(corpus, tokenizer, sequence_length=16, cache=cache, progress=interrupt)
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []
    packed = pack(corpus, tokenizer, sequence_length=16, cache=cache)
    assert packed.tokens.tolist() == expected_tokens(corpus, tokenizer)


def test_a_whole_cache_is_read_without_waiting_for_others(corpus, tokenizer, tmp_path, monkeypatch):
    expected = pack(corpus, tokenizer, sequence_length=16, cache=tmp_path).tokens.tolist()
    monkeypatch.setattr(packing, "FileLock", None)  # cannot be taken
    assert pack(corpus, tokenizer, sequence_length=16, cache=tmp_path).tokens.tolist() == expected


@pytest.mark.parametrize(
    "damage", ["no sidecar", "empty sidecar", "other sidecar", "no digest", "short", "other content", "gone"]
)
def test_a_damaged_cache_is_made_again(damage, corpus, tokenizer, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    expected = pack(corpus, tokenizer, sequence_length=16, cache=cache).tokens.tolist()
    (data,), (sidecar,) = cache.glob("*.tokens"), cache.glob("*.json")
    if damage == "no sidecar":
        sidecar.unlink()
    elif damage == "empty sidecar":
        sidecar.write_text("")
    elif damage == "other sidecar":
        sidecar.write_text("[1]")
    elif damage == "no digest":
        tree = json.loads(sidecar.read_text())
        del tree["sha256"]
        sidecar.write_text(json.dumps(tree))
    elif damage == "short":
        data.write_bytes(data.read_bytes()[:-2])
    elif damage == "other content":  # of equal size
        tokens = np.fromfile(data, dtype="<u2")
        tokens[-1] ^= 1
        tokens.tofile(data)
    else:
        data.unlink()
    counter = Counter(monkeypatch)
    assert pack(corpus, tokenizer, sequence_length=16, cache=cache).tokens.tolist() == expected
    assert counter.calls == 1


def test_packers_at_the_same_time_tokenize_once_and_agree(corpus, tokenizer, tmp_path, monkeypatch):
    counter = Counter(monkeypatch)
    barrier = threading.Barrier(4)
    found = []

    def work():
        barrier.wait()
        found.append(pack(corpus, tokenizer, sequence_length=16, cache=tmp_path / "cache").tokens.tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected_tokens(corpus, tokenizer)] * 4
    assert counter.calls == 1


DIES_HALF_WAY = """
import os, sys
from pathlib import Path
from transformers import PreTrainedTokenizerFast
from antiphase.lab.text import packing, token_files
token_files.PIECE, token_files.BATCH = 100, 200
tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[2])
corpus, cache = [sys.argv[1]], Path(sys.argv[3])
packing.pack(corpus, tokenizer, sequence_length=16, cache=cache, progress=lambda tokens: os._exit(9))
"""


@pytest.mark.slow
def test_a_packer_that_dies_leaves_neither_lock_nor_half_a_file(corpus, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", DIES_HALF_WAY, corpus[0], str(tmp_path / "tokenizer"), str(cache)]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode == 9
    assert len(list(cache.glob(".*.tmp"))) == 1
    assert not list(cache.glob("*.json"))
    packed = pack(corpus, tokenizer, sequence_length=16, cache=cache)
    assert packed.tokens.tolist() == expected_tokens(corpus, tokenizer)
    assert not list(cache.glob(".*.tmp"))
