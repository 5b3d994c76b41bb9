"""Implements ``antiphase translate``: encoder–decoders on parallel text, from request to record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record, finite
from antiphase.lab.lineage.commands.translate import (
    SAMPLES,
    TEST_SAMPLES,
    Alignment,
    BaselineScore,
    PairedData,
    ShownPair,
    Translate,
    TranslateSettings,
    TranslatorMean,
    TranslatorRun,
    TranslatorScore,
)
from antiphase.lab.lineage.data.generated_language import generated_pairs, lexicon
from antiphase.lab.lineage.data.labelled_texts import normal_form
from antiphase.lab.lineage.data.parallel import Pair, held_out_pairs, read_pairs
from antiphase.lab.lineage.data.text_batches import EncodedTexts, encode, unknown_id
from antiphase.lab.lineage.data.vocabularies import TOKENIZERS, content_of_own, train_words
from antiphase.lab.lineage.finished_runs import RunGroup, check_lengths, load_or_run_each, make_elsewhere, save_run
from antiphase.lab.lineage.models.sequence_to_sequence import SequenceToSequenceForConditionalGeneration
from antiphase.lab.lineage.named_models import alone, chosen_models
from antiphase.lab.lineage.names import VOCABULARY
from antiphase.lab.lineage.results import SHOWN, AlignmentAccuracy, ShownOutput
from antiphase.lab.lineage.scoring.translation import (
    alignment_accuracy,
    greedy_outputs,
    most_common_token,
    sentence_scores,
    teacher_forced,
    written_texts,
)
from antiphase.lab.lineage.training.translator import train_translator
from antiphase.lab.lineage.translators import TRANSLATORS, Translator
from antiphase.lab.pages.tables import mean_of_present
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.settings.naming import naming
from antiphase.lab.statistics.intervals import share_interval
from antiphase.lab.training.device import choose_device
from antiphase.models.sources.tokenizers import load_tokenizer

START, END = "<|start|>", "<|end|>"
CHOOSING = 200
"""Number of training pairs on which the layer and head with the best alignment are selected."""


@dataclass(frozen=True)
class RunTexts:
    """Training and test parts of one seed."""

    seed: int
    train: list[Pair]
    test: list[Pair]


def translate(
    request: TranslateSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Train and test every model with every seed; write ``record.json`` and the models in ``output``.

    Each run has a folder, ``MODEL-seedK``, which is created when it is finished; ``resume`` trains the missing ones.
    All models of a seed are trained on the same pairs in the same order. The record's arrays are the alignments of the
    held-out pair in ``values["example"]``, (layers, heads, target tokens, source tokens), in each model's first run.

    Raises:
        InputError: files or settings cannot be used, or the folder has other contents.
        Interrupted: Ctrl-C was pressed; finished runs are kept.
    """
    request.check()
    translators = chosen_models(request.models, request.settings, known=TRANSLATORS, flag="--models")
    device = choose_device(request.device)
    with work_in(output, kept_settings(request), resume=resume) as work:
        with undone_if_refused(output):
            splits = _splits(request)
            content = _content(splits, request)
            work.begin({"content": content}, {"content": "the pairs or the tokenizer have changed"})
            study = TranslateRuns(request, device, output)
            for parts in splits if request.train else splits[:1]:  # generated parts do not differ in what is checked
                study.check(translators, parts)
        kind = "pairs" if request.train else "generated pairs"
        say(f"{len(splits[0].train):,} {kind} to train, {len(splits[0].test):,} held out")
        runs = study.runs(translators, splits, say, report)
        first = {run.model: run.folder for run in reversed(runs)}
        arrays = {
            f"alignment.{name}": Record.load(output / folder).arrays["alignment"] for name, folder in first.items()
        }
        settings = {name: one.settings() for name, one in translators.items()}
        seconds = sum(run.seconds for run in runs)
        return study.result(splits[0], runs).save(output, request, arrays, seconds=seconds, translators=settings)


def _splits(request: TranslateSettings) -> list[RunTexts]:
    if not request.train:
        test = generated_pairs(request.test_samples or TEST_SAMPLES, "test")
        unlike = {pair.source for pair in test}
        return [
            RunTexts(seed, generated_pairs(request.samples or SAMPLES, seed, "train", unlike=unlike), test)
            for seed in request.seeds
        ]
    fields = {"source_field": request.source_field, "target_field": request.target_field}
    with naming({"split": "--train or --test as FILE@PART"}):
        pairs = read_pairs(request.train, **fields)
        test = read_pairs(request.test, **fields, field="test") if request.test else []
    if request.test:
        return [RunTexts(seed, pairs, test) for seed in request.seeds]
    return [RunTexts(seed, *held_out_pairs(pairs, seed)) for seed in request.seeds]


def _content(splits: Sequence[RunTexts], request: TranslateSettings) -> str:
    """Digest of the pairs and the tokenizer."""
    texts = [[[[pair.source, pair.target] for pair in part] for part in (parts.train, parts.test)] for parts in splits]
    return hash_of([texts, content_of_own(request.tokenizer)])


class TranslateRuns:
    """Executes the runs one after the other."""

    def __init__(self, request: TranslateSettings, device: torch.device, output: Path) -> None:
        self.request, self.device, self.output = request, device, output
        self.tokenizers: dict[int, PreTrainedTokenizerBase] = {}

    def check(self, translators: Mapping[str, Translator], parts: RunTexts) -> None:
        """Build every model and encode every text once, so that no late run fails after hours."""
        tokenizer = self._tokenizer(parts)
        for name, translator in translators.items():
            model = translator.build(tokenizer, seed=parts.seed)
            for pairs in (parts.train, parts.test):
                self.encode(tokenizer, pairs, model, name)

    def runs(
        self,
        translators: Mapping[str, Translator],
        splits: Sequence[RunTexts],
        say: Callable[[str], None],
        report: Callable[[float, int], None],
    ) -> list[TranslatorRun]:
        """The result of each run; finished runs are read from their folders."""
        runs = {
            f"{name}-seed{parts.seed}": partial(self._run, name, translator, parts)
            for parts in splits
            for name, translator in translators.items()
        }
        parts = [
            RunGroup(run, alone(self.request, name, split.seed), [run], _content([split], self.request))
            for split in splits
            for name, run in ((name, f"{name}-seed{split.seed}") for name in translators)
        ]
        read = [*self.request.train, *self.request.test, *filter(None, [self.request.tokenizer])]
        make_elsewhere("translate", parts, self.output, self.request, read, say=say, report=report)
        return load_or_run_each(
            runs, self.output, read=lambda record: Translate.of(record).runs[0], say=say, sentence=_sentence,
            report=report, configs={f"{name}-seed{split.seed}": self._config(name, translator, split)
                                    for split in splits for name, translator in translators.items()},
        )  # fmt: skip

    def _run(
        self, name: str, translator: Translator, parts: RunTexts, folder: str, report: Callable[[int, int], None]
    ) -> TranslatorRun:
        started = time.perf_counter()
        tokenizer = self._tokenizer(parts)
        model = translator.build(tokenizer, seed=parts.seed).to(self.device)
        train, test = (self.encode(tokenizer, pairs, model, name) for pairs in (parts.train, parts.test))
        untrained = self._judged(model, tokenizer, parts, train, test)
        curve = train_translator(
            model, translator.training, *train, seed=parts.seed, report=report,
            evaluate=lambda now: teacher_forced(now, *test, unknown=unknown_id(tokenizer)),
        )  # fmt: skip
        run = TranslatorRun(
            model=name,
            seed=parts.seed,
            **vars(self._judged(model, tokenizer, parts, train, test)),
            untrained=untrained,
            training_samples=len(parts.train),
            epochs=curve[-1].epoch,
            curve=curve,
            parameters=model.num_parameters(),
            vocabulary=len(tokenizer),
            seconds=time.perf_counter() - started,
            folder=folder,
            shown=translations(model, tokenizer, parts.test[:SHOWN], test[0]),
        )
        record = replace(
            Translate(models=summaries([run]), runs=[run]).record(),
            config=self._config(name, translator, parts),
            seeds=[parts.seed],
            seconds=run.seconds,
            arrays={"alignment": self._example(model, test)},
        )
        save_run(model, tokenizer, record, self.output / folder)
        return run

    def _config(self, name: str, translator: Translator, parts: RunTexts) -> dict[str, Any]:
        """What a run's result depends on: settings, and the digest of everything that it reads."""
        own = kept_settings(alone(self.request, name, parts.seed))
        content = _content([parts], self.request)
        config: dict[str, Any] = finite({**own, "translator": translator.settings(), "content": content})
        return config

    def _judged(
        self,
        model: SequenceToSequenceForConditionalGeneration,
        tokenizer: PreTrainedTokenizerBase,
        parts: RunTexts,
        train: tuple[EncodedTexts, EncodedTexts],
        test: tuple[EncodedTexts, EncodedTexts],
    ) -> TranslatorScore:
        """Scores on the held-out part. Layer and head of the alignment are selected on training pairs."""
        sources, targets = test
        longest = min(model.config.max_position_embeddings, 2 * max(map(len, targets.ids)))
        scores = sentence_scores(
            greedy_outputs(model, sources, longest),
            targets.ids,
            end=tokenizer.eos_token_id,
            unknown=unknown_id(tokenizer),
        )
        forced = teacher_forced(model, sources, targets, unknown=unknown_id(tokenizer))
        alignment = None
        known = [pair.alignment for pair in parts.test if pair.alignment is not None]
        if len(known) == len(parts.test):
            chosen = [pair.alignment for pair in parts.train[:CHOOSING] if pair.alignment is not None]
            alignment = reported_alignment(
                alignment_accuracy(model, *train, chosen), alignment_accuracy(model, *test, known)
            )
        return TranslatorScore(
            loss=forced["loss"], token_accuracy=forced["accuracy"], **vars(scores), alignment=alignment
        )

    def _tokenizer(self, parts: RunTexts) -> PreTrainedTokenizerBase:
        if parts.seed not in self.tokenizers:
            self.tokenizers.clear()  # those of earlier parts are no longer needed
            self.tokenizers[parts.seed] = self._train_tokenizer(parts.train)
        return self.tokenizers[parts.seed]

    def _train_tokenizer(self, pairs: Sequence[Pair]) -> PreTrainedTokenizerBase:
        kind, size = self.request.tokenizer or "words", self.request.vocabulary or VOCABULARY
        texts = [text for pair in pairs for text in (pair.source, pair.target)]
        with naming({"data.vocabulary_size": "--vocabulary"}):
            if not self.request.train:
                words = [*lexicon(), *lexicon().values()]
                tokenizer = train_words([" ".join(words)], len(words) + 2)
            elif kind == "words":
                tokenizer = train_words(texts, size, least_count=2)
            elif kind in TOKENIZERS:
                tokenizer = TOKENIZERS[kind](texts, size)
            else:
                tokenizer = load_tokenizer(kind, field="tokenizer")
        special = {"bos_token": START, "eos_token": END, "pad_token": "<|pad|>"}
        lacking = {name: token for name, token in special.items() if getattr(tokenizer, name) is None}
        tokenizer.add_special_tokens(lacking)
        tokenizer.padding_side = "right"
        return tokenizer

    def encode(
        self,
        tokenizer: PreTrainedTokenizerBase,
        pairs: Sequence[Pair],
        model: SequenceToSequenceForConditionalGeneration,
        name: str,
    ) -> tuple[EncodedTexts, EncodedTexts]:
        """``encode_pairs``, or an InputError that names the place of a text that exceeds the model's positions."""
        found = encode_pairs(tokenizer, pairs)
        remedy = f"shorten it, or add --set {name}.max_position_embeddings={{longest}}"
        for side, texts in zip(("source", "target"), found, strict=True):
            for pair, ids in zip(pairs, texts.ids, strict=True):
                if set(ids) <= {tokenizer.eos_token_id}:
                    raise InputError(f"{pair.place}: the {side} has no token in this tokenizer; remove the pair")
            check_lengths(texts, [pair.place for pair in pairs], model, remedy=remedy)
        return found

    def _example(
        self, model: SequenceToSequenceForConditionalGeneration, test: tuple[EncodedTexts, EncodedTexts]
    ) -> numpy.ndarray:
        """Alignment of the held-out pair that is shown, (layers, heads, target tokens, source tokens)."""
        row = shown_pair(test[0])
        ids, labels = (torch.tensor([texts.ids[row]], device=self.device) for texts in test)
        found: numpy.ndarray = model.alignment(ids, labels)[:, 0].cpu().numpy()
        return found

    def result(self, parts: RunTexts, runs: list[TranslatorRun]) -> Translate:
        """The result of all runs; ``parts`` are those of the first seed."""
        tokenizer = self._tokenizer(parts)
        sources, targets = encode_pairs(tokenizer, parts.test)
        row = shown_pair(sources)
        alignment = parts.test[row].alignment
        trained = {normal_form(pair.source) for pair in parts.train}
        generated = not self.request.train
        return Translate(
            data=PairedData(
                generated=generated,
                split="official test part" if self.request.test else "generated" if generated else "held-out tenth",
                training_samples=len(parts.train),
                test_samples=len(parts.test),
                test_sources_in_train=sum(normal_form(pair.source) in trained for pair in parts.test),
            ),
            models=summaries(runs),
            baselines=self._baselines(tokenizer, parts, sources, targets),
            example=ShownPair(
                seed=parts.seed,
                source=[tokenizer.decode([number]) for number in sources.ids[row]],
                target=[tokenizer.decode([number]) for number in targets.ids[row]],
                alignment=None if alignment is None else list(alignment),
            ),
            runs=runs,
        )

    def _baselines(
        self, tokenizer: PreTrainedTokenizerBase, parts: RunTexts, sources: EncodedTexts, targets: EncodedTexts
    ) -> list[BaselineScore]:
        """Scores without learning: the most common token at every position, and copying the source word for word."""
        end, unknown = tokenizer.eos_token_id, unknown_id(tokenizer)
        common = most_common_token(encode_pairs(tokenizer, parts.train)[1].ids)
        systems = {
            "commonest token": [[common] * len(ids) for ids in targets.ids],
            "copy of the source": [with_end(ids, end) for ids in sources.ids],
        }
        if not self.request.train:
            told = [" ".join(lexicon()[word] for word in pair.source.split()) for pair in parts.test]
            systems["word for word"] = [with_end(ids, end) for ids in encode(tokenizer, told).ids]
        return [
            BaselineScore(system=name, **vars(sentence_scores(outputs, targets.ids, end=end, unknown=unknown)))
            for name, outputs in systems.items()
        ]


def encode_pairs(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]) -> tuple[EncodedTexts, EncodedTexts]:
    """Encode sources, and targets with the end token, which some tokenizers add by themselves."""
    end = tokenizer.eos_token_id
    sources, plain = (encode(tokenizer, [getattr(pair, side) for pair in pairs]) for side in ("source", "target"))
    return sources, EncodedTexts([with_end(ids, end) for ids in plain.ids], plain.pad_id)


def translations(
    model: SequenceToSequenceForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    sources: EncodedTexts,
) -> list[ShownOutput]:
    """Pairs, and what the model writes for their sources, the first of ``sources``."""
    written = written_texts(model, tokenizer, replace(sources, ids=sources.ids[: len(pairs)]))
    return [
        ShownOutput(text=pair.source, right=pair.target, output=text) for pair, text in zip(pairs, written, strict=True)
    ]


def with_end(ids: list[int], end: int) -> list[int]:
    """The ids, ending with the end token."""
    return ids if ids[-1:] == [end] else [*ids, end]


def shown_pair(sources: EncodedTexts) -> int:
    """The held-out pair whose alignment is shown: the first one of median length."""
    lengths = sorted(map(len, sources.ids))
    return next(row for row, ids in enumerate(sources.ids) if len(ids) == lengths[len(lengths) // 2])


def reported_alignment(choosing: AlignmentAccuracy, found: AlignmentAccuracy) -> Alignment:
    """``found`` with the layer and the head that are best on other pairs, and their accuracy here."""
    layer = max(range(len(choosing.layers)), key=choosing.layers.__getitem__)
    places = [(row, column) for row, line in enumerate(choosing.heads) for column in range(len(line))]
    row, column = max(places, key=lambda place: choosing.heads[place[0]][place[1]])
    return Alignment(
        **vars(found), layer=layer, mean_of_heads=found.layers[layer], head=[row, column],
        best_head=found.heads[row][column],
    )  # fmt: skip


def _sentence(run: TranslatorRun) -> str:
    aligned = "" if run.alignment is None else f", alignment {100 * run.alignment.mean_of_heads:.1f} %"
    return (
        f"{run.model}, seed {run.seed}: {100 * run.exact_match:.1f} % of {run.samples:,} sentences right, "
        f"{100 * run.token_accuracy:.1f} % of tokens{aligned} ({run.seconds:.0f} s)"
    )


def summaries(runs: Sequence[TranslatorRun]) -> list[TranslatorMean]:
    """One row per model, before and after training."""
    found = []
    for name in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == name]
        for trained in (False, True):
            scores: list[TranslatorScore] = [run if trained else run.untrained for run in own]
            exact = [score.exact_match for score in scores]
            alignments = [score.alignment for score in scores if score.alignment is not None]
            found.append(TranslatorMean(
                model=name,
                trained=trained,
                seeds=len(own),
                loss=mean_of_present(score.loss for score in scores),
                token_accuracy=_mean(score.token_accuracy for score in scores),
                exact_match=_mean(exact),
                ended=_mean(score.ended for score in scores),
                interval=list(share_interval(exact, scores[0].samples)),
                mean_of_heads=mean_of_present(one.mean_of_heads for one in alignments),
                best_head=mean_of_present(one.best_head for one in alignments),
                chance=mean_of_present(one.chance for one in alignments),
                same_place=mean_of_present(one.same_place for one in alignments),
                parameters=own[0].parameters,
                seconds=_mean(run.seconds for run in own),
            ))  # fmt: skip
    return found


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
