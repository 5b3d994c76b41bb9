"""Corpora: every format gives back the text that was written, and every bad input one clear sentence."""

import csv
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from datasets.exceptions import DatasetNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.base.errors import InputError
from antiphase.lab.text import parts as parts_of_files
from antiphase.lab.text.corpora import documents, fingerprint, texts_of
from antiphase.lab.text.files import is_same_part, sources
from antiphase.lab.text.parts import shards_of

# what splitlines() would break at, and what CSV and JSON have to quote
HARD = ["one\u0085still one", "a\u2028b\x0bc\x0c", 'said "yes",\nand\tleft', "naïve 日本語 🙂", "\u00a0x", "ends\n"]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_csv(path, rows, delimiter=","):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return str(path)


def write_parquet(path, columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return str(path)


def message(paths, **options):
    """The error's text: one line, a sentence without a stop, the field first."""
    with pytest.raises(InputError) as caught:
        list(documents(paths, **options))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(options.get("field", "data"))
    return text


# ------------------------------------------------------------------------------------------ plain text


@pytest.mark.parametrize("name", ["a.txt", "a.md", "README", "notes.rst", "a.b.c"])
def test_a_plain_file_is_one_document_kept_as_written(tmp_path, name):
    text = "first\n\n" + "\n".join(HARD) + "  "
    assert list(documents([write(tmp_path / name, text)])) == [text]


def test_carriage_returns_go_before_newlines_only_and_the_byte_order_mark_goes(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\r\r\n\xef\xbb\xbf")
    assert list(documents([path])) == ["one\ntwo\rthree\r\n\ufeff"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_that_is_not_utf8_is_refused_with_the_byte_position(tmp_path, mark):
    content = mark + "é".encode() * 70_000 + b"\xe9!"
    path = write(tmp_path / "latin.txt", content)
    text = message([path], field="validation")
    assert path in text
    assert f"byte {len(content) - 2} " in text
    assert "0xe9" in text
    assert "UTF-8" in text
    lines = write(tmp_path / "latin.jsonl", mark + b'{"text": "a"}\n' * 3 + b'{"text": "\xff"}\n')
    assert f"byte {len(mark) + 3 * 14 + 10} " in message([lines])
    table = write(tmp_path / "latin.csv", mark + b"text\nab\xff\n")
    assert f"byte {len(mark) + 7} " in message([table])


# ------------------------------------------------------------------------------------------ folders


def test_folders_are_read_recursively_in_one_order_without_hidden_files(tmp_path):
    folder = tmp_path / "corpus"
    for name in ["b.txt", "a/z.txt", "a/a.md", "a.txt", "B.txt", "deep/er/x", ".hidden", ".git/config", "a/.cache"]:
        write(folder / name, name)
    write(folder / "empty.txt", "")
    write(folder / "image.png", b"\x89PNG\xff")
    write_parquet(folder / "c.parquet", {"text": ["c1", "c2"]})
    expected = ["B.txt", "a/a.md", "a/z.txt", "a.txt", "b.txt", "c1", "c2", "deep/er/x"]
    assert list(documents([str(folder)])) == expected
    assert list(documents([str(folder), str(folder / "b.txt")])) == [*expected, "b.txt"]


def test_a_folder_says_what_it_leaves_out(tmp_path, caplog):
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "scan.pdf", b"%PDF")
    list(documents([str(tmp_path)]))
    assert "scan.pdf" in caplog.text


def test_linked_folders_are_read_once(tmp_path):
    write(tmp_path / "corpus" / "a.txt", "a")
    write(tmp_path / "disk" / "b.txt", "b")
    (tmp_path / "corpus" / "more").symlink_to(tmp_path / "disk")
    (tmp_path / "corpus" / "again").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(tmp_path / "corpus")
    assert list(documents([str(tmp_path / "corpus")])) == ["a", "b"]


def test_a_broken_link_in_a_folder_is_not_passed_over(tmp_path):
    write(tmp_path / "a.txt", "a")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    assert "b.txt" in message([str(tmp_path)])


def test_missing_and_empty_inputs_are_refused_at_the_call(tmp_path):
    good = write(tmp_path / "good.txt", "x")
    (tmp_path / "none").mkdir()
    write(tmp_path / "only" / ".hidden", "x")
    write(tmp_path / "binary" / "x.png", b"\x89")
    cases = {
        str(tmp_path / "missing.txt"): "no such file or folder", "missing.txt": "no such file or folder",
        "a/b/missing.txt": "no such file or folder", "./gone": "no such file or folder",
        write(tmp_path / "empty.txt", ""): "empty",
        write(tmp_path / "weights.safetensors", "x"): "cannot be read as text",
        write(tmp_path / "t.parquet.gz", "x"): "cannot be read as text", str(tmp_path / "none"): "no file",
        str(tmp_path / "only"): "no file", str(tmp_path / "binary"): "no file", "/dev/null": "neither",
    }  # fmt: skip
    for path, words in cases.items():
        with pytest.raises(InputError) as caught:
            documents([good, path])  # not iterated: a long run must not find out at its second file
        assert words in str(caught.value)
        assert str(caught.value).startswith(f"data {path}")
        with pytest.raises(InputError):
            fingerprint([good, path])
    with pytest.raises(InputError, match="data needs at least one"):
        documents([])
    with pytest.raises(InputError, match="data must not be empty"):
        documents([good, ""])
    with pytest.raises(TypeError):
        documents(good)


def test_a_mistyped_path_beside_a_real_folder_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    write(tmp_path / "books" / "a.txt", "a")
    monkeypatch.chdir(tmp_path)
    assert "no such file or folder" in message(["books/b"])


@pytest.mark.parametrize("content", [" \n\t\n", "\ufeff", "\ufeff \r\n"])
def test_text_of_nothing_but_white_space_is_refused(tmp_path, content):
    path = write(tmp_path / "a.txt", content)
    assert "empty" in message([path])
    assert "empty" in message([write(tmp_path / "good.txt", "x"), path])


# ------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a.JSONL"])
def test_json_lines(tmp_path, name):
    lines = [json.dumps({"id": str(i), "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(HARD)]
    path = write(tmp_path / name, "\ufeff" + "\r\n".join(lines) + "\n\n")
    assert list(documents([path])) == HARD
    assert list(documents([path], text_field="id")) == [str(i) for i in range(len(HARD))]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_csv_with_crlf_and_quoted_line_breaks(tmp_path, name, delimiter):
    rows = [["text", "category"], *([text, "x"] for text in HARD)]
    path = write_csv(tmp_path / name, rows, delimiter)
    assert b"\r\n" in Path(path).read_bytes()
    assert list(documents([path])) == HARD
    assert list(documents([path], text_field="category")) == ["x"] * len(HARD)


def test_a_csv_field_may_be_a_whole_book(tmp_path):
    book = "word " * 60_000
    assert list(documents([write_csv(tmp_path / "a.csv", [["text"], [book]])])) == [book]


def test_parquet_is_read_whole_whatever_kind_of_string(tmp_path):
    texts = [f"{i} {text}" for i in range(120) for text in HARD]
    for index, kind in enumerate([pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]):
        path = write_parquet(tmp_path / f"{index}.parquet", {"n": list(range(720)), "body": pyarrow.array(texts, kind)})
        assert list(documents([path])) == texts
    words = pyarrow.array(["x", "y", "x"]).dictionary_encode()
    assert list(documents([write_parquet(tmp_path / "d.parquet", {"n": [1, 2, 3], "w": words})])) == ["x", "y", "x"]


@pytest.mark.parametrize(("name", "content"), [
    ("a.txt.gz", "one\r\ntwo"), ("a.gz", "one\ntwo"), ("a.jsonl.gz", '{"text": "one\\ntwo"}'),
    ("a.csv.gz", 'text\n"one\ntwo"'),
])  # fmt: skip
def test_gzip(tmp_path, name, content):
    whole = gzip.compress(content.encode())
    assert list(documents([write(tmp_path / name, whole)])) == ["one\ntwo"]
    assert "gzip" in message([write(tmp_path / name, whole[:-9])])
    assert "gzip" in message([write(tmp_path / name, content)])


def test_the_column_is_text_or_the_only_one_of_strings(tmp_path):
    line = write(tmp_path / "a.jsonl", '{"id": 3, "review": "good", "stars": null}\n{"id": 4, "review": "bad"}\n')
    assert list(documents([line])) == ["good", "bad"]
    table = write_csv(tmp_path / "a.csv", [["id", " review "], ["3", "good"], ["4", "5"]])
    assert list(documents([table])) == ["good", "5"]
    assert list(documents([write_csv(tmp_path / "one.csv", [["word"], ["7"]])])) == ["7"]
    for path in (
        write(tmp_path / "b.jsonl", '{"document": "d", "summary": "s", "id": 1}'),
        write_csv(tmp_path / "b.csv", [["document", "summary", "id"], ["d", "s", "1"]]),
        write_parquet(tmp_path / "b.parquet", {"document": ["d"], "summary": ["s"], "id": [1]}),
    ):
        assert list(documents([path], text_field="summary")) == ["s"]
        for text in (message([path]), message([path], text_field="body")):
            assert path in text
            assert "document, summary, id" in text
            assert "--set data.text_field=NAME" in text
        assert "'body'" in message([path], text_field="body")
    assert "no column holds text" in message([write_parquet(tmp_path / "n.parquet", {"a": [1], "b": [2]})])


SOME_NULL = [
    [{"title": "A", "body": None}, {"title": "B", "body": "a long text"}],
    [{"title": "B", "body": "a long text"}, {"title": "A", "body": None}],
    [{"title": None, "body": None}, {"title": None, "body": "one"}, {"title": "B", "body": None}],
    [{"title": None, "body": None}, {"title": None, "body": "one"}, {"title": None, "body": "two"}],
    [{"title": None, "body": None}, {"title": None, "body": None}],
]
"""Rows of tables; the last but one has one column of text, and the last none."""


def read_as(kind, folder, rows):
    """What a table of these rows gives, or the end of the message that refuses it."""
    path = folder / f"a{kind}"
    if kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == ".csv":
        path.write_text("title,body\n" + "".join(f"{row['title'] or ''},{row['body'] or ''}\n" for row in rows))
    try:
        return list(documents([str(path)]))
    except InputError as error:
        return str(error).partition(": ")[2]


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
@pytest.mark.parametrize("rows", SOME_NULL)
def test_all_rows_decide_which_column_holds_the_text(tmp_path, kind, rows):
    holding = {name for row in rows for name, value in row.items() if value is not None}
    if len(holding) == 1:
        assert read_as(kind, tmp_path, rows) == [row["body"] for row in rows if row["body"]]
    else:
        found = "several columns hold" if holding else "no column holds"
        assert read_as(kind, tmp_path, rows).startswith(f"{found} text (columns: title, body)")


def test_a_later_part_of_a_file_has_the_column_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_of_files, "SHARD", 60)
    monkeypatch.setattr(parts_of_files, "CHUNK", 20)
    rows = [{"n": 1, "body": None}] * 9 + [{"n": 2, "body": "here"}] + [{"n": 3, "body": None}] * 9
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    shards = shards_of(sources([path], "data"), "data", None)
    assert len(shards) > 3
    assert [text for shard in shards for text in texts_of(shard)] == ["here"]


def test_null_and_empty_rows_are_left_out(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": null, "id": "x"}\n{"text": ""}\n{"text": " "}\n{"text": "kept"}\n')
    assert list(documents([path])) == ["kept"]
    assert list(documents([write_parquet(tmp_path / "a.parquet", {"text": [None, "", "kept"]})])) == ["kept"]
    assert "empty" in message(
        [write_parquet(tmp_path / "b.parquet", {"text": pyarrow.array([None], pyarrow.string())})]
    )


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.jsonl", '{"text": "a"}\n\n{"text": \n', "line 3"), ("a.jsonl", '{"text": "a"}\n["b"]\n', "line 2"),
    ("a.jsonl", '[\n{"text": "a"}\n]', "line 1"), ("a.jsonl", '{"text": "a"}\n{"body": "b"}\n', "line 2"),
    ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', "int"), ("a.jsonl", '{"text": "\\ud83d"}\n', "surrogate"),
    ("a.jsonl", "[" * 100_000, "line 1"), ("a.jsonl", '{"n": ' + "9" * 5000 + "}", "line 1"),
    ("a.csv", 'text,label\n"a\nb",1\nc,d,e\n', "line 4"), ("a.csv", "text,label\na\n", "line 2"),
    ("a.csv", 'text\n"a\nb\nc\n', "malformed"), ("a.tsv", 'text\tn\na\t1\n"b" c\t2\n', "line 3: malformed"),
    ("a.csv", "text,label\n", "empty"), ("a.parquet", "PAR1 not really", "Parquet"),
])  # fmt: skip
def test_malformed_tables_are_refused_with_the_place(tmp_path, name, content, words):
    text = message([write(tmp_path / name, content)])
    assert name in text
    assert words in text


@pytest.mark.slow
@pytest.mark.parametrize("texts", [["x" * 10**8], [word * 10**6 for word in "ab"] * 10**4], ids=["long", "repeated"])
def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused(tmp_path, texts):
    """One text of 100 MB in a few KB, and two texts of 1 MB that are repeated to 20 GB; memory stays bounded."""
    path = tmp_path / "bomb.parquet"
    words = pyarrow.array(texts[:2]).dictionary_encode()
    column = pyarrow.DictionaryArray.from_arrays(numpy.arange(len(texts), dtype="int32") % len(words), words.dictionary)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 200_000
    program = (
        "import sys; from antiphase.lab.text.corpora import documents\n"
        "from antiphase.base.memory import peak_memory\n"
        "from antiphase.base.errors import InputError\n"
        "before = peak_memory()\n"
        "try: print(sum(1 for text in documents([sys.argv[1]])))\n"
        "except InputError as error: print(error)\n"
        "print((peak_memory() - before) >> 20)\n"
    )
    said = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True).stdout
    assert "unpacks to more than 200 times its size" in said
    assert int(said.splitlines()[-1]) < 1000  # MiB


def test_a_cut_off_parquet_file_is_refused(tmp_path):
    whole = Path(write_parquet(tmp_path / "a.parquet", {"text": ["x" * 999, "y" * 999]})).read_bytes()
    for size in (len(whole) - 20, len(whole) // 2):
        assert "Parquet" in message([write(tmp_path / "b.parquet", whole[:size])])
    damaged = whole[:4] + bytes(200) + whole[204:]
    message([write(tmp_path / "c.parquet", damaged)])


printable = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1).filter(str.strip)


@given(texts=st.lists(printable, min_size=1, max_size=5))
@settings(deadline=None)
def test_every_format_gives_back_the_same_texts(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("formats")
    lines = write(folder / "a.jsonl", "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts))
    assert list(documents([lines])) == texts
    assert list(documents([write_csv(folder / "a.csv", [["text", "n"], *([text, "0"] for text in texts)])])) == texts
    assert list(documents([write_parquet(folder / "a.parquet", {"text": texts})])) == texts
    plain = [write(folder / f"{index}.txt", "-" + text) for index, text in enumerate(texts)]
    assert list(documents(plain)) == ["-" + text for text in texts]


# ------------------------------------------------------------------------------------------ fingerprint


def test_the_fingerprint_follows_content_order_and_relative_names_only(tmp_path):
    first = tmp_path / "first"
    write(first / "a.txt", "alpha")
    write(first / "sub" / "b.txt", "beta")
    base = fingerprint([str(first)])
    assert len(base) == 64
    assert base == fingerprint([str(first)])
    moved = tmp_path / "else" / "where"
    shutil.copytree(first, moved)
    assert fingerprint([str(moved)]) == base
    write(moved / ".hidden", "x")
    assert fingerprint([str(moved)]) == base

    seen = {base, fingerprint([str(first)], "body")}
    changes = [("a.txt", "Alpha"), ("c.txt", "gamma"), ("sub/b.txt", "bet")]
    for name, content in changes:
        write(moved / name, content)
        seen.add(fingerprint([str(moved)]))
    shutil.copytree(first, tmp_path / "renamed")
    (tmp_path / "renamed" / "a.txt").rename(tmp_path / "renamed" / "aa.txt")
    seen.add(fingerprint([str(tmp_path / "renamed")]))
    assert len(seen) == 2 + len(changes) + 1
    one, other = str(first / "a.txt"), str(first / "sub" / "b.txt")
    assert fingerprint([one, other]) != fingerprint([other, one])


# ------------------------------------------------------------------------------------------ the Hub


def test_a_hub_dataset_is_streamed_by_name_configuration_and_split(monkeypatch):
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return datasets.Dataset.from_dict({"title": ["t"] * 3, "text": ["one", "", "two"]}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(documents(["nobody-here/poems"])) == ["one", "two"]
    assert list(documents(["nobody-here/poems:v1.0@test"], text_field="title")) == ["t"] * 3
    assert asked == [
        (("nobody-here/poems", None), {"split": "train", "streaming": True}),
        (("nobody-here/poems", "v1.0"), {"split": "test", "streaming": True}),
    ]
    assert "title, text" in message(["nobody-here/poems"], text_field="body")


def test_all_parts_of_a_hub_dataset_have_the_column_of_its_first_text(monkeypatch):
    files = [{"body": "one", "note": None}], [{"body": None, "note": None}, {"body": "two", "note": None}]

    def load_dataset(*arguments, **options):
        return datasets.IterableDataset.from_generator(lambda files: iter(files[0]), gen_kwargs={"files": list(files)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    parts = [part for shard in shards_of(sources(["nobody-here/poems"], "data"), "data", None) for part in shard]
    assert len(parts) == 2
    assert [list(texts_of([part])) for part in parts] == [["one"], ["two"]]
    files[1].append({"body": "three", "note": "x"})
    with pytest.raises(InputError, match=r"several columns hold text \(columns: body, note\)"):
        list(texts_of(parts))


@pytest.mark.parametrize(("other", "same"), [
    ("nobody-here/poems", True), ("Nobody-here/Poems@train", True), ("nobody-here/poems:default", True),
    ("nobody-here/poems:old", False), ("nobody-here/poems@test", False), ("nobody-here/plays", False),
    ("nobody-here/poems@all", True), ("nobody-here/plays@all", False),
])  # fmt: skip
def test_one_part_of_a_hub_dataset_can_be_named_in_several_ways(monkeypatch, other, same):
    class Builder:
        hash = "1"

        def __init__(self, name, config):
            self.config = datasets.BuilderConfig(name=config or "default")

    monkeypatch.setattr(datasets, "load_dataset_builder", Builder)
    one, two = sources(["nobody-here/poems", other], "data")
    assert is_same_part(one, two) is is_same_part(two, one) is same


@pytest.mark.parametrize(("error", "words"), [
    (DatasetNotFoundError("Dataset 'x' doesn't exist on the Hub"), "no such dataset"),
    (ConnectionError("Couldn't reach 'x' on the Hub"), "could not be reached"),
    (ValueError('Bad split: trian.\nAvailable splits: ["train"]'), "Available splits"),
    (RuntimeError("Dataset scripts are no longer supported, but found x.py"), "scripts"),
])  # fmt: skip
def test_a_refusal_by_the_hub_is_one_sentence(monkeypatch, error, words):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    assert words in message(["nobody-here/poems"])
    with pytest.raises(InputError, match=words):
        fingerprint(["nobody-here/poems"])


def test_the_fingerprint_of_a_hub_dataset_follows_its_revision(monkeypatch):
    class Builder:
        hash = "first"

        class config:  # noqa: N801  # the attribute's name in datasets
            name = "default"

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *arguments: Builder)
    names = ["nobody-here/poems", "nobody-here/poems@test", "nobody-here/prose"]
    before = {fingerprint([name]) for name in names}
    assert len(before) == 3
    monkeypatch.setattr(Builder, "hash", "second")
    assert before.isdisjoint(fingerprint([name]) for name in names)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".parquet":
        table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
        pyarrow.parquet.write_table(table, path)
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text(f"text{mark}text\na{mark}b\n")
    with pytest.raises(InputError, match="two columns are called 'text'; rename one of them"):
        list(documents([str(path)]))
