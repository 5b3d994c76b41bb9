"""Text that does not fit in memory: neither cuts nor processes change a token, and finished shards survive a kill."""

import csv
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from antiphase import cli
from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text import parts, token_files, vocabulary
from antiphase.lab.text.corpora import documents, texts_of
from antiphase.lab.text.files import sources
from antiphase.lab.text.packing import pack
from antiphase.lab.text.parts import shards_of
from antiphase.lab.text.prepare import prepare
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.lab.text.vocabulary import sampled
from support.paths import ROOT

SENTENCE = "In 1797 the “rightful property” of Mr. Bennet's daughters,\r\nnumber {}, was let: 日本語 ある.\n\n"


def texts(count):
    return [SENTENCE.format(number) * (1 + number % 7) for number in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts(40), 400)


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of two kilobytes instead of megabytes."""
    for name, size in {"SHARD": 2000, "CHUNK": 64, "LOOK": 512}.items():
        monkeypatch.setattr(parts, name, size)


def one_text(path):
    path.write_text("".join(texts(60)), newline="")


def json_lines(path):
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts(60))))


def parquet(path):
    pyarrow.parquet.write_table(pyarrow.table({"text": texts(60)}), path, row_group_size=5)


def comma_separated(path):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts(60))])


def compressed(path):
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts(60))


def folder(path):
    path.mkdir()
    one_text(path / "a.txt")
    json_lines(path / "b.jsonl")
    for index, text in enumerate(texts(20)):
        (path / f"c{index}.txt").write_text(text)
    (path / "d.txt").write_text(" \n" * 4)


FORMATS = {
    "a.txt": (one_text, 5), "a.jsonl": (json_lines, 5), "a.parquet": (parquet, 4), "a.csv": (comma_separated, 1),
    "a.jsonl.gz": (compressed, 1), "folder": (folder, 12),
}  # fmt: skip
"""What writes it, and the least number of shards it is cut into."""


def in_memory(paths, tokenizer):
    """The tokens of whole documents, one call each, with the end token between them."""
    ids = []
    for number, text in enumerate(documents(paths)):
        ids += [tokenizer.eos_token_id] if number else []
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


# ------------------------------------------------------------------------------------------ cuts and processes


@pytest.mark.parametrize("name", FORMATS)
def test_the_tokens_of_shards_are_those_of_whole_documents(name, tokenizer, tmp_path, small_shards):
    write, least = FORMATS[name]
    write(tmp_path / name)
    given = [str(tmp_path / name)]
    shards = shards_of(sources(given, "data"), "data", None)
    assert len(shards) >= least
    cut = "".join("".join(texts_of(shard)) for shard in shards)
    assert cut == "".join(documents(given))
    packed = pack(given, tokenizer, sequence_length=8, cache=tmp_path / "cache", workers=1)
    assert packed.tokens.tolist() == in_memory(given, tokenizer)
    assert packed.ends == (len(packed.tokens),)
    names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert len([one for one in names if not one.endswith(".lock")]) == 2


def test_a_tokenizer_that_no_cut_suits_gets_whole_files(tokenizer, tmp_path, small_shards):
    one_text(tmp_path / "a.txt")
    found = sources([str(tmp_path / "a.txt")], "data")
    assert len(shards_of(found, "data", lambda text, position: False)) == 1
    assert len(shards_of(found, "data", lambda text, position: True)) > 4


@pytest.mark.essential
@pytest.mark.slow
def test_processes_change_no_token_and_their_number_neither(tokenizer, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(token_files, "SHARD", 2000)
    folder(tmp_path / "folder")
    given, said, counted = [str(tmp_path / "folder")], [], []
    monkeypatch.setattr(token_files, "TELL_SECONDS", 0.0)
    found = [
        pack(
            given, tokenizer, sequence_length=8, cache=tmp_path / f"cache-{workers}", workers=workers,
            progress=counted.append, say=said.append,
        )
        for workers in (1, 2)
    ]  # fmt: skip
    digests = {hashlib.sha256(packed.tokens.tobytes()).hexdigest() for packed in found}
    assert len(digests) == 1
    assert found[1].tokens.tolist() == in_memory(given, tokenizer)
    assert "shards" in said[-1]
    assert "left" in said[-1]


def test_sources_end_where_their_text_ends(tokenizer, tmp_path, small_shards):
    folder(tmp_path / "folder")
    json_lines(tmp_path / "a.jsonl")
    (tmp_path / "b.txt").write_text("short")
    given = [str(tmp_path / name) for name in ("a.jsonl", "folder", "b.txt")]
    packed = pack(given, tokenizer, sequence_length=8, cache=tmp_path / "cache", workers=1)
    assert packed.tokens.tolist() == in_memory(given, tokenizer)
    sizes = [len(in_memory([path], tokenizer)) for path in given]
    assert packed.ends == (sizes[0], sizes[0] + 1 + sizes[1], sum(sizes) + 2)
    again = pack(given, tokenizer, sequence_length=8, cache=tmp_path / "cache")
    assert again.ends == packed.ends


def test_the_files_of_a_hub_dataset_are_shards(tokenizer, tmp_path, monkeypatch):
    for index in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts(12)[index * 4 : index * 4 + 4]]
        (tmp_path / f"{index}.jsonl").write_text("".join(lines))
    load = datasets.load_dataset
    asked = []

    def local(name, config, *, split, streaming):
        asked.append(name)
        files = sorted(map(str, tmp_path.glob("*.jsonl")))
        return load("json", data_files=files, split=split, streaming=streaming, cache_dir=str(tmp_path / "hub"))

    class Builder:
        hash = "one"
        config = type("Config", (), {"name": "default"})

    monkeypatch.setattr(datasets, "load_dataset", local)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *arguments: Builder)
    given = ["nobody-here/poems"]
    assert list(documents(given)) == texts(12)
    shards = shards_of(sources(given, "data"), "data", None)
    assert [list(texts_of(shard)) for shard in shards] == [texts(12)[:4], texts(12)[4:8], texts(12)[8:]]
    packed = pack(given, tokenizer, sequence_length=8, cache=tmp_path / "cache", workers=1)
    assert packed.tokens.tolist() == in_memory(given, tokenizer)
    assert set(asked) == {"nobody-here/poems"}


# ------------------------------------------------------------------------------------------ after a kill

PACKS = """
import sys
from pathlib import Path
from transformers import PreTrainedTokenizerFast
from antiphase.lab.text import parts, token_files
from antiphase.lab.text.packing import pack
if __name__ == "__main__":
    parts.SHARD = token_files.SHARD = 2000
    parts.CHUNK = 64
    tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[2])
    count = 0
    def wait(tokens):
        global count
        count += 1
        if count == 4:
            print("four shards", flush=True)
            sys.stdin.read()
    pack([sys.argv[1]], tokenizer, sequence_length=8, cache=Path(sys.argv[3]), workers=int(sys.argv[4]), progress=wait)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.essential)])
def test_finished_shards_survive_a_kill(workers, tokenizer, tmp_path, small_shards, monkeypatch):
    json_lines(tmp_path / "a.jsonl")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    cache, given = tmp_path / "cache", str(tmp_path / "a.jsonl")
    script = tmp_path / "packs.py"
    script.write_text(PACKS)
    command = [sys.executable, str(script), given, str(tmp_path / "tokenizer"), str(cache), str(workers)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert child.stdout.readline() == b"four shards\n"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    child.stdin.close()
    child.stdout.read()  # until its workers have ended too, which hold its output
    assert not list(cache.glob("[!.]*.tokens"))
    kept = {path.name: path.stat().st_mtime_ns for path in cache.glob(".*.tokens")}
    whole = list(cache.glob(".*.json"))
    assert 3 <= len(whole) <= len(kept)
    damaged = whole[1].with_suffix(".tokens")  # of equal size
    damaged.write_bytes(bytes(damaged.stat().st_size))
    for name in (damaged.name, whole[2].name):  # as a process leaves them that is killed while it writes
        (cache / f".{name}.1.tmp").touch()

    written = []
    original = token_files.write_shard
    monkeypatch.setattr(
        token_files, "write_shard", lambda path, *a, **k: written.append(path.name) or original(path, *a, **k)
    )
    said = []
    packed = pack([given], tokenizer, sequence_length=8, cache=cache, workers=1, say=said.append)
    assert packed.tokens.tolist() == in_memory([given], tokenizer)
    assert f"{len(whole) - 1} of " in said[0]
    assert damaged.name in written
    assert not set(written) & ({path.with_suffix(".tokens").name for path in whole} - {damaged.name})
    assert not list(cache.glob(".*.tokens")) + list(cache.glob(".*.json")) + list(cache.glob(".*.tmp"))


def test_shards_cut_elsewhere_are_written_again(tokenizer, tmp_path, small_shards, monkeypatch):
    json_lines(tmp_path / "a.jsonl")
    cache, given = tmp_path / "cache", [str(tmp_path / "a.jsonl")]

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(token_files, "_join", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(given, tokenizer, sequence_length=8, cache=cache, workers=1)
    assert len(list(cache.glob(".*.json"))) > 4
    monkeypatch.setattr(parts, "SHARD", 3000)
    said = []
    packed = pack(given, tokenizer, sequence_length=8, cache=cache, workers=1, say=said.append)
    assert packed.tokens.tolist() == in_memory(given, tokenizer)
    assert not said


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_sentence(tokenizer, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(token_files, "SHARD", 2000)
    json_lines(tmp_path / "a.jsonl")
    monkeypatch.setattr(token_files, "write_shard", dies)
    with pytest.raises(OSError, match=r"a process that reads it was killed.*data") as caught:
        pack([str(tmp_path / "a.jsonl")], tokenizer, sequence_length=8, cache=tmp_path / "cache", workers=2)
    assert caught.value.errno in cli.REMEDIES


def dies(*arguments):
    """Stands for a worker that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------------------------------ memory


def resident_file_pages():
    """Bytes of mapped files that count as memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much of a mapping is in memory")
def test_tokens_are_mapped_and_leave_memory_when_released(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("".join(texts(30)))
    packed = pack([str(tmp_path / "a.txt")], tokenizer, sequence_length=8, cache=tmp_path / "cache")
    (data,) = (tmp_path / "cache").glob("*.tokens")
    repeated = np.resize(np.asarray(packed.tokens), 20_000_000)
    repeated.tofile(data)
    sidecar = data.with_suffix(".json")
    digest = hashlib.sha256(repeated.tobytes()).hexdigest()
    tree = json.loads(sidecar.read_text()) | {"tokens": len(repeated), "ends": [len(repeated)], "sha256": digest}
    sidecar.write_text(json.dumps(tree))
    before = resident_file_pages()
    packed = pack([str(tmp_path / "a.txt")], tokenizer, sequence_length=8, cache=tmp_path / "cache")
    assert isinstance(packed.tokens, np.memmap)
    assert resident_file_pages() - before < 10_000_000  # mapping reads nothing
    training, _ = packed.split(0.1)
    assert int(training.tokens.astype(np.int64).sum()) > 0
    assert resident_file_pages() - before > 30_000_000
    training.release()
    assert resident_file_pages() - before < 10_000_000
    assert np.array_equal(training.tokens[:1000], repeated[:1000])


# ------------------------------------------------------------------------------------------ the vocabulary


def test_a_sample_of_the_text_is_bounded_and_a_function_of_the_seed(tmp_path, small_shards):
    json_lines(tmp_path / "a.jsonl")

    def drawn(seed, size=3000):
        settings = DataSettings(
            source="text", sequence_length=64, paths=[str(tmp_path / "a.jsonl")], vocabulary_sample=size,
            vocabulary_seed=seed,
        )  # fmt: skip
        return list(sampled(settings))

    found = [drawn(seed) for seed in range(4)]
    assert [sum(map(len, one)) for one in found] == [3000] * 4
    assert found[0] == drawn(0)
    assert len({tuple(one) for one in found}) == 4
    every = texts(60)
    assert all(text in every or any(other.startswith(text) for other in every) for text in found[0])
    assert sorted(drawn(0, size=10**9)) == sorted(every)


@pytest.mark.slow
def test_a_text_within_the_bound_gives_the_tokenizer_of_the_whole(tmp_path, small_shards):
    json_lines(tmp_path / "a.jsonl")
    size = (tmp_path / "a.jsonl").stat().st_size
    said = []

    def tokenizer_of(bound):
        settings = DataSettings(
            source="text", sequence_length=128, needles=2, queries=1, needle_share=0.0, vocabulary_size=400,
            paths=[str(tmp_path / "a.jsonl")], vocabulary_sample=bound, workers=1, validation_share=0.3,
        )  # fmt: skip
        return prepare(settings, tmp_path / "cache", progress=said.append).tokenizer.get_vocab()

    whole = train_tokenizer(texts(60), 400).get_vocab()
    assert tokenizer_of(size) == whole
    assert tokenizer_of(1500) != whole
    assert "training a tokenizer of 400 entries on up to 1,500 characters of the text" in said


def test_the_bound_is_on_text_that_is_unpacked(tmp_path):
    for name, opened in (("a.txt", open), ("b.txt.gz", gzip.open)):
        with opened(tmp_path / name, "wt", encoding="utf-8") as file:
            file.write("\n\n".join(texts(60)))
    settings = DataSettings(source="text", sequence_length=64, paths=[str(tmp_path / "a.txt")])
    size = (tmp_path / "a.txt").stat().st_size
    assert (tmp_path / "b.txt.gz").stat().st_size < size / 2
    assert vocabulary._size(settings) == size
    assert vocabulary._size(replace(settings, paths=[str(tmp_path)])) is None  # so it is sampled


# ------------------------------------------------------------------------------------------ bad input


def bad_source(path, kind):
    """A source that cannot be used."""
    rows = [json.dumps({"text": text}) for text in texts(60)]
    if kind == "no column":
        path.write_text("\n".join(json.dumps({"id": 1, "score": 2}) for _ in range(60)))
    elif kind == "ends early":
        path.write_text("\n".join(rows)[:-40])
    elif kind == "not text":
        path.write_text("\n".join([*rows, '{"text": 5}']))
    elif kind == "empty":
        path.write_text('{"text": " "}\n' * 10)
    elif kind == "no bytes":
        path.write_text("")


BAD = {
    "no column": "no column holds text", "ends early": "this is not JSON", "not text": "holds int instead of text",
    "empty": "every document in it is empty", "no bytes": "the file is empty",
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_source_that_cannot_be_used_costs_one_sentence(kind, tokenizer, tmp_path, small_shards):
    (tmp_path / "text").mkdir()
    json_lines(tmp_path / "text" / "a.jsonl")
    bad_source(tmp_path / "text" / "b.jsonl", kind)
    with pytest.raises(InputError) as caught:
        pack([str(tmp_path / "text")], tokenizer, sequence_length=8, cache=tmp_path / "cache", workers=1)
    message = str(caught.value)
    assert message.startswith(f"data {tmp_path / 'text' / 'b.jsonl'}")
    assert BAD[kind] in message
    assert "; " in message
    assert "\n" not in message
    if kind in ("ends early", "not text"):
        line = {"ends early": 60, "not text": 61}[kind]
        assert f"line {line}" in message


@pytest.mark.parametrize("write", [json_lines, one_text, parquet])
def test_a_file_that_is_cut_while_it_is_read_costs_one_sentence(write, tokenizer, tmp_path, small_shards):
    path = tmp_path / ("a.parquet" if write is parquet else "a.jsonl" if write is json_lines else "a.txt")
    write(path)
    shards = shards_of(sources([str(path)], "data"), "data", None)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    parts_of_all = [part for shard in shards for part in shard]
    with pytest.raises(InputError, match=r"ends early|not JSON|not a whole Parquet file"):
        list(texts_of(parts_of_all))


def test_a_missing_column_is_found_before_anything_is_tokenized(tokenizer, tmp_path, small_shards, monkeypatch):
    json_lines(tmp_path / "a.jsonl")
    bad_source(tmp_path / "b.jsonl", "no column")
    monkeypatch.setattr(token_files, "write_shard", lambda *arguments, **options: pytest.fail("tokenized"))
    given = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(InputError, match=r"b\.jsonl, line 1: no column holds text"):
        pack(given, tokenizer, sequence_length=8, cache=tmp_path / "cache")


def test_a_process_that_tokenizes_loads_neither_torch_nor_transformers():
    """They would take longer to load, and more memory, than a shard."""
    command = (
        "import sys, antiphase.lab.text.token_files as _; sys.exit(len({'torch', 'transformers'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT, check=False, timeout=300).returncode == 0
