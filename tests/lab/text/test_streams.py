"""Training batches depend on seed and step alone, show every block once an epoch, and never show what is held out."""

import hashlib
import json

import numpy
import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.randomness import KeyedPermutation, keyed_generator
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text.packing import PackedTokens
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.retrieval import RetrievalTask, SymbolLanguage
from antiphase.lab.text.streams import SHORTEST_PERIOD, SyntheticStream, TextStream
from antiphase.ops.shapes import IGNORED_TARGET

LENGTH = 29
SYMBOLS = SymbolLanguage(9, 11, 5)
TASK = RetrievalTask(SYMBOLS, needles=3, queries=2, sequence_length=LENGTH)


def synthetic(*, batch_size=8, needle_share=0.5, seed=0):
    return SyntheticStream(TASK, batch_size=batch_size, needle_share=needle_share, key=(seed, "training"))


def text(*, blocks=13, batch_size=4, needle_share=0.0, seed=0, **more):
    """Block i is i at every place; a rest at the end belongs to no block."""
    tokens = numpy.repeat(numpy.arange(blocks + 1, dtype=numpy.uint16) + 100, LENGTH)[: blocks * LENGTH + 3]
    return TextStream(
        PackedTokens(tokens, LENGTH), TASK, batch_size=batch_size, needle_share=needle_share, key=(seed, "training"),
        **more,
    )  # fmt: skip


def mixed(weights, *, ends=(8 * LENGTH + 3, 13 * LENGTH, 40 * LENGTH - 1), batch_size=10, seed=0, order="keyed"):
    """As many sources as weights; a token says which block of which source it is in."""
    ends = ends[: len(weights)]
    sizes = numpy.diff([0, *ends])
    tokens = numpy.repeat(100 * (numpy.arange(len(ends)) + 1), sizes) + numpy.arange(sum(sizes)) // LENGTH
    packed = PackedTokens(tokens.astype(numpy.uint16), LENGTH, ends=ends)
    return TextStream(
        packed, TASK, batch_size=batch_size, needle_share=0.0, key=(seed, "training"), weights=weights, order=order
    )


@pytest.mark.parametrize(
    "make",
    [synthetic, text, lambda **k: text(needle_share=0.5, **k), lambda **k: text(order="keyed", **k),
     lambda **k: mixed([0.7, 0.3], **k)],
)  # fmt: skip
def test_a_batch_is_a_pure_function_of_seed_and_step(make):
    stream = make()
    forwards = [stream.batch(step) for step in range(12)]
    fresh = make()
    for step in (11, 3, 7, 3, 0):  # any order, after any other
        batch = fresh.batch(step)
        assert torch.equal(batch.input_ids, forwards[step].input_ids)
        assert torch.equal(batch.labels, forwards[step].labels)
    assert not torch.equal(forwards[0].input_ids, forwards[1].input_ids)
    assert not torch.equal(make(seed=1).batch(0).input_ids, forwards[0].input_ids)


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_the_share_of_retrieval_sequences_is_kept(share, rows):
    batch = synthetic(needle_share=share).batch(0)
    assert batch.input_ids.shape == batch.labels.shape == (8, LENGTH)
    assert batch.input_ids.dtype == torch.int64
    answers = (batch.labels != IGNORED_TARGET).sum(1)
    assert answers[:rows].tolist() == [2] * rows
    assert (answers[rows:] > 2).all()
    mixed = text(batch_size=8, needle_share=share).batch(0)
    assert ((mixed.input_ids < 100).all(1).sum() == rows).item()


def test_all_but_the_first_time_counts_in_a_repeated_sequence():
    """Each row has a period p: tokens come again after p, the first p are not predicted, all later ones are."""
    batch = synthetic(needle_share=0.0).batch(5)
    assert (batch.input_ids[:, 0] == SYMBOLS.opening()[0]).all()
    periods = (batch.labels == IGNORED_TARGET).sum(1) - 1
    assert len(set(periods.tolist())) > 2  # with one for all, looking back a fixed distance would do
    for ids, labels, period in zip(batch.input_ids[:, 1:], batch.labels[:, 1:], periods.tolist(), strict=True):
        assert SHORTEST_PERIOD <= period <= (LENGTH - 1) // 2
        assert torch.equal(ids[period:], ids[:-period])
        assert (labels[:period] == IGNORED_TARGET).all()
        assert torch.equal(labels[period:], ids[period:])


@pytest.mark.parametrize("order", ["permutation", "keyed"])
def test_each_epoch_shows_every_block_once_in_an_order_of_its_own(order):
    stream = text(blocks=13, batch_size=4, order=order)
    shown = torch.cat([stream.batch(step).input_ids[:, 0] for step in range(39 // 4 + 1)]).tolist()
    epochs = [shown[start : start + 13] for start in (0, 13, 26)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100, 113))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for row in stream.batch(0).input_ids:
        assert (row == row[0]).all()  # whole blocks


def test_all_of_a_text_batch_counts_but_the_needles():
    batch = text(batch_size=8, needle_share=0.5).batch(1)
    texts, retrieval = batch.labels.split(4)
    assert torch.equal(texts, batch.input_ids[:4])
    sampled = TASK.sample(4, keyed_generator(0, "training", "needles", 1))
    assert torch.equal(sampled.input_ids, batch.input_ids[4:])
    needles = sampled.spans["answer"] | sampled.spans["other_needles"]
    assert needles.sum(1).tolist() == [2 * TASK.needles] * 4
    assert (retrieval[needles] == IGNORED_TARGET).all()
    assert torch.equal(retrieval[~needles], sampled.input_ids[~needles])
    answers = text(batch_size=8, needle_share=0.5, answers_only=True).batch(1)
    assert torch.equal(answers.labels[4:], sampled.labels())
    assert torch.equal(answers.input_ids, batch.input_ids)


# ------------------------------------------------------------------------------------------ pages

ROOMY = RetrievalTask(SYMBOLS, needles=3, queries=2, sequence_length=60)


def paged(kind, *, answers_only=False):
    if kind == "synthetic":
        return SyntheticStream(ROOMY, batch_size=6, needle_share=0.5, key=(0, "training"))
    packed = PackedTokens(numpy.arange(1000, 1000 + 20 * 60, dtype=numpy.uint16), 60)
    return TextStream(packed, ROOMY, batch_size=6, needle_share=0.5, key=(0, "training"), answers_only=answers_only)


@pytest.mark.parametrize("kind", ["synthetic", "text"])
def test_a_batch_in_pages_is_a_pure_function_of_its_step_and_their_length(kind):
    stream, fresh = paged(kind), paged(kind)
    found = {(step, length): stream.batch(step, length) for step in range(4) for length in (None, 60, 20, 15)}
    for step, length in ((3, 15), (0, 60), (3, None), (1, 20), (1, 15)):
        batch = fresh.batch(step, length)
        assert torch.equal(batch.input_ids, found[step, length].input_ids)
        assert torch.equal(batch.labels, found[step, length].labels)
    for step in range(4):
        assert torch.equal(found[step, None].input_ids, found[step, 60].input_ids)
        assert found[step, 60].pages is None
        assert {batch.input_ids.shape for (at, _), batch in found.items() if at == step} == {(6, 60)}


@pytest.mark.parametrize("length", [15, 20, 30])
def test_each_page_is_a_whole_sequence_and_text_stays_as_it_is(length):
    stream = paged("text", answers_only=True)
    batch, long = stream.batch(2, length), stream.batch(2)
    assert batch.pages.tolist() == [1] * 3 + [60 // length] * 3
    assert torch.equal(batch.input_ids[:3], long.input_ids[:3])
    assert torch.equal(batch.labels[:3], long.labels[:3])
    pages, labels = batch.input_ids[3:].view(-1, length), batch.labels[3:].view(-1, length)
    sampled = ROOMY.of_length(length).sample(len(pages), keyed_generator(0, "training", "needles", 2))
    assert torch.equal(pages, sampled.input_ids)
    assert torch.equal(labels, sampled.labels())
    assert (pages[:, 0] == SYMBOLS.opening()[0]).all()


def test_nothing_predicts_the_first_token_of_a_page():
    filler = paged("text").batch(0, 20).labels
    repeated = paged("synthetic").batch(0, 20)
    assert (filler[3:, ::20] == IGNORED_TARGET).all()
    assert (filler[3:] != IGNORED_TARGET).sum() > 3 * 3 * 10  # filler counts
    assert repeated.pages.tolist() == [3] * 6
    assert (repeated.input_ids[:, ::20] == SYMBOLS.opening()[0]).all()


@pytest.mark.parametrize("length", [15, 20, 30])
def test_repeated_tokens_among_text_are_as_short_as_pages(length):
    packed = PackedTokens(numpy.arange(1000, 1000 + 20 * 60, dtype=numpy.uint16), 60)
    words = torch.arange(2000, 2500)
    stream = TextStream(packed, ROOMY, batch_size=6, needle_share=0.5, key=(0, "training"), words=words,
                        repeat_share=1 / 3)  # fmt: skip
    batch, count = stream.batch(1, length), 60 // length
    assert batch.pages.tolist() == [1] + [count] * 5
    for page, labels in zip(batch.input_ids[4:].view(-1, length), batch.labels[4:].view(-1, length), strict=True):
        first = int((labels != IGNORED_TARGET).nonzero()[0])
        period = first - 1  # the page's first token opens it
        assert 4 <= period <= (length - 1) // 2
        assert torch.equal(page[first:], page[1:-period])
        assert torch.equal(labels[first:], page[first:])
        assert (labels[:first] == IGNORED_TARGET).all()


# ------------------------------------------------------------------------------------------ order and mixtures


def test_a_keyed_order_is_another_one_and_holds_nothing():
    stored, keyed = (text(blocks=500, order=order) for order in ("permutation", "keyed"))
    assert not torch.equal(stored.batch(0).input_ids, keyed.batch(0).input_ids)
    (rows,) = keyed._kinds
    assert isinstance(rows.block.__self__.blocks, range)
    assert isinstance(rows.block.__self__._places, KeyedPermutation)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (0.5, 0.25, 0.25), (0.0001, 0.9999), (1 / 3, 1 / 3, 1 / 3)])
def test_a_mixture_has_its_weights_in_every_stretch(weights):
    stream = mixed(weights)
    chosen = [stream._kinds[0].of_step(step) for step in range(1200)]
    source_of = numpy.searchsorted(stream.packed.ends, (numpy.array(chosen) + 1) * LENGTH - 1, side="right")
    for source, weight in enumerate(weights):
        is_own = source_of == source
        for rows in (is_own[:1], is_own[:7], is_own[3:250], is_own[900:1100]):
            assert abs(rows.sum() - weight * rows.size) <= 2
        assert is_own[:1000].sum() == pytest.approx(weight * 10_000, abs=1)  # one cycle


def test_no_block_of_a_mixture_has_two_sources_and_each_source_has_passes_of_its_own():
    stream = mixed([0.5, 0.3, 0.2])
    rows = torch.cat([stream.batch(step).input_ids for step in range(30)])
    assert (rows == rows[:, :1]).all()
    blocks = numpy.array([stream._kinds[0].of_step(step) for step in range(1100)]).ravel()  # more than a cycle
    for source, own in enumerate([range(8), range(9, 13), range(13, 39)]):
        assert stream.packed.blocks_of(source) == own
        shown = blocks[(blocks >= own.start) & (blocks < own.stop)]
        passes = shown[: len(shown) // len(own) * len(own)].reshape(-1, len(own))
        assert (numpy.sort(passes) == list(own)).all()
        assert len(numpy.unique(passes, axis=0)) > 10


def test_a_source_without_a_whole_block_is_refused():
    with pytest.raises(InputError, match=r"^data number 2 holds less than one block of data.sequence_length=29;"):
        mixed([0.5, 0.5], ends=(8 * LENGTH + 3, 9 * LENGTH))


BATCHES_BEFORE = {None: "7e590b63838ad506", 0.5: "9ea23cbff38f2cd8"}
"""SHA-256 of batches and held-out blocks as version 0.1.0 gave them before text was read in shards, by long share."""


@pytest.mark.parametrize("long_share", BATCHES_BEFORE)
def test_batches_have_not_changed_by_a_bit(long_share, tmp_path, generated_text):
    third = len(generated_text) // 3
    (tmp_path / "a.txt").write_text(generated_text[:third])
    lines = [json.dumps({"text": part}) + "\n" for part in generated_text[third:].split(". ")]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    settings = DataSettings(
        source="text", sequence_length=100, needles=2, queries=1, needle_share=0.25, repeat_share=0.25,
        vocabulary_size=420, paths=[str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")], validation_share=0.1,
        long_share=long_share,
    )  # fmt: skip
    data = prepare(settings, tmp_path / "cache")
    digest = hashlib.sha256()
    stream = data.stream(batch_size=8, seed=3)
    for step in (*range(12), 500):
        batch = stream.batch(step)
        digest.update(batch.input_ids.numpy().tobytes())
        digest.update(batch.labels.numpy().tobytes())
    digest.update(data.validation(7).input_ids.numpy().tobytes())
    assert digest.hexdigest()[:16] == BATCHES_BEFORE[long_share]


# ---------------------------------------------------------------------------------------- repeated passages


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (0.25, 2), (1.0, 8)])
def test_random_tokens_of_a_text_run_start_again_after_a_period_of_their_own(share, rows):
    packed = PackedTokens(numpy.arange(1000, 1000 + 40 * LENGTH, dtype=numpy.uint16), LENGTH)
    words = torch.arange(300, 900)
    stream = TextStream(
        packed, TASK, batch_size=8, needle_share=0.0, key=(0, "training"), words=words, repeat_share=share
    )
    periods, seen = set(), set()
    for step in range(12):
        batch = stream.batch(step)
        assert torch.equal(batch.input_ids, stream.batch(step).input_ids)
        repeated = batch.input_ids[:, 1] < 1000
        assert repeated.tolist() == [False] * (8 - rows) + [True] * rows
        assert torch.equal(batch.labels[~repeated], batch.input_ids[~repeated])
        for ids, labels in zip(batch.input_ids[repeated], batch.labels[repeated], strict=True):
            assert ids[0] == SYMBOLS.opening()[0]
            period = int((labels == IGNORED_TARGET).sum()) - 1
            assert SHORTEST_PERIOD <= period <= LENGTH // 2
            assert torch.equal(ids[1 + period :], ids[1:-period])
            assert torch.equal(labels[1 + period :], ids[1 + period :])
            assert set(ids[1:].tolist()) <= set(words.tolist())
            periods.add(period)
            seen |= set(ids[1:].tolist())
    assert (len(periods) > 4 and len(seen) > 100) or not rows


# ------------------------------------------------------------------------------------------ long documents

END = 7


def documents(lengths):
    """Documents of so many tokens, each token the number of its document from 100 on, with the end token between."""
    parts = [numpy.full(length, 100 + index) for index, length in enumerate(lengths)]
    whole = numpy.concatenate([numpy.append(part, END) for part in parts]).astype(numpy.uint16)
    return PackedTokens(whole, LENGTH)


@pytest.mark.parametrize("at_once", [2, 1 << 12])
def test_blocks_inside_one_document_are_distinguished_from_others(at_once, monkeypatch):
    monkeypatch.setattr("antiphase.lab.text.packing.BLOCKS_AT_ONCE", at_once)
    packed = documents([3 * LENGTH, 5, 5, 2 * LENGTH, 4])
    expected = [index for index in range(len(packed)) if not (packed.block(index) == END).any()]
    assert packed.without(END).tolist() == expected
    assert 0 < len(expected) < len(packed)
    assert documents([4, 5, 6, 7, 9]).without(END).tolist() == []


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (0.5, 3), (1.0, 6)])
def test_the_share_of_long_documents_is_kept_and_each_kind_is_shown_once_an_epoch(share, rows):
    packed = documents([6 * LENGTH, 5, 5, 4 * LENGTH, 4, 20, 8, 9, 30, 31])
    stream = TextStream(packed, TASK, batch_size=6, needle_share=0.0, key=(0, "training"), long_share=share, end=END)
    inside = [tuple(packed.block(index).tolist()) for index in packed.without(END).tolist()]
    shown = []
    for step in range(7):
        batch = [tuple(row) for row in stream.batch(step).input_ids.tolist()]
        assert sum(END not in row for row in batch) == rows
        shown += [row for row in batch if END not in row]
    assert sorted(shown[: len(inside)]) == (sorted(inside) if rows else [])
    assert torch.equal(stream.batch(3).input_ids, stream.batch(3).input_ids)


def test_text_without_long_documents_is_refused():
    with pytest.raises(InputError, match=r"data.long_share: no document has 29 tokens without a break"):
        TextStream(documents([4, 5, 6, 7, 20]), TASK, batch_size=2, needle_share=0.0, key=(0,), long_share=0.5, end=END)
