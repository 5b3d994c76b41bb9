"""Writes the token ids of a corpus to one file, shard by shard in parallel processes; finished shards survive a kill.

Imports neither torch nor transformers, because every process that tokenizes loads it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tokenizers import Tokenizer

from antiphase.base.folders.contents import file_digest, hash_of
from antiphase.base.records import write_atomically, writing
from antiphase.lab.text.corpora import check_columns, empty, texts_of
from antiphase.lab.text.files import Files, HubDataset
from antiphase.lab.text.parts import SHARD, Shard, shards_of, size_of
from antiphase.lab.text.pieces import pieces, unchanged_by
from antiphase.lab.text.workers import check_stop, cores, worker_processes

PIECE = 1 << 15
"""Number of characters per piece of a document, the unit of work of the tokenizer's threads."""
BATCH = 1 << 20
"""Number of characters tokenized in one call; bounds memory."""
TELL_SECONDS = 10.0
"""Between two messages on progress."""
JOINED = 1 << 24
"""Bytes copied at a time when shards are joined."""


@dataclass(frozen=True)
class Corpus:
    """What is tokenized, and with which tokenizer."""

    sources: tuple[Files | HubDataset, ...]
    tokenizer: str
    """The backend as JSON, without padding and truncation."""
    end: int
    """The token between documents."""
    dtype: str
    """Of the ids: ``uint16`` or ``uint32``, little-endian."""
    text_field: str | None = None
    field: str = "data"

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")


@dataclass(frozen=True)
class Written:
    """A finished shard."""

    path: Path
    tokens: int
    documents: int
    """Documents that begin in it."""


def write_tokens(
    data: Path,
    corpus: Corpus,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda tokens: None,
    say: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Write the ids of a corpus to ``data`` atomically; the caller holds the lock.

    Shards are written to files beside ``data``, each with a sidecar that holds its digest, and joined at the end. After
    a kill, shards with a correct digest are used again. Neither the cuts nor ``workers`` change a token.

    Args:
        workers: number of processes; None means one per core. A corpus of less than two shards needs no other process.
        progress: called with the number of tokens written since the last call.
        say: called with messages on progress and the time left.

    Returns:
        Number of tokens and of documents, and the number of tokens up to the end of each source.

    Raises:
        InputError: as for ``documents``, or a process was ended from outside.
    """
    check_columns(corpus.sources, corpus.text_field, corpus.field)
    backend = _backend(corpus.tokenizer)
    shards = shards_of(corpus.sources, corpus.field, unchanged_by(backend))
    _remove_temporaries(data)
    paths = [data.with_name(f".{data.stem}.{index:06}.tokens") for index in range(len(shards))]
    found: dict[int, Written] = {}
    for index, (path, shard) in enumerate(zip(paths, shards, strict=True)):
        if (whole := _finished(path, shard, corpus)) is not None:
            found[index] = whole
    if found:
        say(f"{len(found)} of {len(shards)} shards were tokenized before")
    pending = {index: shard for index, shard in enumerate(shards) if index not in found}
    tell = _Progress([size_of(shard) for shard in pending.values()], progress, say)
    for index, written in _write_shards(pending, paths, corpus, workers, tell):
        found[index] = written
    counts = _join(data, shards, [found[index] for index in range(len(shards))], corpus)
    for path in paths:
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
    _remove_temporaries(data)  # again, because a process outlives by a moment the one that was killed
    return counts


def _remove_temporaries(data: Path) -> None:
    """Remove what processes that were killed have left of shards and sidecars."""
    for pattern in (f".{data.stem}.*.tmp", f"..{data.stem}.*.tmp"):
        for left in data.parent.glob(pattern):
            left.unlink(missing_ok=True)


def _write_shards(
    pending: dict[int, Shard], paths: Sequence[Path], corpus: Corpus, workers: int | None, tell: _Progress
) -> Iterator[tuple[int, Written]]:
    """Write these shards, here or in processes, and yield them as they are finished."""
    sizes = [SHARD if (size := size_of(shard)) is None else size for shard in pending.values()]
    count = min(workers or cores(), len(pending), -(-sum(sizes) // SHARD))
    if count <= 1:
        for index, shard in pending.items():
            yield index, write_shard(paths[index], shard, corpus, progress=tell.add)
            tell.finish(size_of(shard))
        return
    with worker_processes(count, corpus.field) as pool:
        futures = {pool.submit(write_shard, paths[index], shard, corpus): index for index, shard in pending.items()}
        for future in as_completed(futures):
            index = futures[future]
            written = future.result()
            tell.add(written.tokens)
            tell.finish(size_of(pending[index]))
            yield index, written


class _Progress:
    """Says from time to time how much is done, and how long the rest will take."""

    def __init__(
        self, sizes: Sequence[int | None], progress: Callable[[int], None], say: Callable[[str], None]
    ) -> None:
        self.count, self.total = len(sizes), None if None in sizes else sum(filter(None, sizes))
        self.progress, self.say = progress, say
        self.done = self.bytes = self.tokens = 0
        self.begun = self.told = time.monotonic()

    def add(self, tokens: int) -> None:
        """Count tokens."""
        self.tokens += tokens
        self.progress(tokens)

    def finish(self, size: int | None) -> None:
        """Count a shard."""
        self.done += 1
        self.bytes += size or 0
        now = time.monotonic()
        if now - self.told < TELL_SECONDS or self.done == self.count:
            return
        self.told = now
        share = self.bytes / self.total if self.total else self.done / self.count
        left = (now - self.begun) * (1 - share) / share
        words = f"{left / 60:.0f} minutes" if left >= 90 else f"{left:.0f} seconds"
        self.say(f"tokenized {self.done} of {self.count} shards ({self.tokens:,} tokens), about {words} left")


# ------------------------------------------------------------------------------------------ one shard


@functools.lru_cache(maxsize=1)
def _backend(tokenizer: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer)


def write_shard(
    path: Path, shard: Shard, corpus: Corpus, *, progress: Callable[[int], None] = lambda tokens: None
) -> Written:
    """Write the ids of a shard, with the end token between documents but not before the first, and its sidecar.

    Raises:
        InputError: the text cannot be read.
    """
    backend = _backend(corpus.tokenizer)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    tokens = documents = 0
    digest = hashlib.sha256()
    try:
        with writing(path), open(temporary, "wb") as file:
            for batch in batches(texts_of(shard, corpus.text_field, corpus.field), backend):
                ids = _ids(batch, backend, corpus.end, first=documents == 0)
                content = np.array(ids, dtype=corpus.kind).tobytes()
                file.write(content)
                digest.update(content)
                documents += sum(starts for _, starts in batch)
                tokens += len(ids)
                progress(len(ids))
                check_stop()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    documents -= int(documents > 0 and shard[0].continues)
    tree = {"shard": _identity(shard), "tokens": tokens, "documents": documents, "sha256": digest.hexdigest()}
    # written last, because a shard without its sidecar does not count
    write_atomically(path.with_suffix(".json"), (json.dumps(tree) + "\n").encode())
    return Written(path, tokens, documents)


def _identity(shard: Shard) -> str:
    """SHA-256 of where a shard lies in its corpus; the name of its file stands for content and tokenizer."""
    return hash_of([part.identity() for part in shard])


def _finished(path: Path, shard: Shard, corpus: Corpus) -> Written | None:
    """A shard that was written before, if it is complete and unchanged."""
    sidecar = path.with_suffix(".json")
    if not (path.is_file() and sidecar.is_file()):
        return None
    try:
        tree = json.loads(sidecar.read_text(encoding="utf-8"))
        cut, tokens, documents, digest = (tree[name] for name in ("shard", "tokens", "documents", "sha256"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    same = cut == _identity(shard) and path.stat().st_size == tokens * corpus.kind.itemsize
    return Written(path, tokens, documents) if same and digest == file_digest(path) else None


def batches(texts: Iterable[str], backend: Tokenizer) -> Iterator[list[tuple[str, bool]]]:
    """Lists of (piece, whether it starts a document), of about ``BATCH`` characters."""
    unchanged = unchanged_by(backend)
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in texts:
        for number, piece in enumerate(pieces(text, PIECE, unchanged)):
            batch.append((piece, number == 0))
            size += len(piece)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _ids(batch: list[tuple[str, bool]], backend: Tokenizer, end: int, *, first: bool) -> list[int]:
    """The ids of a batch, with ``end`` before each document except the first of all."""
    encodings = backend.encode_batch_fast([piece for piece, _ in batch], add_special_tokens=False)
    ids: list[int] = []
    for (_, starts), encoding in zip(batch, encodings, strict=True):
        if starts and not first:
            ids.append(end)
        first = False
        ids.extend(encoding.ids)
    return ids


# ------------------------------------------------------------------------------------------ all shards


def _join(data: Path, shards: Sequence[Shard], written: Sequence[Written], corpus: Corpus) -> dict[str, Any]:
    """Join the shards to one file, with the end token between documents.

    Raises:
        InputError: every document of a source is empty.
    """
    documents = [0] * len(corpus.sources)
    for shard, one in zip(shards, written, strict=True):
        documents[shard[0].source] += one.documents
    if 0 in documents:
        raise empty(corpus.sources[documents.index(0)], corpus.field)
    ends = [0] * len(corpus.sources)
    if len(shards) == 1:
        written[0].path.replace(data)
        return {"tokens": written[0].tokens, "documents": documents[0], "ends": [written[0].tokens]}
    temporary = data.with_name(f".{data.name}.{os.getpid()}.tmp")
    tokens = 0
    begun = False
    try:
        with writing(data), open(temporary, "wb") as file:
            for shard, one in zip(shards, written, strict=True):
                if begun and one.documents and not shard[0].continues:
                    file.write(np.array([corpus.end], dtype=corpus.kind).tobytes())
                    tokens += 1
                _append(file, one.path)
                tokens += one.tokens
                begun = begun or one.documents > 0
                ends[shard[0].source] = tokens
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(data)
    finally:
        temporary.unlink(missing_ok=True)
    return {"tokens": tokens, "documents": sum(documents), "ends": ends}


def _append(file: IO[bytes], path: Path) -> None:
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file, JOINED)
