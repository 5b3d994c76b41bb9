"""Accuracy against dependency length: ``antiphase study dependency``.

Every model learns to predict the number of a verb whose subject is several words earlier, across clauses
(``data/agreement.py``), from sentences with many distances. It is tested on some of these, and on others between and
beyond them. Many distances are used because with few, a network can learn to count back words without regard to
clauses. The held-out distances between them are the stricter test: no noun at that distance from the cut was the
subject in training, so a network that learned positions instead of clauses ignores it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.folders.journal import journal_in
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record
from antiphase.base.typed import build
from antiphase.lab.lineage.classifiers import Classifier, chosen_classifiers
from antiphase.lab.lineage.data.agreement import LABELS, AgreementSentence, agreement_pairs, words
from antiphase.lab.lineage.data.text_batches import EncodedTexts, encode
from antiphase.lab.lineage.data.vocabularies import train_words
from antiphase.lab.lineage.models.configs import VanillaConfig
from antiphase.lab.lineage.one_width import one_width_classifiers
from antiphase.lab.lineage.scoring.agreement import GUESS_RATE, agreement_scores, shortcut_scores
from antiphase.lab.lineage.scoring.classification import class_probabilities, development_scores
from antiphase.lab.lineage.studies.dependency import (
    DEVELOPMENT,
    Dependency,
    DependencyRun,
    DependencySettings,
    DistanceMean,
    DistanceScore,
    Mean,
    Score,
    ShortcutScore,
)
from antiphase.lab.lineage.training.classifier import train_classifier
from antiphase.lab.measures.inputs import inputs_of
from antiphase.lab.measures.parts import Parts
from antiphase.lab.pages.tables import present
from antiphase.lab.statistics.intervals import share_interval, wilson_interval
from antiphase.lab.studies.outcomes import LearnedThreshold
from antiphase.lab.training.device import choose_device


@dataclass(frozen=True)
class _Part:
    """Sentences, their tokens and their true labels."""

    sentences: list[AgreementSentence]
    texts: EncodedTexts
    targets: Tensor


def dependency(
    request: DependencySettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """Train every model with every seed and test it at every distance; write ``record.json`` in ``output``.

    All models of a seed are trained on the same sentences; the test sentences are the same for all seeds. A model with
    a seed is a part of the work, and ``resume`` continues after the last part that was finished.

    Raises:
        InputError: the settings cannot be used, or the folder has other contents.
    """
    request.check()
    models = chosen_models(request)
    settings = {name: one.settings() for name, one in models.items()}
    started = time.perf_counter()
    device = choose_device(request.device)
    with journal_in(output, lambda: inputs_of(request, {"the classifiers": settings}), resume=resume) as journal:
        if journal.record is not None:
            return journal.record
        tokenizer = train_words([" ".join(words())], len(words()) + 2)
        for model in models.values():  # errors are raised before anything is trained
            model.build(tokenizer, LABELS, seed=0)
        test = part_of(request, tokenizer, request.distances, request.test_samples, "test")
        journal.begin()
        parts = Parts(journal=journal)
        rows: list[DistanceScore] = []
        runs: list[DependencyRun] = []
        count = len(models) * len(request.seeds)
        for seed in request.seeds:
            each = request.samples // len(request.trained)
            train = part_of(request, tokenizer, request.trained, each, seed, "train")
            development = part_of(request, tokenizer, request.trained, each // DEVELOPMENT, seed, "development")
            for name, classifier in models.items():
                share = partial(_share, report, len(runs), count)
                work = partial(_trained, name, classifier, tokenizer, train, development, test, seed, device, share)
                found = parts.stored(name, seed, compute=work)
                runs.append(build(DependencyRun, found["run"]))
                rows += [build(DistanceScore, row) for row in found["rows"]]
                report(len(runs), count)
                say(_sentence(runs[-1], rows[-len(request.distances) :], request.trained))
        shortcuts = [ShortcutScore(**row) for row in shortcut_scores(test.sentences)]
        result = Dependency(
            guess_rate=GUESS_RATE, trained_distances=request.trained, models=list(models),
            summary=summarized(rows, request.trained, shortcuts), rows=rows, runs=runs, shortcuts=shortcuts,
        )  # fmt: skip
        return result.save(output, request, seconds=time.perf_counter() - started, classifiers=settings)


RULED = {"epochs": "the number that --epochs gives", "patience": "not used: every epoch is trained"}
"""Settings that --set cannot change, and what decides them."""


def chosen_models(request: DependencySettings) -> dict[str, Classifier]:
    """The selected models, without early stopping, and with positions for every sentence."""
    longest = max(*request.trained, *request.distances) + 8 * (request.depth + 1)  # opening and earlier subjects
    found = {}
    for name, one in chosen_classifiers(
        request.models, request.settings, known=one_width_classifiers(), flag="--models", ruled=RULED
    ).items():
        sizes = dict(one.sizes)
        if one.config is VanillaConfig:
            sizes["max_position_embeddings"] = max(longest, sizes.get("max_position_embeddings", 0))
        training = replace(one.training, epochs=request.epochs, patience=request.epochs)
        found[name] = replace(one, training=training, sizes=sizes)
    return found


def part_of(
    request: DependencySettings, tokenizer: PreTrainedTokenizerBase, distances: Sequence[int], each: int, *key: object
) -> _Part:
    """``each`` sentences of every distance, in pairs."""
    found = [
        sentence
        for distance in distances
        for sentence in agreement_pairs(
            max(1, each // 2), distance, keyed_generator("agreement", *key, distance), depth=request.depth
        )
    ]
    targets = torch.tensor([int(sentence.plural) for sentence in found])
    return _Part(found, encode(tokenizer, [sentence.text for sentence in found]), targets)


def _share(report: Callable[[float, int], None], begun: int, count: int, done: int, most: int) -> None:
    report(begun + done / most, count)


def _trained(
    name: str,
    classifier: Classifier,
    tokenizer: PreTrainedTokenizerBase,
    train: _Part,
    development: _Part,
    test: _Part,
    seed: int,
    device: torch.device,
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """A model's ``run``, and the ``rows`` of its scores before and after it."""
    model = classifier.build(tokenizer, LABELS, seed=seed).to(device)
    before = _tested(model, test, model_name=name, seed=seed, trained=False)
    started = time.perf_counter()
    curve = train_classifier(
        model, classifier.training, train.texts, train.targets, seed=seed, report=report,
        evaluate=partial(development_scores, texts=development.texts, targets=development.targets),
    )  # fmt: skip
    best = next(point for point in curve if point.best)
    run = DependencyRun(
        model=name, seed=seed, parameters=model.num_parameters(), development_accuracy=best.accuracy,
        best_epoch=best.epoch, curve=curve, seconds=time.perf_counter() - started,
    )  # fmt: skip
    return {"run": run, "rows": [*before, *_tested(model, test, model_name=name, seed=seed, trained=True)]}


def _tested(model: PreTrainedModel, test: _Part, *, model_name: str, seed: int, trained: bool) -> list[DistanceScore]:
    plural = class_probabilities(model, test.texts).argmax(1) == 1
    return [
        DistanceScore(model=model_name, seed=seed, trained=trained, **{**row, "misled": Score(**row["misled"])})
        for row in agreement_scores(plural.tolist(), test.sentences)
    ]


def _sentence(run: DependencyRun, rows: Sequence[DistanceScore], trained: Sequence[int]) -> str:
    by_part = {
        words: present(row.accuracy for row in rows if (row.distance in trained) == is_known)
        for words, is_known in (("at trained lengths", True), ("at others", False))
    }
    parts = [f"{100 * sum(found) / len(found):.1f} % {words}" for words, found in by_part.items() if found]
    return f"{run.model}, seed {run.seed}: {', '.join(parts)} ({run.seconds:.0f} s)"


def summarized(
    rows: Sequence[DistanceScore], trained: Sequence[int], shortcuts: Sequence[ShortcutScore] = ()
) -> list[DistanceMean]:
    """One row per model (before and after training) and distance: means over seeds.

    Intervals are over seeds; with one seed, Wilson's over sentences. If some
    seeds learned and others did not, ``learned`` counts them and there is no interval. A seed has learned if it is
    more than half of the way from the best shortcut, or from a guess, to 100 %.
    """
    floors: dict[tuple[int, bool], float] = {}
    for one in shortcuts:
        for is_misled, accuracy in ((False, one.accuracy), (True, one.misled or 0.0)):
            key = one.distance, is_misled
            floors[key] = max(floors.get(key, GUESS_RATE), accuracy)
    groups: dict[tuple[str, bool, int], list[DistanceScore]] = {}
    for row in rows:
        groups.setdefault((row.model, row.trained, row.distance), []).append(row)
    return [
        DistanceMean(
            model=name, trained=is_trained, distance=distance, held_out=distance not in trained, seeds=len(members),
            **vars(_mean(members, floors.get((distance, False), GUESS_RATE))),
            misled=_mean([row.misled for row in members], floors.get((distance, True), GUESS_RATE)),
            interval_is="over seeds" if len(members) > 1 else "Wilson over sentences",
        )
        for (name, is_trained, distance), members in groups.items()
    ]  # fmt: skip


def _mean(scores: Sequence[Score], floor: float) -> Mean:
    accuracies = present(score.accuracy for score in scores)
    mean = sum(accuracies) / len(accuracies) if accuracies else None
    if len(scores) == 1:
        return Mean(accuracy=mean, interval=list(wilson_interval(scores[0].correct, scores[0].samples)))
    counts = LearnedThreshold.of(floor).counts({"": accuracies})
    interval = list(share_interval(accuracies, scores[0].samples)) if accuracies and counts is None else None
    return Mean(accuracy=mean, interval=interval, learned=None if counts is None else list(counts[""]))
