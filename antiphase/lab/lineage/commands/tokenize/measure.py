"""Implements ``antiphase tokenize``: the tokens of a text in several tokenizers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from antiphase.base.folders.ownership import check_empty, make_folder
from antiphase.base.records import Record, finite
from antiphase.lab.lineage.commands.tokenize import TokenizeSettings
from antiphase.lab.lineage.data.vocabularies import TOKENIZERS, word_spans
from antiphase.lab.measures.look.texts import tokens_of
from antiphase.lab.settings.naming import naming
from antiphase.lab.text.corpora import documents
from antiphase.models.sources.tokenizers import load_tokenizer

FROM_DATA = 8000
FROM_TEXT = 300
"""Vocabulary size of a tokenizer trained on data or only on the text: with more, every word would be one token."""


def tokenize(
    request: TokenizeSettings,
    output: Path | None = None,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Words, pieces and ids of the text, and pieces per word; with ``output``, the record is saved there.

    All tokenizers use the words of ``data/vocabularies.py``, so that the ratios can be compared.

    Raises:
        InputError: the text, data or a tokenizer cannot be used, or the folder is not empty.
    """
    request.check()
    if output is not None:
        check_empty(output)
    spans = word_spans(request.text)
    found = []
    for name in request.tokenizers or TOKENIZERS:
        tokenizer = _tokenizer(name, request, say)
        rows = list(piece_rows(tokenizer, request.text, spans))
        pieces = sum(len(row["pieces"]) for row in rows)
        found.append({
            "tokenizer": name,
            "vocabulary": len(tokenizer),
            "words": len(spans),
            "pieces": pieces,
            "pieces_per_word": pieces / len(spans) if spans else None,
            "unknown": sum(piece["id"] == tokenizer.unk_token_id for row in rows for piece in row["pieces"]),
            "rows": rows,
        })  # fmt: skip
    is_trained = any(name in TOKENIZERS for name in request.tokenizers or TOKENIZERS)
    source = ("data" if request.data else "text") if is_trained else None
    values = {"text": request.text, "learned_from": source, "tokenizers": found}
    record = Record(kind="tokenize", values=finite(values), config=asdict(request))
    if output is not None:
        make_folder(output)
        record.save(output)
    return record


def _tokenizer(name: str, request: TokenizeSettings, say: Callable[[str], None]) -> PreTrainedTokenizerBase:
    if name not in TOKENIZERS:
        return load_tokenizer(name, field="tokenizer")
    texts: Any = documents(request.data, text_field=request.text_field) if request.data else [request.text]
    size = request.vocabulary
    if size is None and request.data:
        size = FROM_DATA
    elif size is None:  # unigram needs every character of the text, whatever their number
        size = max(FROM_TEXT, len(set(unicodedata.normalize("NFC", request.text))) + 10)
    say(f"training {name}")
    with naming({"data.vocabulary_size": "--vocabulary", "--set data.text_field=NAME": "--text-field NAME"}):
        return TOKENIZERS[name](texts, size)


def piece_rows(
    tokenizer: PreTrainedTokenizerBase, text: str, spans: Sequence[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Rows of related words and pieces: ``words``, usually one, and ``pieces`` with id, piece and text.

    White space at the beginning of a piece is ignored; a piece of only white space has no word. Words that share a
    piece share a row, and each word is in one row.
    """
    tokens = tokens_of(tokenizer, text, tokenizer(text, return_tensors="pt")["input_ids"][0].long())
    places: list[tuple[int, int]] = [(0, 0)] * len(tokens)
    if tokenizer.is_fast:
        places = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    before: int | None = None
    row: dict[str, Any] = {"words": [], "pieces": []}
    for token, (begin, end) in zip(tokens, places, strict=True):
        words = [i for i, (first, last) in enumerate(spans) if max(begin, first) < min(end, last)]
        if row["pieces"] and (not words or words[0] != before):
            yield row
            row = {"words": [], "pieces": []}
        fresh = words[1:] if row["pieces"] else words
        row["words"] += [visible(text[slice(*spans[word])]) for word in fresh]
        row["pieces"].append({"id": token.id, "piece": visible(token.piece), "text": visible(token.text)})
        before = words[-1] if words else None
    if row["pieces"]:
        yield row


def visible(text: str) -> str:
    """The text with spaces as ``␣`` and invisible characters as escapes: ``\\n``, ``\\x00``, ``\\u200b``.

    An isolated combining mark is shown on the circle ``◌``.
    """
    shown = []
    for letter in text:
        kind = unicodedata.category(letter)
        if letter == " ":
            shown.append("␣")
        elif kind[0] in "CZ":
            shown.append(letter.encode("unicode_escape").decode("ascii"))
        elif kind[0] == "M" and not shown:
            shown.append(f"◌{letter}")
        else:
            shown.append(letter)
    return "".join(shown)
