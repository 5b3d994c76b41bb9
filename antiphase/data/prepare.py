"""Prepares data: from the settings of a run to its training and evaluation data."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphase.config import DataSettings
from antiphase.data.corpora import documents, fingerprint
from antiphase.data.label_mapping import LabelMapping, label_page
from antiphase.data.packing import PackedTokens, pack
from antiphase.data.retrieval import RetrievalTask, SymbolLanguage, TextLanguage, needle_page, question
from antiphase.data.streams import Batch, Stream, SyntheticStream, TextStream
from antiphase.data.tokenization import end_token, train_tokenizer
from antiphase.errors import InputError
from antiphase.randomness import keyed_generator
from antiphase.reading.models import load_tokenizer
from antiphase.records import writing

Progress = Callable[[str], None]

DIGEST = "sha256"
"""File in a cached tokenizer's folder with the digest of the others."""

SMALLEST_TEXT_SHARE, SMALLEST_TASK_SHARE = 0.1, 0.25
"""Smallest shares of the text and of each task in the tokenizer's training data."""
NEEDLE_DIGITS = 2
"""Number of digits per token if numbers are retrieved: single digits would be repeated all over a context."""


@dataclass(frozen=True)
class PreparedData:
    """All data of a run."""

    settings: DataSettings
    tokenizer: PreTrainedTokenizerBase
    training_text: PackedTokens | None
    validation_text: PackedTokens | None

    @property
    def content(self) -> str | None:
        """Digest of text, tokenizer and the tasks' wording; None for the synthetic task, which the settings define."""
        parts = [text.content for text in (self.training_text, self.validation_text) if text is not None]
        parts = list(dict.fromkeys(filter(None, parts)))
        return "-".join([*parts, wording()[:16]]) if parts else None

    def stream(self, *, batch_size: int, seed: int) -> Stream:
        """Training batches, which are equal for all arms of a comparison with the same seed."""
        settings = self.settings
        key = (seed, "training")
        if self.training_text is None:
            task = self._task(None, together=settings.asked_together)
            return SyntheticStream(task, batch_size=batch_size, needle_share=settings.needle_share, key=key)
        return TextStream(
            self.training_text,
            self._task(self.training_text, together=settings.asked_together),
            batch_size=batch_size,
            needle_share=settings.needle_share,
            key=key,
            labels=LabelMapping(self.tokenizer, sequence_length=settings.sequence_length),
            label_share=settings.label_share,
            words=self._words(),
            repeat_share=settings.repeat_share,
            long_share=settings.long_share,
            end=end_token(self.tokenizer),
        )

    def _words(self) -> Tensor:
        """Ids of all tokens except the special ones."""
        return torch.tensor(sorted(set(range(len(self.tokenizer))) - set(self.tokenizer.all_special_ids)))

    def task(
        self, *, needles: int | None = None, queries: int | None = None, sequence_length: int | None = None
    ) -> RetrievalTask:
        """The retrieval task for evaluation, with filler from held-out text; None means the size in training."""
        return self._task(self.validation_text, needles=needles, queries=queries, sequence_length=sequence_length)

    def _task(
        self,
        filler: PackedTokens | None,
        *,
        needles: int | None = None,
        queries: int | None = None,
        sequence_length: int | None = None,
        together: int = 1,
    ) -> RetrievalTask:
        settings = self.settings
        language = symbols(settings) if filler is None else TextLanguage(self.tokenizer, filler.tokens)
        return RetrievalTask(
            language,
            needles=needles or settings.needles,
            queries=queries or settings.queries,
            sequence_length=sequence_length or settings.sequence_length,
            together=together,
        )

    def validation(self, sequences: int) -> Batch:
        """Held-out sequences for the loss: blocks spread evenly over the validation text, or synthetic sequences."""
        text = self.validation_text
        if text is None:
            settings = self.settings
            stream = SyntheticStream(
                self.task(), batch_size=sequences, needle_share=settings.needle_share, key=("validation",)
            )
            return stream.batch(0)
        count = min(sequences, len(text))
        blocks = torch.stack([text.block(index * len(text) // count) for index in range(count)])
        return Batch(blocks, blocks)


def prepare(settings: DataSettings, cache: Path, *, progress: Progress = lambda message: None) -> PreparedData:
    """Read, tokenize and pack the data that the settings name; tokens are cached in ``cache`` for the next run.

    Raises:
        InputError: the files or sizes cannot be used.
    """
    if settings.source == "synthetic":
        data = PreparedData(settings, symbol_tokenizer(symbols(settings)), None, None)
    else:
        _check_held_out(settings.paths, settings.validation)
        cache = Path(settings.cache) if settings.cache else cache
        tokenizer = _tokenizer(settings, cache, progress)
        progress("packing the text into tokens")

        def packed(paths: list[str], flag: str) -> PackedTokens:
            return pack(
                paths,
                tokenizer,
                sequence_length=settings.sequence_length,
                text_field=settings.text_field,
                cache=cache,
                flag=flag,
            )

        training = packed(settings.paths, "--data")
        if settings.validation:
            validation = packed(settings.validation, "--validation")
        else:
            training, validation = training.split(settings.validation_share)
        data = PreparedData(settings, tokenizer, training, validation)
        if settings.long_share is not None:
            data.stream(batch_size=1, seed=0)  # raises an error for text without long documents before training starts
    check_task(data.task())
    if settings.asked_together > 1:
        check_task(data._task(data.training_text, together=settings.asked_together))
    return data


def wording() -> str:
    """SHA-256 of the tasks' wording, because a model only knows the words that it was trained with."""
    words = [needle_page(), question(["Rome"]), question(["Rome", "Oslo", "Lima"]), label_page()]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def check_task(task: RetrievalTask) -> None:
    """Check sizes before training, in the worst case; a sampled sequence could be shorter than a later one.

    Raises:
        InputError: the longest keys and values do not fit in the sequence, or the text is too short for its filler.
    """
    language = task.language
    questions = sorted((len(language.question(key)) for key in range(language.key_count)), reverse=True)
    answer = max(len(language.answer(value)) for value in range(language.value_count)) + len(language.ending())
    keys = sorted(range(language.key_count), key=lambda key: -len(language.question(key)))
    asking = []  # tokens of all questions and answers, by number of facts per question
    for size in range(1, task.together + 1):
        words = len(language.question(*keys[:size])) + max(len(language.between(left)) for left in (1, 2)) * (size - 1)
        asking.append(-(-task.queries // size) * words + task.queries * answer)
    used = len(language.opening()) + len(language.instruction())
    used += sum(questions[: task.needles]) + task.needles * answer + max(asking)
    if used > task.sequence_length:
        raise InputError(
            f"data.sequence_length ({task.sequence_length}) is too short for {task.needles} needles and "
            f"{task.queries} queries, which take up to {used} tokens: raise it, or lower data.needles or data.queries"
        )
    task.sample(1, keyed_generator("check"))


def _check_held_out(paths: list[str], validation: list[str]) -> None:
    """Check that no text is used for both training and validation.

    Raises:
        InputError: a validation path is, is in, or contains a training path.
    """
    for held_out in validation:
        for path in paths:
            one, other = Path(held_out).resolve(), Path(path).resolve()
            if held_out == path or (one.exists() and (one.is_relative_to(other) or other.is_relative_to(one))):
                raise InputError(
                    f"--validation {held_out} overlaps with --data {path}: text that is trained on is not held out; "
                    "give other text, or omit --validation to hold out a share"
                )


def _tokenizer(settings: DataSettings, cache: Path, progress: Progress) -> PreTrainedTokenizerBase:
    """An existing tokenizer, or a BPE trained on the training text and cached by content."""
    if settings.tokenizer:
        return load_tokenizer(settings.tokenizer)
    content = fingerprint(settings.paths, settings.text_field)
    digits = NEEDLE_DIGITS if settings.needle_share else 1
    what = json.dumps([content, settings.vocabulary_size, digits, *_task_shares(settings).items()])
    folder = cache / f"tokenizer-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    if not _is_unchanged(folder):
        shutil.rmtree(folder, ignore_errors=True)
        progress(f"training a tokenizer of {settings.vocabulary_size} entries")
        tokenizer = train_tokenizer(_tokenizer_texts(settings), settings.vocabulary_size, digits=digits)
        _save_beside(tokenizer, folder)
    return load_tokenizer(str(folder))


def _tokenizer_texts(settings: DataSettings) -> Iterator[str]:
    """The training text mixed with the tasks' wording, with at least the shares that they have in a batch.

    Otherwise, words that are rare in the text have several tokens, which increases the distance between keys and
    values.
    """
    text_share = max(1 - settings.needle_share - settings.label_share, SMALLEST_TEXT_SHARE)
    wanted = _task_shares(settings)
    read = 0
    written = dict.fromkeys(wanted, 0)
    for document in documents(settings.paths, text_field=settings.text_field):
        yield document
        read += len(document)
        for page, share in wanted.items():
            pages = round(read * share / text_share / len(page)) - written[page]
            yield from repeat(page, pages)
            written[page] += pages


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
    """Whether a cached tokenizer exists and is unchanged; older ones have no digest."""
    kept = folder / DIGEST
    return folder.is_dir() and (not kept.is_file() or kept.read_bytes().strip() == _digest(folder).encode())


def _digest(folder: Path) -> str:
    """SHA-256 of the files of a tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != DIGEST)
    content = [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def symbols(settings: DataSettings) -> SymbolLanguage:
    """The synthetic language with the sizes of the settings."""
    return SymbolLanguage(settings.keys, settings.numbers, settings.fillers)


def symbol_tokenizer(language: SymbolLanguage) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words for the synthetic language, so that its models load and print like any other."""
    pad, end = language.special_tokens
    vocabulary = {word: index for index, word in enumerate(language.words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=pad))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, eos_token=end, bos_token=end, padding_side="left"
    )
