"""What a run reads: its tokens, its tokenizer and its held-out text, made once and only among files of their own."""

import re
from dataclasses import replace

import numpy
import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text import label_mapping, retrieval
from antiphase.lab.text import prepare as prepare_module
from antiphase.lab.text.label_mapping import WORDS, example
from antiphase.lab.text.packing import PackedTokens
from antiphase.lab.text.prepare import PreparedData, check_task, prepare, symbol_tokenizer
from antiphase.lab.text.retrieval import CITIES, RetrievalTask, SymbolLanguage, TextLanguage, needle, needle_page
from antiphase.ops.shapes import IGNORED_TARGET

LENGTH = 29
SYMBOLS = SymbolLanguage(9, 11, 5)


@pytest.mark.slow
def test_a_mixture_of_files_is_prepared_and_its_weights_are_not_part_of_the_tokens(tmp_path, generated_text):
    for index in range(3):
        (tmp_path / f"{index}.txt").write_text(generated_text[index * 9000 : index * 9000 + 9000])
    common = {"source": "text", "sequence_length": 160, "needles": 2, "queries": 1, "needle_share": 0.0}
    common |= {"paths": [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")], "validation": [str(tmp_path / "2.txt")]}
    settings = DataSettings(**common, vocabulary_size=400)
    plain = prepare(settings, tmp_path / "cache")
    mixture = prepare(replace(settings, weights=[0.9, 0.1], order="keyed"), tmp_path / "cache")
    assert mixture.content == plain.content
    packed = mixture.training_text
    assert len(packed.ends) == 2
    batch = mixture.stream(batch_size=10, seed=0).batch(0).input_ids
    second = {tuple(packed.block(index).tolist()) for index in packed.blocks_of(1)}
    assert sum(tuple(row.tolist()) in second for row in batch) == 1


@pytest.fixture
def prepared(text_tokenizer, generated_text):
    """The first half of the text for training, with a mark at every other token that validation lacks."""
    tokens = numpy.array(text_tokenizer.encode(generated_text), dtype=numpy.uint16)
    training, validation = tokens[: len(tokens) // 2].copy(), tokens[len(tokens) // 2 :].copy()
    training[::2] = text_tokenizer.pad_token_id
    settings = DataSettings(source="text", sequence_length=300, needles=2, queries=1, needle_share=0.5)
    return PreparedData(settings, text_tokenizer, PackedTokens(training, 300), PackedTokens(validation, 300))


def test_filler_of_the_evaluation_is_held_out_and_that_of_training_is_not(prepared):
    mark = prepared.tokenizer.pad_token_id
    evaluation = prepared.task().sample(20, torch.Generator().manual_seed(1))
    assert not (evaluation.input_ids == mark).any()
    assert not (prepared.validation(5).input_ids == mark).any()
    stream = prepared.stream(batch_size=4, seed=0)
    for step in range(5):
        rows = stream.batch(step).input_ids
        assert ((rows == mark).sum(1) > 50).all()  # of blocks and of retrieval sequences


def test_validation_is_blocks_spread_over_the_held_out_text(prepared):
    held_out = prepared.validation_text
    assert len(held_out) > 6
    for count in (1, 3, len(held_out), len(held_out) + 5):
        batch = prepared.validation(count)
        expected = min(count, len(held_out))
        assert batch.input_ids.shape == (expected, 300)
        assert torch.equal(batch.labels, batch.input_ids)
        assert len({tuple(row.tolist()) for row in batch.input_ids}) == expected
    assert torch.equal(prepared.validation(2).input_ids[1], held_out.block(len(held_out) // 2))


def test_synthetic_validation_is_not_a_training_batch():
    settings = DataSettings(
        source="synthetic", sequence_length=LENGTH, needles=3, queries=2, keys=9, numbers=11, fillers=5
    )
    data = PreparedData(settings, symbol_tokenizer(SYMBOLS), None, None)
    validation = data.validation(4)
    assert torch.equal(validation.input_ids, data.validation(4).input_ids)
    for seed in range(3):
        assert not torch.equal(data.stream(batch_size=4, seed=seed).batch(0).input_ids, validation.input_ids)


def test_the_task_takes_other_sizes_than_those_of_training(prepared):
    assert isinstance(prepared.task().language, TextLanguage)
    task = prepared.task(needles=3, queries=2, sequence_length=250)
    assert (task.needles, task.queries, task.sequence_length) == (3, 2, 250)
    plain = prepared.task()
    assert (plain.needles, plain.queries, plain.sequence_length) == (2, 1, 300)


def test_the_tokenizer_of_symbols_reads_and_writes_every_word():
    tokenizer = symbol_tokenizer(SYMBOLS)
    assert len(tokenizer) == len(SYMBOLS.words)
    assert tokenizer(" ".join(SYMBOLS.words))["input_ids"] == list(range(len(SYMBOLS.words)))
    assert tokenizer.decode(list(range(len(SYMBOLS.words)))).split() == SYMBOLS.words
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("needles", "labels"), [(0.25, 0.25), (0.5, 0.1), (0.9, 0.1), (0.05, 0.02)])
def test_a_tokenizer_made_for_a_run_keeps_the_words_of_its_tasks_whole(tmp_path, needles, labels):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{index % 97} of a long and plain text," for index in range(4000)))
    common = {"source": "text", "sequence_length": 200, "needles": 2, "queries": 1, "vocabulary_size": 1200}
    common |= {"paths": [str(text)], "validation_share": 0.2}
    both = prepare(DataSettings(**common, needle_share=needles, label_share=labels), tmp_path / "cache").tokenizer
    for city in CITIES:
        assert both.tokenize(needle(city, "4821")) == ["ĠCity", "Ġnumber", ":", f"Ġ{city}", "Ġ48", "21", "."]
    for word in WORDS:
        assert len(both.tokenize(example(word, "red"))) == 5
    neither = prepare(DataSettings(**common, needle_share=0.0), tmp_path / "cache").tokenizer
    assert len(neither.tokenize(needle("Copenhagen", "4821"))) > 7
    assert neither.tokenize("4821") == ["4", "8", "2", "1"]
    assert len(list((tmp_path / "cache").glob("tokenizer-*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_cached_tokenizer_that_has_changed_is_made_again(tmp_path, file):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{index % 97} of a long and plain text," for index in range(900)))
    settings = DataSettings(
        source="text", sequence_length=200, needles=2, queries=1, needle_share=0.0, vocabulary_size=300,
        paths=[str(text)], validation_share=0.2,
    )  # fmt: skip
    first = prepare(settings, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob("tokenizer-*")
    (folder / file).write_text((folder / file).read_text().replace("<|endoftext|>", "<|endoftexx|>"))
    again = prepare(settings, tmp_path / "cache")
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()
    assert again.content == first.content
    assert "<|endoftexx|>" not in (folder / file).read_text()


def test_other_words_of_a_task_are_other_content(prepared, monkeypatch):
    """A run begun with them is not gone on with, and its models are not asked in words that they do not know."""
    training, validation = (
        PackedTokens(text.tokens, 300, content=name)
        for name, text in (("a", prepared.training_text), ("b", prepared.validation_text))
    )
    data = replace(prepared, training_text=training, validation_text=validation)
    before = data.content
    assert before.startswith("a-b-")
    assert prepared.content is None  # nothing is known of these tokens
    for module, name in ((retrieval, "needle"), (prepare_module, "question"), (label_mapping, "example")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *words: " ".join(map(str, words)))
            assert data.content != before
    assert data.content == before


def test_a_page_for_the_tokenizer_has_every_city_equally_often_and_every_pair_of_digits():
    page = needle_page()
    assert {page.count(f" {city} ") for city in CITIES} == {2}
    numbers = re.findall(r" (\d\d)(\d\d)\.", page)
    assert {first for first, _ in numbers} == {str(pair) for pair in range(10, 100)}
    assert {second for _, second in numbers} == {f"{pair:02}" for pair in range(100)}


def test_a_run_reads_the_shares_of_its_settings(prepared):
    settings = replace(prepared.settings, needle_share=0.25, label_share=0.25, repeat_share=0.25)
    stream = replace(prepared, settings=settings).stream(batch_size=8, seed=0)
    assert (stream.text_rows, stream.needle_rows, stream.label_rows, stream.repeat_rows) == (2, 2, 2, 2)
    special = prepared.tokenizer.all_special_ids
    assert len(stream.words) == len(prepared.tokenizer) - len(special)
    assert not set(stream.words.tolist()) & set(special)
    assert (stream.batch(3).labels[6:] == IGNORED_TARGET).any(1).all()


class OneLongValue(SymbolLanguage):
    """One value of all takes four tokens."""

    def answer(self, value):
        return super().answer(value) * (4 if value == 7 else 1)

    def longest_answer(self):
        return 4


def test_the_one_value_that_is_too_long_is_seen_before_training():
    def task(length):
        return RetrievalTask(OneLongValue(9, 700, 5), needles=3, queries=2, sequence_length=length)

    check_task(task(26))  # one token to open with, and five facts of five
    with pytest.raises(InputError, match="take up to 26 tokens"):
        check_task(task(25))


def test_training_asks_for_several_at_once_and_evaluation_does_not():
    def prepared(together):
        settings = DataSettings(
            sequence_length=LENGTH, needles=3, queries=2, keys=9, numbers=11, fillers=5, asked_together=together
        )
        return PreparedData(settings, symbol_tokenizer(SYMBOLS), None, None)

    one, two = prepared(1), prepared(2)
    assert not torch.equal(*(data.stream(batch_size=6, seed=0).batch(0).input_ids for data in (one, two)))
    assert torch.equal(*(data.task().sample(6, keyed_generator(0)).input_ids for data in (one, two)))


def test_tokens_are_not_written_among_other_files(tmp_path):
    """Settings of a run that somebody else has trained may name any folder."""
    text, home = tmp_path / "text.txt", tmp_path / "home"
    text.write_text(" ".join(f"word{index % 97} of a plain text," for index in range(2000)))
    home.mkdir()
    settings = DataSettings(
        source="text", paths=[str(text)], sequence_length=200, needles=2, queries=1, needle_share=0.0,
        vocabulary_size=300, validation_share=0.2, cache=str(home),
    )  # fmt: skip
    prepare(settings, tmp_path / "cache")  # an empty folder is taken
    prepare(settings, tmp_path / "cache")  # and one that holds tokens
    for path in home.iterdir():
        if path.name.startswith("."):
            path.unlink()
    with pytest.raises(InputError, match=r"data\.cache \S+home: this is no folder of tokens"):
        prepare(settings, tmp_path / "cache")


def test_the_folder_of_tokens_may_be_named_from_home(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("one two three four five six seven eight nine ten " * 40)
    (tmp_path / "held.txt").write_text("eleven twelve thirteen fourteen fifteen sixteen " * 40)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = DataSettings(
        source="text", paths=[str(tmp_path / "text.txt")], validation=[str(tmp_path / "held.txt")],
        vocabulary_size=300, sequence_length=200, needles=2, queries=1, needle_share=0.0, cache="~/tokens",
    )  # fmt: skip
    prepare(settings, tmp_path / "other")
    assert (tmp_path / "tokens").is_dir()
    assert not (tmp_path / "~").exists()
