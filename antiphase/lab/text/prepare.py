"""Prepares data: from the settings of a run to its training and evaluation data."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphase.base.errors import InputError, named
from antiphase.base.files import reading
from antiphase.base.folders.contents import hash_of
from antiphase.base.randomness import keyed_generator
from antiphase.lab.settings.presets import DataSettings
from antiphase.lab.text.files import Files, HubDataset, is_same_part, sources
from antiphase.lab.text.label_mapping import LabelMapping, label_page
from antiphase.lab.text.packing import PackedTokens, pack
from antiphase.lab.text.retrieval import Language, RetrievalTask, SymbolLanguage, TextLanguage, needle_page, question
from antiphase.lab.text.streams import Batch, Stream, SyntheticStream, TextStream
from antiphase.lab.text.tokenization import end_token, note_training
from antiphase.lab.text.vocabulary import tokenizer_for

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """All data of a run."""

    settings: DataSettings
    tokenizer: PreTrainedTokenizerBase
    training_text: PackedTokens | None
    validation_text: PackedTokens | None
    opening: tuple[int, ...] = ()
    """Ids before each window of held-out text: those of a model that was not trained here, and reads texts so."""

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
        task = self.training_task()
        if self.training_text is None:
            return SyntheticStream(task, batch_size=batch_size, needle_share=settings.needle_share, key=key)
        return TextStream(
            self.training_text,
            task,
            batch_size=batch_size,
            needle_share=settings.needle_share,
            key=key,
            labels=LabelMapping(self.tokenizer, sequence_length=settings.sequence_length),
            label_share=settings.label_share,
            words=self._words(),
            repeat_share=settings.repeat_share,
            long_share=settings.long_share,
            end=end_token(self.tokenizer),
            weights=settings.weights,
            order=settings.order,
            answers_only=settings.answers_only,
        )

    def _words(self) -> Tensor:
        """Ids of all tokens except the special ones."""
        return torch.tensor(sorted(set(self.tokenizer.get_vocab().values()) - set(self.tokenizer.all_special_ids)))

    def task(
        self, *, needles: int | None = None, queries: int | None = None, sequence_length: int | None = None
    ) -> RetrievalTask:
        """The retrieval task for evaluation, with filler from held-out text; None means the size in training."""
        return self._task(self.validation_text, needles=needles, queries=queries, sequence_length=sequence_length)

    def training_task(self) -> RetrievalTask:
        """The retrieval task of training, with filler from the training text."""
        settings = self.settings
        return self._task(self.training_text, together=settings.asked_together, queries_drawn=settings.queries_drawn)

    def _task(
        self,
        filler: PackedTokens | None,
        *,
        needles: int | None = None,
        queries: int | None = None,
        sequence_length: int | None = None,
        together: int = 1,
        queries_drawn: bool = False,
    ) -> RetrievalTask:
        settings = self.settings
        language: Language = symbols(settings)
        if filler is not None:
            language = TextLanguage(self.tokenizer, filler.tokens, one_token_numbers=settings.one_token_numbers)
        return RetrievalTask(
            language,
            needles=needles or settings.needles,
            queries=queries or settings.queries,
            sequence_length=sequence_length or settings.sequence_length,
            together=together,
            queries_drawn=queries_drawn,
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
        windows = torch.cat([torch.tensor(self.opening, dtype=blocks.dtype).expand(count, -1), blocks], dim=1)
        return Batch(windows, windows)


def prepare(settings: DataSettings, cache: Path, *, progress: Progress = lambda message: None) -> PreparedData:
    """Read, tokenize and pack the data that the settings name; tokens are cached in ``cache`` for the next run.

    Raises:
        InputError: the files or sizes cannot be used.
    """
    if settings.source == "synthetic":
        data = PreparedData(settings, symbol_tokenizer(symbols(settings)), None, None)
    else:
        check_held_out(settings.paths, settings.validation)
        if settings.cache:
            cache = Path(settings.cache).expanduser()
            if cache.exists() and not is_cache(cache):
                raise InputError(f"data.cache {cache}: this is no folder of tokens; choose a new or an empty folder")
        tokenizer = tokenizer_for(settings, cache, progress)
        note_training(tokenizer)
        progress("packing the text into tokens")

        def packed(paths: list[str], field: str) -> PackedTokens:
            return pack(
                paths,
                tokenizer,
                sequence_length=settings.sequence_length,
                text_field=settings.text_field,
                cache=cache,
                field=field,
                workers=settings.workers,
                say=progress,
            )

        training = packed(settings.paths, "data")
        if settings.validation:
            validation = packed(settings.validation, "validation")
        else:
            training, validation = training.split(settings.validation_share)
        data = PreparedData(settings, tokenizer, training, validation)
        if settings.long_share is not None or settings.weights:
            data.stream(batch_size=1, seed=0)  # raises an error for text that is too short before training starts
    check_task(data.task())
    if settings.asked_together > 1:
        check_task(data.training_task())
    if settings.lengths:
        check_task(data.training_task().of_length(settings.lengths[0]), name="data.lengths")
    return data


def is_cache(folder: Path) -> bool:
    """Whether a folder is empty or has held tokens before, so that more may be written into it.

    The settings of a run may name a folder that has become something else, or come from somebody else.
    """
    return folder.is_dir() and (any(folder.glob(".*.lock")) or not any(folder.glob("[!.]*")))


def wording() -> str:
    """SHA-256 of the tasks' wording, because a model only knows the words that it was trained with."""
    words = [needle_page(), question(["Rome"]), question(["Rome", "Oslo", "Lima"]), label_page()]
    return hash_of(words)


def check_task(task: RetrievalTask, *, name: str = "data.sequence_length") -> None:
    """Check sizes before training, in the worst case; a sampled sequence could be shorter than a later one.

    ``name``: the setting that has the length.

    Raises:
        InputError: the longest keys and values do not fit in the sequence, or the text is too short for its filler.
    """
    used = task.most_tokens()
    if used > task.sequence_length:
        lower = "data.queries" if name == "data.lengths" else "data.needles or data.queries"
        raise InputError(
            f"{name} ({task.sequence_length}) is too short for {task.needles} needles and {task.queries} queries, "
            f"which take up to {used} tokens: raise it, or lower {lower}"
        )
    task.sample(1, keyed_generator("check"))


def check_held_out(paths: list[str], validation: list[str]) -> None:
    """Check that no text is used for both training and validation.

    Raises:
        InputError: a validation path is, is in, or contains a training path, names the same part of a dataset, or has a
            copy of a training file.
    """
    if found := seen_text(paths, validation):
        what, remedy = found
        raise InputError(f"--validation {what}: text that is trained on is not held out; {remedy}")


def seen_text(paths: list[str], held_out: list[str], *, field: str = "data") -> tuple[str, str] | None:
    """What of the held-out text is training text, in words, and a remedy; None if nothing is.

    Args:
        field: names the training text.
    """
    for given in held_out:
        for path in paths:
            one, other = (Path(os.path.realpath(os.path.expanduser(name))) for name in (given, path))
            if given == path or (one.exists() and (one.is_relative_to(other) or other.is_relative_to(one))):
                return (
                    f"{given} overlaps with {named(field, path)}",
                    "give other text, or omit --validation to hold out a share",
                )
    trained = sources(paths, field) if paths else []
    held_out_sources = sources(held_out, "validation") if held_out else []
    datasets = [source for source in trained if isinstance(source, HubDataset)]
    for source in held_out_sources:
        if isinstance(source, HubDataset) and any(is_same_part(source, other) for other in datasets):
            return f"{source.given} is the part of the dataset that {named(field)} names", "name another split"
    if copies := _copies(_files(trained), _files(held_out_sources)):
        others = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
        return f"{copies[0]}{others} is a copy of a file in {named(field)}", "remove one copy of each"
    return None


def _copies(training: Iterable[Path], held_out: Iterable[Path]) -> list[Path]:
    """Files of the held-out text whose content is that of a file of the training text."""
    by_size: dict[int, list[Path]] = {}
    for path in training:
        by_size.setdefault(path.stat().st_size, []).append(path)

    def is_copy(path: Path) -> bool:
        for other in by_size.get(path.stat().st_size, ()):
            with reading(path, "validation"), reading(other, "data"):
                if filecmp.cmp(path, other, shallow=False):
                    return True
        return False

    return [path for path in held_out if is_copy(path)]


def _files(given: Iterable[Files | HubDataset]) -> list[Path]:
    """The local files of the sources."""
    return [path for source in given if isinstance(source, Files) for _, path in source.entries]


def symbols(settings: DataSettings) -> SymbolLanguage:
    """The synthetic language with the sizes of the settings."""
    return SymbolLanguage(settings.keys, settings.numbers, settings.fillers)


def symbol_tokenizer(language: SymbolLanguage) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words for the synthetic language, so that its models load and print like any other."""
    pad, end = language.special_tokens
    vocabulary = {word: index for index, word in enumerate(language.words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=pad))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, eos_token=end, bos_token=end, padding_side="left"
    )
    note_training(tokenizer)
    return tokenizer
