"""Implements ``antiphase classify``: text classifiers, from request to record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError
from antiphase.base.folders.contents import file_digest, hash_of
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record, finite
from antiphase.lab.lineage.classifiers import Classifier, chosen_classifiers
from antiphase.lab.lineage.commands.classify import (
    ClassifierMean,
    ClassifierRun,
    Classify,
    ClassifySettings,
    DevelopmentScore,
    LabelledData,
    TestScore,
)
from antiphase.lab.lineage.data.labelled_texts import (
    Example,
    all_divided,
    check_labels,
    coarse,
    duplicates,
    held_out_tenth,
    normal_form,
    read_examples,
    stratified_parts,
)
from antiphase.lab.lineage.data.text_batches import EncodedTexts, encode
from antiphase.lab.lineage.data.vocabularies import TOKENIZERS, content_of_own, train_words
from antiphase.lab.lineage.finished_runs import RunGroup, check_lengths, load_or_run_each, make_elsewhere, save_run
from antiphase.lab.lineage.models.word_vectors import set_word_vectors
from antiphase.lab.lineage.named_models import alone
from antiphase.lab.lineage.names import VOCABULARY
from antiphase.lab.lineage.results import SHOWN, ClassificationScore, ShownOutput
from antiphase.lab.lineage.scoring.classification import (
    class_probabilities,
    classification_scores,
    confusion_matrix,
    development_scores,
)
from antiphase.lab.lineage.training.classifier import train_classifier
from antiphase.lab.pages.tables import mean_of_present
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.settings.naming import naming
from antiphase.lab.statistics.blocks import Blocks
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.training.device import choose_device
from antiphase.models.sources.tokenizers import load_tokenizer


@dataclass(frozen=True)
class RunTexts:
    """Training, development and test parts of one seed and fold."""

    seed: int
    fold: int | None
    train: list[Example]
    development: list[Example]
    test: list[Example]


def classify(
    request: ClassifySettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Train and test every model with every seed and fold; write ``record.json`` and the models in ``output``.

    Each run has a folder, ``MODEL-seedK`` or ``MODEL-seedK-foldF``, which is created when it is finished; ``resume``
    trains the missing ones. The run with the best development score is copied to ``output`` itself.

    Raises:
        InputError: files, labels or settings cannot be used, or the folder has other contents.
        Interrupted: Ctrl-C was pressed; finished runs are kept.
    """
    request.check()
    classifiers = chosen_classifiers(request.models, request.settings)
    device = choose_device(request.device)
    with work_in(output, kept_settings(request), resume=resume) as work:
        with undone_if_refused(output):
            examples, test, labels = _read(request, say)
            splits = list(_splits(request, examples, test))
            content = _content(request, examples, test)
            changed = "the labelled texts, the tokenizer or the word vectors have changed"
            work.begin({"content": content}, {"content": changed})
            study = ClassifyRuns(request, labels, device, output, content)
            is_trained = request.tokenizer in TOKENIZERS and request.tokenizer != "words"  # on the texts of each part
            for parts in splits if is_trained else splits[:1]:
                study.check(classifiers, parts)
        runs = study.runs(classifiers, splits, say, report)
        best = max(runs, key=lambda run: run.development.accuracy)
        for path in (output / best.folder).iterdir():
            if path.name != "record.json":
                shutil.copy2(path, output / path.name)
        found = Classify(
            labels=labels, data=_data(request, examples, test, labels), runs=runs, best=best.folder,
            models=summaries(runs, None if test or request.folds else len(examples)),
        )  # fmt: skip
        settings = {name: one.settings() for name, one in classifiers.items()}
        return found.save(output, request, seconds=sum(run.seconds for run in runs), classifiers=settings)


def _read(request: ClassifySettings, say: Callable[[str], None]) -> tuple[list[Example], list[Example], list[str]]:
    """Rows of ``--train``, rows of ``--test``, and the labels."""
    fields: dict[str, Any] = {"labels": "fine", "text_field": request.text_field, "label_field": request.label_field}
    with naming({"split": "--train or --test as FILE@PART"}):
        examples = read_examples(request.train, **fields)
        test = read_examples(request.test, field="test", **fields) if request.test else []
    if request.labels == "coarse" and all_divided(examples):
        examples, test = coarse(examples), coarse(test)
    labels = check_labels(examples, test)
    say(f"{len(examples):,} labelled texts, {len(labels)} labels" + (f", {len(test):,} to test" if test else ""))
    return examples, test, labels


def _content(request: ClassifySettings, examples: Sequence[Example], test: Sequence[Example]) -> str:
    """Digest of the rows of each part and of the files that the runs read."""
    texts = [[[example.text, example.label] for example in part] for part in (examples, test)]
    given = request.word_vectors
    vectors = None if given is None else file_digest(Path(given), "word_vectors")
    return hash_of([texts, content_of_own(request.tokenizer), vectors])


def _splits(request: ClassifySettings, examples: list[Example], test: list[Example]) -> Iterator[RunTexts]:
    for seed in request.seeds:
        if request.test:
            train, development = held_out_tenth(examples, seed, "development")
            yield RunTexts(seed, None, train, development, test)
        elif request.folds is None:
            rest, held_out = held_out_tenth(examples, seed, "test")
            train, development = held_out_tenth(rest, seed, "development")
            yield RunTexts(seed, None, train, development, held_out)
        else:
            yield from _folds(request.folds, seed, examples)


def _folds(count: int, seed: int, examples: list[Example]) -> Iterator[RunTexts]:
    if count > len(examples):
        raise InputError(f"--folds {count} is more than the {len(examples)} rows can be split into")
    labels = [example.label for example in examples]
    parts = stratified_parts(labels, count, seed, "test")
    dealt = {row for part in parts for row in part}
    for row, example in enumerate(examples):
        if row not in dealt:
            raise InputError(
                f"{example.place}: the label '{example.label}' has only this row, so it could be tested but not "
                "trained; remove it, or give more rows"
            )
    if not all(parts):
        raise InputError(f"--folds {count} is more than the {len(examples)} rows can be split into")
    for fold, part in enumerate(parts):
        chosen = set(part)
        rest = [example for row, example in enumerate(examples) if row not in chosen]
        train, development = held_out_tenth(rest, seed, "development", fold)
        yield RunTexts(seed, fold, train, development, [examples[row] for row in part])


class ClassifyRuns:
    """Executes the runs one after the other."""

    def __init__(
        self, request: ClassifySettings, labels: list[str], device: torch.device, output: Path, content: str
    ) -> None:
        """``content`` is the digest of everything that the runs read."""
        self.request, self.labels, self.device, self.output = request, labels, device, output
        self.content = content
        self.numbers = {label: number for number, label in enumerate(labels)}
        self.tokenizers: dict[tuple[int, int | None], PreTrainedTokenizerBase] = {}

    def check(self, classifiers: Mapping[str, Classifier], parts: RunTexts) -> None:
        """Build every model and encode every text once, so that no late run fails after hours."""
        tokenizer = self._tokenizer(parts)
        for name, classifier in classifiers.items():
            model = self._model(classifier, tokenizer, seed=parts.seed)
            self._set_vectors(model, tokenizer)
            self._encode(tokenizer, [*parts.train, *parts.development, *parts.test], model, name)

    def runs(
        self,
        classifiers: Mapping[str, Classifier],
        splits: Sequence[RunTexts],
        say: Callable[[str], None],
        report: Callable[[float, int], None],
    ) -> list[ClassifierRun]:
        """The result of each run; finished runs are read from their folders."""
        runs = {
            _folder(name, parts): partial(self._run, name, classifier, parts)
            for parts in splits
            for name, classifier in classifiers.items()
        }
        read = [*self.request.train, *self.request.test, self.request.tokenizer]
        read += filter(None, [self.request.word_vectors])
        parts = self._parts(classifiers, splits)
        make_elsewhere("classify", parts, self.output, self.request, read, say=say, report=report)
        return load_or_run_each(
            runs, self.output, read=lambda record: Classify.of(record).runs[0], say=say, sentence=_sentence,
            report=report, configs={_folder(name, parts): self._config(name, classifier, parts.seed)
                                    for parts in splits for name, classifier in classifiers.items()},
        )  # fmt: skip

    def _parts(self, names: Iterable[str], splits: Sequence[RunTexts]) -> list[RunGroup]:
        """A part for each model and seed, with all folds."""
        return [
            RunGroup(
                f"{name}-seed{seed}", alone(self.request, name, seed),
                [_folder(name, parts) for parts in splits if parts.seed == seed], self.content,
            )
            for seed in self.request.seeds
            for name in names
        ]  # fmt: skip

    def _run(
        self, name: str, classifier: Classifier, parts: RunTexts, folder: str, report: Callable[[int, int], None]
    ) -> ClassifierRun:
        started = time.perf_counter()
        tokenizer = self._tokenizer(parts)
        model = self._model(classifier, tokenizer, seed=parts.seed)
        known = self._set_vectors(model, tokenizer)
        texts = {
            part: self._encode(tokenizer, getattr(parts, part), model, name)
            for part in ("train", "development", "test")
        }
        targets = {
            part: torch.tensor([self.numbers[example.label] for example in getattr(parts, part)]) for part in texts
        }

        curve = train_classifier(
            model, classifier.training, texts["train"], targets["train"], seed=parts.seed, report=report,
            evaluate=partial(development_scores, texts=texts["development"], targets=targets["development"]),
        )  # fmt: skip
        predicted = class_probabilities(model, texts["test"]).argmax(1)
        best = next(point for point in curve if point.best)
        run = ClassifierRun(
            model=name,
            seed=parts.seed,
            fold=parts.fold,
            **vars(self.judged(predicted, targets["test"], parts)),
            development=DevelopmentScore(samples=len(parts.development), accuracy=best.accuracy, loss=best.loss),
            training_samples=len(parts.train),
            best_epoch=best.epoch,
            epochs=curve[-1].epoch,
            curve=curve,
            parameters=model.num_parameters(),
            vocabulary=len(tokenizer),
            words_with_vectors=known,
            seconds=time.perf_counter() - started,
            folder=folder,
            shown=[
                ShownOutput(text=example.text, right=example.label, output=self.labels[label])
                for example, label in zip(parts.test[:SHOWN], predicted.tolist(), strict=False)
            ],
        )
        self._keep(model, tokenizer, classifier, run)
        return run

    def judged(self, predicted: Tensor, targets: Tensor, parts: RunTexts) -> TestScore:
        """Scores on the test part, and on those of its texts that are not in the training and development parts."""
        labels = len(self.labels)
        whole = classification_scores(confusion := confusion_matrix(predicted, targets, labels))
        seen = {normal_form(example.text) for example in (*parts.train, *parts.development)}
        fresh = torch.tensor([normal_form(example.text) not in seen for example in parts.test])
        return TestScore(
            test_accuracy=whole.correct / whole.samples, macro_f1=whole.macro_f1, samples=whole.samples,
            correct=whole.correct, confusion=confusion.tolist(),
            unseen=classification_scores(confusion_matrix(predicted[fresh], targets[fresh], labels)),
        )  # fmt: skip

    def _tokenizer(self, parts: RunTexts) -> PreTrainedTokenizerBase:
        key = (parts.seed, parts.fold)
        if key not in self.tokenizers:
            self.tokenizers.clear()  # those of earlier parts are no longer needed
            self.tokenizers[key] = self._train_tokenizer([example.text for example in parts.train])
        return self.tokenizers[key]

    def _train_tokenizer(self, texts: list[str]) -> PreTrainedTokenizerBase:
        kind, size = self.request.tokenizer, self.request.vocabulary or VOCABULARY
        if kind not in TOKENIZERS:
            return load_tokenizer(kind, field="tokenizer")
        with naming({"data.vocabulary_size": "--vocabulary"}):
            if kind == "words":
                least = self.request.least_count or (1 if self.request.word_vectors else 2)
                return train_words(texts, size, least_count=least)
            return TOKENIZERS[kind](texts, size)

    def _model(self, classifier: Classifier, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
        return classifier.build(tokenizer, self.labels, seed=seed).to(self.device)

    def _set_vectors(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Number of words with vectors from ``--word-vectors``; None without it."""
        path = self.request.word_vectors
        if path is None:
            return None
        return set_word_vectors(model, path, tokenizer.get_vocab(), field="word_vectors")

    def _encode(
        self, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], model: PreTrainedModel, name: str
    ) -> EncodedTexts:
        texts = encode(tokenizer, [example.text for example in examples])
        remedy = f"shorten it, or add --set {name}.max_position_embeddings={{longest}}"
        check_lengths(texts, [example.place for example in examples], model, remedy=remedy)
        return texts

    def _keep(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, classifier: Classifier, run: ClassifierRun
    ) -> None:
        found = Classify(labels=self.labels, models=summaries([run]), runs=[run])
        config = self._config(run.model, classifier, run.seed)
        record = replace(found.record(), config=config, seeds=[run.seed], seconds=run.seconds)
        save_run(model, tokenizer, record, self.output / run.folder)

    def _config(self, name: str, classifier: Classifier, seed: int) -> dict[str, Any]:
        """What a run's result depends on: settings, and the digest of everything that it reads."""
        own = kept_settings(alone(self.request, name, seed))
        config: dict[str, Any] = finite({**own, "classifier": classifier.settings(), "content": self.content})
        return config


def _folder(name: str, parts: RunTexts) -> str:
    """The name of a run's folder."""
    return f"{name}-seed{parts.seed}" + ("" if parts.fold is None else f"-fold{parts.fold}")


def _sentence(run: ClassifierRun) -> str:
    fold = "" if run.fold is None else f", fold {run.fold}"
    return (
        f"{run.model}, seed {run.seed}{fold}: {100 * run.test_accuracy:.1f} % of {run.samples:,} "
        f"(development {100 * run.development.accuracy:.1f} %, epoch {run.best_epoch} of {run.epochs}, "
        f"{run.seconds:.0f} s)"
    )


@dataclass(frozen=True)
class _Pooled:
    """Combined scores of one seed's folds."""

    whole: ClassificationScore
    unseen_accuracy: float | None

    @classmethod
    def of(cls, folds: Sequence[ClassifierRun]) -> _Pooled:
        confusion = sum((torch.tensor(run.confusion) for run in folds), torch.zeros(1).long())
        unseen = sum(run.unseen.samples for run in folds)
        right = sum(run.unseen.correct for run in folds)
        return cls(classification_scores(confusion), right / unseen if unseen else None)


def summaries(runs: Sequence[ClassifierRun], drawn_from: int | None = None) -> list[ClassifierMean]:
    """One row per model.

    Args:
        drawn_from: number of rows of which each seed holds out a part of its own; None if all have the same test rows.
    """
    accuracies: dict[str, dict[int, float]] = {}
    pooled: dict[str, list[_Pooled]] = {}
    for name in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == name]
        seeds = dict.fromkeys(run.seed for run in own)
        pooled[name] = [_Pooled.of([run for run in own if run.seed == seed]) for seed in seeds]
        accuracies[name] = {
            seed: row.whole.correct / row.whole.samples for seed, row in zip(seeds, pooled[name], strict=True)
        }
    first = next(iter(accuracies), "")
    blocks = Blocks.of(
        {name: [by_seed.get(seed) for seed in accuracies[first]] for name, by_seed in accuracies.items()}
    )
    found: list[ClassifierMean] = []
    for name, by_seed in accuracies.items():
        own = [run for run in runs if run.model == name]
        accuracy, size = fmean(by_seed.values()), min(row.whole.samples for row in pooled[name])
        tested = size if drawn_from is None else min(drawn_from, size * len(by_seed))
        paired = None if blocks is None or name == first else blocks.difference(name, first)
        found.append(ClassifierMean(
            model=name,
            seeds=len(by_seed),
            folds=len(own) // len(by_seed),
            accuracy=accuracy,
            interval=list(wilson_interval(round(accuracy * tested), tested)),
            macro_f1=mean_of_present(row.whole.macro_f1 for row in pooled[name]),
            unseen_accuracy=mean_of_present(row.unseen_accuracy for row in pooled[name]),
            development_accuracy=fmean(run.development.accuracy for run in own),
            difference=None if name == first else accuracy - fmean(accuracies[first].values()),
            difference_interval=None if paired is None else list(paired.interval()),
            parameters=round(fmean(run.parameters for run in own)),
            seconds=fmean(run.seconds for run in own),
        ))  # fmt: skip
    return found


def _data(
    request: ClassifySettings, examples: Sequence[Example], test: Sequence[Example], labels: Sequence[str]
) -> LabelledData:
    trained = {normal_form(example.text) for example in examples}
    return LabelledData(
        split="official test part" if test else f"{request.folds} folds" if request.folds else "held-out tenth",
        train=duplicates(examples),
        test=duplicates(test) if test else None,
        test_rows_in_train=sum(normal_form(example.text) in trained for example in test) if test else None,
        rows_by_label={label: sum(example.label == label for example in examples) for label in labels},
    )
