"""Implements ``antiphase classify``: text classifiers, from request to record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.baselines.classifiers import Classifier, chosen_classifiers
from antiphase.baselines.commands.classify import ClassifySettings
from antiphase.baselines.data.labelled_texts import (
    Example,
    check_labels,
    duplicates,
    held_out_tenth,
    normal_form,
    read_examples,
    stratified_parts,
)
from antiphase.baselines.data.text_batches import EncodedTexts, encode
from antiphase.baselines.data.vocabularies import TOKENIZERS, train_words
from antiphase.baselines.finished_runs import check_lengths, load_or_run_each, save_run
from antiphase.baselines.models.word_vectors import set_word_vectors
from antiphase.baselines.scoring.classification import class_probabilities, classification_scores, confusion_matrix
from antiphase.baselines.training.classifier import train_classifier
from antiphase.errors import InputError, naming
from antiphase.folders.contents import hash_of
from antiphase.folders.ownership import undone_if_refused
from antiphase.folders.work import work_in
from antiphase.reading.models import load_tokenizer
from antiphase.records import Record, finite
from antiphase.training.device import choose_device
from antiphase.uncertainty.intervals import wilson_interval
from antiphase.uncertainty.seeds import Sample, seeds_interval

KIND = "classify"


@dataclass(frozen=True)
class Parts:
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
    with work_in(output, request, resume=resume) as work:
        with undone_if_refused(output):
            examples, test, labels = _read(request, say)
            splits = list(_splits(request, examples, test))
            texts = [[example.text, example.label] for example in (*examples, *test)]
            work.begin({"content": hash_of(texts)}, {"content": "the labelled texts have changed"})
            study = Study(request, labels, device, output)
            study.check(classifiers, splits[0])
        runs = study.runs(classifiers, splits, say, report)
        record = _record(request, classifiers, examples, test, labels, runs)
        best = max(runs, key=lambda run: run["development"]["accuracy"])
        for path in (output / best["folder"]).iterdir():
            if path.name != "record.json":
                shutil.copy2(path, output / path.name)
        record.values["best"] = best["folder"]
        record.save(output)
    return record


def _read(request: ClassifySettings, say: Callable[[str], None]) -> tuple[list[Example], list[Example], list[str]]:
    """Rows of ``--train``, rows of ``--test``, and the labels."""
    fields: dict[str, Any] = {
        "labels": request.labels,
        "text_field": request.text_field,
        "label_field": request.label_field,
    }
    with naming({"split": "--train or --test as FILE@PART"}):
        examples = read_examples(request.train, **fields)
        test = read_examples(request.test, flag="--test", **fields) if request.test else []
    labels = check_labels(examples, test)
    say(f"{len(examples):,} labelled texts, {len(labels)} labels" + (f", {len(test):,} to test" if test else ""))
    return examples, test, labels


def _splits(request: ClassifySettings, examples: list[Example], test: list[Example]) -> Iterator[Parts]:
    for seed in request.seeds:
        if request.test:
            train, development = held_out_tenth(examples, seed, "development")
            yield Parts(seed, None, train, development, test)
        elif request.folds is None:
            rest, held_out = held_out_tenth(examples, seed, "test")
            train, development = held_out_tenth(rest, seed, "development")
            yield Parts(seed, None, train, development, held_out)
        else:
            yield from _folds(request.folds, seed, examples)


def _folds(count: int, seed: int, examples: list[Example]) -> Iterator[Parts]:
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
        yield Parts(seed, fold, train, development, [examples[row] for row in part])


class Study:
    """Executes the runs one after the other."""

    def __init__(self, request: ClassifySettings, labels: list[str], device: torch.device, output: Path) -> None:
        self.request, self.labels, self.device, self.output = request, labels, device, output
        self.numbers = {label: number for number, label in enumerate(labels)}
        self.tokenizers: dict[tuple[int, int | None], PreTrainedTokenizerBase] = {}

    def check(self, classifiers: Mapping[str, Classifier], parts: Parts) -> None:
        """Build every model and encode every text once, so that no late run fails after hours."""
        tokenizer = self._tokenizer(parts)
        for name, classifier in classifiers.items():
            model = self._model(classifier, tokenizer, seed=parts.seed)
            self._set_vectors(model, tokenizer)
            self._encode(tokenizer, [*parts.train, *parts.development, *parts.test], model, name)

    def runs(
        self,
        classifiers: Mapping[str, Classifier],
        splits: Sequence[Parts],
        say: Callable[[str], None],
        report: Callable[[float, int], None],
    ) -> list[dict[str, Any]]:
        """The values of each run; finished runs are read from their folders."""
        runs = {
            f"{name}-seed{parts.seed}" + ("" if parts.fold is None else f"-fold{parts.fold}"): partial(
                self._run, name, classifier, parts
            )
            for parts in splits
            for name, classifier in classifiers.items()
        }
        return load_or_run_each(runs, self.output, say=say, sentence=_sentence, report=report)

    def _run(
        self, name: str, classifier: Classifier, parts: Parts, folder: str, report: Callable[[int, int], None]
    ) -> dict[str, Any]:
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

        def evaluate(trained: PreTrainedModel) -> dict[str, float]:
            found = class_probabilities(trained, texts["development"])
            right = found[torch.arange(len(found)), targets["development"]]
            accuracy = (found.argmax(1) == targets["development"]).float().mean()
            return {"accuracy": float(accuracy), "loss": float(-right.clamp(min=1e-30).log().mean())}

        curve = train_classifier(
            model, classifier.training, texts["train"], targets["train"], seed=parts.seed, evaluate=evaluate,
            report=report,
        )  # fmt: skip
        predicted = class_probabilities(model, texts["test"]).argmax(1)
        best = next(point for point in curve if point["best"])
        run = {
            "model": name,
            "seed": parts.seed,
            "fold": parts.fold,
            **self.judged(predicted, targets["test"], parts),
            "development": {"samples": len(parts.development), "accuracy": best["accuracy"], "loss": best["loss"]},
            "training_samples": len(parts.train),
            "best_epoch": best["epoch"],
            "epochs": curve[-1]["epoch"],
            "curve": curve,
            "parameters": model.num_parameters(),
            "vocabulary": len(tokenizer),
            "words_with_vectors": known,
            "seconds": time.perf_counter() - started,
            "folder": folder,
        }
        self._keep(model, tokenizer, classifier, run)
        return run

    def judged(self, predicted: Tensor, targets: Tensor, parts: Parts) -> dict[str, Any]:
        """Scores on the test part, and on those of its texts that are not in the training and development parts."""
        labels = len(self.labels)
        whole = classification_scores(confusion := confusion_matrix(predicted, targets, labels))
        seen = {normal_form(example.text) for example in (*parts.train, *parts.development)}
        fresh = torch.tensor([normal_form(example.text) not in seen for example in parts.test])
        unseen = classification_scores(confusion_matrix(predicted[fresh], targets[fresh], labels))
        return {
            "test_accuracy": whole["accuracy"],
            "macro_f1": whole["macro_f1"],
            "samples": whole["samples"],
            "correct": whole["correct"],
            "confusion": confusion.tolist(),
            "unseen": {name: unseen[name] for name in ("samples", "correct", "accuracy", "macro_f1")},
        }

    def _tokenizer(self, parts: Parts) -> PreTrainedTokenizerBase:
        key = (parts.seed, parts.fold)
        if key not in self.tokenizers:
            self.tokenizers.clear()  # those of earlier parts are no longer needed
            self.tokenizers[key] = self._train_tokenizer([example.text for example in parts.train])
        return self.tokenizers[key]

    def _train_tokenizer(self, texts: list[str]) -> PreTrainedTokenizerBase:
        kind, size = self.request.tokenizer, self.request.vocabulary
        if kind not in TOKENIZERS:
            return load_tokenizer(kind, flag="--tokenizer")
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
        with torch.random.fork_rng():
            return set_word_vectors(model, path, tokenizer.get_vocab())

    def _encode(
        self, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], model: PreTrainedModel, name: str
    ) -> EncodedTexts:
        texts = encode(tokenizer, [example.text for example in examples])
        remedy = f"shorten it, or add --set {name}.max_position_embeddings={{longest}}"
        check_lengths(texts, [example.place for example in examples], model, remedy=remedy)
        return texts

    def _keep(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, classifier: Classifier, run: dict[str, Any]
    ) -> None:
        record = Record(
            kind=KIND,
            values=finite({"labels": self.labels, "runs": [run], "models": summaries([run], one_test_part=True)}),
            config=finite({**asdict(self.request), "classifier": classifier.settings()}),
            seeds=[run["seed"]],
            seconds=run["seconds"],
        )
        save_run(model, tokenizer, record, self.output / run["folder"])


def _sentence(run: Mapping[str, Any]) -> str:
    fold = "" if run["fold"] is None else f", fold {run['fold']}"
    return (
        f"{run['model']}, seed {run['seed']}{fold}: {100 * run['test_accuracy']:.1f} % of {run['samples']:,} "
        f"(development {100 * run['development']['accuracy']:.1f} %, epoch {run['best_epoch']} of {run['epochs']}, "
        f"{run['seconds']:.0f} s)"
    )


def summaries(runs: Sequence[Mapping[str, Any]], *, one_test_part: bool) -> list[dict[str, Any]]:
    """One row per model: means over its runs, with an interval.

    The folds of a seed count as one test of all rows. With several seeds the interval covers seeds and test rows
    (``uncertainty/seeds.py``); with one, it is Wilson's over the rows. ``difference`` is the difference from the first
    model, paired by seed.

    Args:
        one_test_part: whether all seeds are tested on the same rows; otherwise each seed holds out other rows.
    """
    found: list[dict[str, Any]] = []
    first: tuple[dict[int, float], Sample] | None = None
    for name in dict.fromkeys(run["model"] for run in runs):
        own = [run for run in runs if run["model"] == name]
        seeds = list(dict.fromkeys(run["seed"] for run in own))
        by_seed = {seed: _pooled([run for run in own if run["seed"] == seed]) for seed in seeds}
        accuracies = {seed: row["accuracy"] for seed, row in by_seed.items()}
        only = by_seed[seeds[0]]
        size = min(row["samples"] for row in by_seed.values())
        sample = Sample.of_counts(list(accuracies.values()), size, shared=one_test_part)
        several = seeds_interval(list(accuracies.values()), sample)
        row: dict[str, Any] = {
            "model": name,
            "seeds": len(seeds),
            "folds": len(own) // len(seeds),
            "accuracy": _mean(accuracies.values()),
            "interval": [max(0.0, several.low), min(1.0, several.high)] if several is not None else wilson_interval(
                only["correct"], only["samples"]
            ),
            "interval_is": "Wilson over samples" if several is None else several.basis.words,
            "interval_of": None if several is None else several.basis,
            "macro_f1": _mean(row["macro_f1"] for row in by_seed.values()),
            "unseen_accuracy": _mean(row["unseen"] for row in by_seed.values()),
            "development_accuracy": _mean(run["development"]["accuracy"] for run in own),
            "difference": None,
            "difference_interval": None,
            "parameters": round(_mean(run["parameters"] for run in own) or 0),
            "seconds": _mean(run["seconds"] for run in own),
        }  # fmt: skip
        if first is None:
            first = accuracies, sample
        else:
            differences = [accuracies[seed] - first[0][seed] for seed in seeds]
            paired = seeds_interval(differences, sample.minus(first[1]))
            row["difference"] = _mean(differences)
            row["difference_interval"] = None if paired is None else [paired.low, paired.high]
        found.append(row)
    return found


def _pooled(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combined scores of one seed's folds."""
    scores = classification_scores(sum((torch.tensor(run["confusion"]) for run in folds), torch.zeros(1).long()))
    unseen = sum(run["unseen"]["samples"] for run in folds)
    right = sum(run["unseen"]["correct"] for run in folds)
    return {**scores, "unseen": right / unseen if unseen else None}


def _mean(values: Any) -> float | None:
    """The mean of the values that are not None."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _record(
    request: ClassifySettings,
    classifiers: Mapping[str, Classifier],
    examples: Sequence[Example],
    test: Sequence[Example],
    labels: Sequence[str],
    runs: list[dict[str, Any]],
) -> Record:
    trained = {normal_form(example.text) for example in examples}
    models = summaries(runs, one_test_part=bool(test or request.folds))
    split = "official test part" if test else f"{request.folds} folds" if request.folds else "held-out tenth"
    data = {
        "split": split,
        "train": duplicates(examples),
        "test": duplicates(test) if test else None,
        "test_rows_in_train": sum(normal_form(example.text) in trained for example in test) if test else None,
        "rows_by_label": {label: sum(example.label == label for example in examples) for label in labels},
    }
    return Record(
        kind=KIND,
        values=finite({"labels": labels, "data": data, "models": models, "runs": runs}),
        config=finite({**asdict(request), "classifiers": {name: c.settings() for name, c in classifiers.items()}}),
        seeds=list(request.seeds),
        seconds=sum(run["seconds"] for run in runs),
    )
