"""The tokenizer of a run on text: a given one, or one trained on the text or a sample of it, and cached by content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path

from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from antiphase.base.folders.contents import file_digest, hash_of
from antiphase.base.randomness import KeyedPermutation
from antiphase.base.records import writing
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text.corpora import documents, fingerprint, texts_of
from antiphase.lab.text.files import sources
from antiphase.lab.text.label_mapping import label_page
from antiphase.lab.text.parts import SHARD, shards_of, whole_parts
from antiphase.lab.text.retrieval import needle_page
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.lab.text.workers import worker_processes
from antiphase.models.sources.tokenizers import load_tokenizer

DIGEST = "sha256"
"""File in a cached tokenizer's folder with the digest of the others."""

SMALLEST_TEXT_SHARE, SMALLEST_TASK_SHARE = 0.1, 0.25
"""Smallest shares of the text and of each task in the tokenizer's training data."""
NEEDLE_DIGITS = 2
"""Number of digits per token if numbers are retrieved: single digits would be repeated all over a context."""


def tokenizer_for(settings: DataSettings, cache: Path, progress: Callable[[str], None]) -> PreTrainedTokenizerBase:
    """An existing tokenizer, or a BPE trained on the training text and cached by content."""
    if settings.tokenizer:
        return load_tokenizer(settings.tokenizer)
    content = fingerprint(settings.paths, settings.text_field)
    digits = NEEDLE_DIGITS if settings.needle_share else 1
    what = [content, settings.vocabulary_size, digits, *_task_shares(settings).items()]
    if repeated := _repeated_share(settings):
        what.append(repeated)
    shares = [settings.needle_share, settings.label_share]
    if any(0 < share < SMALLEST_TASK_SHARE for share in shares):  # the text's share is what they leave, not the floor
        what += shares
    size = _size(settings)
    is_sampled = size is None or size > settings.vocabulary_sample
    if is_sampled:
        what += [settings.vocabulary_sample, settings.vocabulary_seed]
    folder = cache / f"tokenizer-{hash_of(what)[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{folder.name}.lock"):
        if not _is_unchanged(folder):
            shutil.rmtree(folder, ignore_errors=True)
            on = f" on up to {settings.vocabulary_sample:,} characters of the text" if is_sampled else ""
            progress(f"training a tokenizer of {settings.vocabulary_size} entries{on}")
            if size is not None and size <= SHARD:
                _make(settings, folder, digits, is_sampled=is_sampled)
            else:  # its memory, which grows with the number of different words, must not be that of training
                with worker_processes(1, "data") as pool:
                    pool.submit(_make, settings, folder, digits, is_sampled=is_sampled).result()
    return load_tokenizer(str(folder))


def _size(settings: DataSettings) -> int | None:
    """Bytes of the training text; None if a Hub dataset or a compressed file, which unpacks to more, is part of it."""
    parts = [part for source in sources(settings.paths, "data") for part in whole_parts(source)]
    if any(not isinstance(part.place, Path) or part.place.suffix.lower() in (".gz", ".parquet") for part in parts):
        return None
    return sum(part.size or 0 for part in parts)


def _make(settings: DataSettings, folder: Path, digits: int, *, is_sampled: bool) -> None:
    """Train a tokenizer and save it."""
    texts = sampled(settings) if is_sampled else documents(settings.paths, text_field=settings.text_field)
    _save_beside(train_tokenizer(with_tasks(texts, settings), settings.vocabulary_size, digits=digits), folder)


def sampled(settings: DataSettings) -> Iterator[str]:
    """Documents of shards in an order drawn by ``vocabulary_seed``, up to ``vocabulary_sample`` characters."""
    shards = shards_of(sources(settings.paths, "data"), "data", None)
    order = KeyedPermutation(len(shards), settings.vocabulary_seed, "vocabulary")
    left = settings.vocabulary_sample
    for place in order:
        for text in texts_of(shards[place], settings.text_field):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return


def with_tasks(texts: Iterable[str], settings: DataSettings) -> Iterator[str]:
    """Training text mixed with the tasks' wording, in at least the proportion in which a batch has them.

    Otherwise, words that are rare in the text have several tokens, which increases the distance between keys and
    values.
    """
    others = settings.needle_share + settings.label_share + _repeated_share(settings)
    text_share = max(1 - others, SMALLEST_TEXT_SHARE)
    wanted = _task_shares(settings)
    read = 0
    written = dict.fromkeys(wanted, 0)
    for document in texts:
        yield document
        read += len(document)
        for page, share in wanted.items():
            pages = round(read * share / text_share / len(page)) - written[page]
            yield from repeat(page, pages)
            written[page] += pages


def _repeated_share(settings: DataSettings) -> float:
    """Share of repeated tokens, which are no text; 0 without ``one_token_numbers``, as older runs counted it."""
    return settings.repeat_share if settings.one_token_numbers else 0.0


def _task_shares(settings: DataSettings) -> dict[str, float]:
    """A page of each task in a batch, with the task's share of the tokenizer's training data."""
    pages = {needle_page(): settings.needle_share, label_page(): settings.label_share}
    return {page: max(share, SMALLEST_TASK_SHARE) for page, share in pages.items() if share}


def _save_beside(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save the tokenizer atomically, together with its digest, so that an interruption leaves no partial tokenizer."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        with writing(folder):
            tokenizer.save_pretrained(temporary)
            (temporary / DIGEST).write_text(f"{_digest(temporary)}\n", encoding="utf-8")
            temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_unchanged(folder: Path) -> bool:
    """Whether a cached tokenizer exists and is unchanged."""
    kept = folder / DIGEST
    return kept.is_file() and kept.read_bytes().strip() == _digest(folder).encode()


def _digest(folder: Path) -> str:
    """SHA-256 of the files of a tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != DIGEST)
    return hash_of([[path.name, file_digest(path)] for path in files])
