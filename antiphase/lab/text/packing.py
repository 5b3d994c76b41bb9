"""Token ids of a corpus in one memory-mapped file, read as blocks of equal length and cached by content."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphase.base.errors import InputError, named
from antiphase.base.folders.contents import file_digest
from antiphase.base.records import PACKAGES, environment, write_atomically
from antiphase.lab.text.corpora import fingerprint
from antiphase.lab.text.files import sources
from antiphase.lab.text.token_files import Corpus, write_tokens
from antiphase.lab.text.tokenization import end_token

FORMAT = 1
BLOCKS_AT_ONCE = 1 << 12
"""Number of blocks searched at a time."""


@dataclass(frozen=True)
class PackedTokens:
    """Consecutive blocks of ``sequence_length`` tokens in ``tokens``; the remainder at the end is not in any block."""

    tokens: np.ndarray[Any, np.dtype[Any]]
    """Memory-mapped ids, (count,), uint16 or uint32: documents separated by the end token."""
    sequence_length: int
    field: str = "data"
    """The argument with which the text was given, for messages."""
    content: str = ""
    """Digest of the corpus and the tokenizer."""
    ends: tuple[int, ...] = ()
    """Number of tokens up to the end of each source; of a part of the text, still those of the whole text."""

    def __len__(self) -> int:
        """Number of complete blocks."""
        return len(self.tokens) // self.sequence_length

    def block(self, index: int) -> torch.Tensor:
        """A copy of block ``index``, (sequence_length,) int64; IndexError if there is no such block."""
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.sequence_length
        return torch.from_numpy(self.tokens[start : start + self.sequence_length].astype(np.int64))

    def blocks_of(self, source: int) -> range:
        """Indices of the blocks that lie entirely in a source."""
        start = 0 if source == 0 else self.ends[source - 1]
        return range(-(-start // self.sequence_length), self.ends[source] // self.sequence_length)

    def release(self) -> None:
        """Drop the pages of the mapped file that were read from this process; they remain in the system's cache.

        Otherwise they would count as memory of the process, until it has read as much as the whole file.
        """
        base: Any = self.tokens
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)

    def without(self, token: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Indices of the blocks without ``token``; for the end token, these are blocks from inside one document."""
        size = self.sequence_length
        found = [
            start // size + np.flatnonzero((part.reshape(-1, size) != token).all(1))
            for start in range(0, len(self) * size, BLOCKS_AT_ONCE * size)
            for part in [self.tokens[start : min(start + BLOCKS_AT_ONCE * size, len(self) * size)]]
        ]
        return np.concatenate([*found, np.empty(0, dtype=np.int64)])

    def split(self, share: float) -> tuple[PackedTokens, PackedTokens]:
        """Training and validation part: the last ``share`` of the blocks (rounded) is held out.

        Both have at least one block, and only complete blocks.

        Raises:
            InputError: there are fewer than two blocks, or ``share`` is not between 0 and 1.
        """
        if not 0 < share < 1:
            raise InputError(f"data.validation_share must lie between 0 and 1, got {share}")
        blocks = len(self)
        if blocks < 2:
            raise InputError(
                f"{named(self.field)} holds {len(self.tokens)} tokens, {blocks} whole block{'s' * (blocks != 1)} of "
                f"{self.sequence_length}, and holding out validation takes 2; give more text, a smaller "
                "data.sequence_length, or validation text of its own with --validation"
            )
        held_out = min(max(round(blocks * share), 1), blocks - 1)
        first, end = (blocks - held_out) * self.sequence_length, blocks * self.sequence_length
        return replace(self, tokens=self.tokens[:first]), replace(self, tokens=self.tokens[first:end])


def pack(
    paths: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    sequence_length: int,
    cache: Path,
    text_field: str | None = None,
    field: str = "data",
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> PackedTokens:
    """Tokenize a corpus into ``cache``, unless it is there already, and memory-map it.

    The cached file depends on the content of the corpus and on the tokenizer, not on ``sequence_length``. Its SHA-256
    is stored in the sidecar file and checked at each call, at 1 to 2 GB/s; changed files are written again. Processes
    that pack the same corpus at the same time wait for the first one. A corpus of several shards (``parts``) is
    tokenized by several processes; after a kill, finished shards are used again. The tokens are those of whole
    documents, encoded without the special tokens that the tokenizer would add; special tokens written in a text are
    kept as such (files use ``<|endoftext|>`` to separate documents).

    Args:
        paths, text_field, field: as for ``documents``.
        sequence_length: number of tokens in a block.
        cache: folder, created if missing: ``KEY.tokens`` (little-endian ids) with ``KEY.json``.
        workers: number of processes that tokenize; None means one per core. It changes no token.
        progress: called with the number of tokens written since the last call; not called for a cached corpus.
        say: called with messages on progress and the time left.

    Raises:
        InputError: as for ``documents``, or there is less than one block of text, or the tokenizer cannot be used.
    """
    if sequence_length < 1:
        raise InputError(f"data.sequence_length must be at least 1, got {sequence_length}")
    backend, end, largest = backend_of(tokenizer)
    content = fingerprint(paths, text_field, field=field)
    identity = {"content": content, "tokenizer": _digest(backend.to_str()), "end": end, "format": FORMAT}
    name = _digest(json.dumps(identity, sort_keys=True))[:32]
    kind = np.dtype("<u2" if largest < 1 << 16 else "<u4")
    cache.mkdir(parents=True, exist_ok=True)
    data, sidecar = cache / f"{name}.tokens", cache / f"{name}.json"
    ends = _ends(data, sidecar, kind, len(paths))  # without the lock, in which processes would read one after another
    if ends is None:
        with FileLock(cache / f".{name}.lock"):
            ends = _ends(data, sidecar, kind, len(paths))
            if ends is None:
                corpus = Corpus(tuple(sources(paths, field)), backend.to_str(), end, kind.name, text_field, field)
                report = progress or (lambda tokens: None)
                counts = write_tokens(data, corpus, workers=workers, progress=report, say=say)
                ends = tuple(counts["ends"])
                versions = {package: version for package, version in environment().items() if package in PACKAGES}
                tree = {**identity, **counts, "sha256": file_digest(data), "dtype": kind.name, "versions": versions}
                # written last, because tokens without their sidecar do not count
                write_atomically(sidecar, (json.dumps(tree, indent=1) + "\n").encode())
    tokens: np.ndarray[Any, np.dtype[Any]] = np.empty(0, dtype=kind)  # an empty file cannot be mapped
    if data.stat().st_size > 0:
        tokens = np.memmap(data, dtype=kind, mode="r")
    if len(tokens) < sequence_length:
        raise InputError(
            f"{named(field)} holds {len(tokens)} tokens, less than one block of "
            f"data.sequence_length={sequence_length}; give more text or a smaller data.sequence_length"
        )
    return PackedTokens(tokens, sequence_length, field, content=name, ends=ends)


def backend_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Tokenizer, int, int]:
    """The tokenizer's own backend without padding and truncation, its end token, and its largest id."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(
            f"data.tokenizer: {type(tokenizer).__name__} does not run on the tokenizers library; choose a "
            "tokenizer that comes with tokenizer.json"
        )
    end = end_token(tokenizer)
    if end is None:
        raise InputError(
            "data.tokenizer: it has no end token (eos_token, or sep_token) to put between documents; choose another"
        )
    # A copy, because calling the tokenizer with padding or truncation leaves both enabled in its backend
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    # Not the number of entries, because ids of added tokens may leave gaps
    return backend, end, max(end, *backend.get_vocab(with_added_tokens=True).values())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ends(data: Path, sidecar: Path, kind: np.dtype[Any], sources: int) -> tuple[int, ...] | None:
    """The end of each source in the tokens, if the files are complete and unchanged: the sidecar, which is written
    last, has their size and digest.
    """
    if not (data.is_file() and sidecar.is_file()):
        return None
    try:
        tree = json.loads(sidecar.read_text(encoding="utf-8"))
        count, dtype, digest = tree["tokens"], tree["dtype"], tree["sha256"]
        ends = tuple(map(int, tree["ends"]))
        same = dtype == kind.name and data.stat().st_size == count * kind.itemsize and len(ends) == sources
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return ends if same and digest == file_digest(data) else None
