"""Attention noise by its effect on the answer: irrelevant tokens drawn again or hidden, second maps taken away.

The change of an answer is fair to signed weights, which no share of attention is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.answers import AnswerScores, answer_scores
from antiphase.attention.second_map import Form, second_map
from antiphase.lab.scoring.allocation import ALL_LAYERS
from antiphase.lab.scoring.effects import LAST_MAPS, last_tokens
from antiphase.lab.scoring.likelihood import LOGITS_AT_ONCE, TOKENS_AT_ONCE, logits_after
from antiphase.lab.statistics.intervals import jackknife_interval, mean_interval, paired_interval
from antiphase.lab.text.retrieval import RetrievalBatch

HIDDEN = ("filler", "other_needles")
LEAST_SHARE = 0.1
"""A layer retrieves if hiding the answer in it alone costs this share of what it costs in the most affected layer."""


@torch.no_grad()
def first_answers(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> AnswerScores:
    """Scores of one answer in each sequence: (B,).

    Args:
        input_ids: (B, L) without padding.
        positions: (B, A) of the answer's tokens; -1 after its end.

    Raises:
        NonFiniteError: logits are not finite.
    """
    ids = input_ids[:, : int(positions.max()) + 1]  # a causal model predicts the same without what follows
    tokens = min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    size = max(1, tokens // ids.shape[1])
    found = []
    for start in range(0, len(ids), size):
        own, places = ids[start : start + size], positions[start : start + size]
        rows = torch.arange(len(own))[:, None].expand_as(places).flatten()
        columns = (places - 1).clamp(min=0).flatten()
        device = model.device
        logits = logits_after(model, own.to(device), rows.to(device), columns.to(device))
        targets = own.gather(1, places.clamp(min=0)).where(places >= 0, -1)
        found.append(answer_scores(logits.unflatten(0, places.shape), targets))
    return _joined(found)


def _joined(found: Sequence[AnswerScores]) -> AnswerScores:
    """The scores of several batches as those of one."""
    names = ("log_probability", "log_odds", "is_right")
    return AnswerScores(*(torch.cat([getattr(one, name) for one in found]) for name in names))


# ------------------------------------------------------------------------------------------ drawn again


def resampled(model: PreTrainedModel, copies: Sequence[Tensor], positions: Sequence[Tensor]) -> dict[str, Any]:
    """How much the right answer's log-odds change when a part of its context is drawn again.

    Args:
        copies: for each context (K, L) token ids, which differ in that part.
        positions: for each context (A,) of its answer's tokens.

    Returns:
        ``log_odds``: mean over contexts and copies; ``sd``: root of the mean over contexts of the variance over copies;
        ``ratio`` of the two, None if no copy changes anything; each with a 95 % interval over contexts, Student's for
        the mean and the jackknife's for the others; ``accuracy`` over all copies.
    """
    means, variances, right = [], [], []
    for ids, places in zip(copies, positions, strict=True):
        scores = first_answers(model, ids, places.expand(len(ids), -1))
        odds = scores.log_odds.tolist()
        means.append(statistics.fmean(odds))
        variances.append(statistics.variance(odds))  # exact, so that equal values have none
        right.append(float(scores.is_right.double().mean()))
    pairs = list(zip(means, variances, strict=True))
    ratio = _ratio(pairs)
    return {
        "contexts": len(copies),
        "copies": len(copies[0]),
        "accuracy": statistics.fmean(right),
        "log_odds": {"value": statistics.fmean(means), "interval": _listed(mean_interval(means))},
        "sd": {"value": _spread(pairs), "interval": _listed(jackknife_interval(pairs, _spread))},
        "ratio": {"value": ratio, "interval": _listed(jackknife_interval(pairs, _ratio))}
        if math.isfinite(ratio)
        else None,
    }


def _spread(pairs: Sequence[tuple[float, float]]) -> float:
    return math.sqrt(statistics.fmean(variance for _, variance in pairs))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    spread = _spread(pairs)
    return statistics.fmean(mean for mean, _ in pairs) / spread if spread else math.inf


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


# ------------------------------------------------------------------------------------------ changed attention


def retrieving_layers(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Layers in which hiding the answer alone lowers its log-probability, by the rows of ``allocation_with_effects``.

    The 95 % interval of the change lies below zero, and the change is at least ``LEAST_SHARE`` of the largest.
    Empty if that is so in all layers or in none.
    """
    changes = {
        row["layer"]: row["knockout"]["answer"]
        for row in rows
        if row["map"] in LAST_MAPS and row["layer"] != ALL_LAYERS and row["knockout"]["answer"] is not None
    }
    sure = {
        layer: found["change"] for layer, found in changes.items() if found["interval"] and found["interval"][1] < 0
    }
    found = sorted(layer for layer, change in sure.items() if change <= LEAST_SHARE * min(sure.values()))
    return found if len(found) < len(changes) else []


def hidden(model: PreTrainedModel, batches: Sequence[RetrievalBatch], layers: Sequence[int]) -> list[dict[str, Any]]:
    """What hiding all filler, or all other facts, from the tokens that predict the answer does to it.

    Args:
        layers: the model's numbers of the layers in which they are hidden; then in all layers as well.

    Returns:
        Rows of ``changed``, with ``change`` "hidden", ``part``, and ``layers``, None for all.
    """
    places: list[Collection[int] | None] = [*([layers] if layers else []), None]
    whole: list[AnswerScores] = []
    without: dict[tuple[str, int], list[AnswerScores]] = {}
    for batch in batches:
        last, targets = last_tokens(model, batch)
        whole.append(_copy(last.scores(targets), 0))
        order = [None if own is None else [last.numbers.index(layer) for layer in own] for own in places]
        for part in HIDDEN:
            scores = last.scores(targets, batch.spans[part], order)
            for index in range(len(places)):
                without.setdefault((part, index), []).append(_copy(scores, index))
    return [
        {
            "change": "hidden", "part": part, "layers": None if (own := places[index]) is None else list(own),
            **changed(_joined(whole), _joined(scores)),
        }
        for (part, index), scores in without.items()
    ]  # fmt: skip


def _copy(scores: AnswerScores, index: int) -> AnswerScores:
    """The scores (B,) of one of several copies (K, B)."""
    return AnswerScores(scores.log_probability[index], scores.log_odds[index], scores.is_right[index])


def second_maps(
    model: PreTrainedModel, batches: Sequence[RetrievalBatch], layers: Sequence[int], forms: Sequence[Form]
) -> list[dict[str, Any]]:
    """What removing second maps, or exchanging them with the first ones, does to the answer.

    Args:
        layers: the model's numbers of the layers with second maps: each alone, then all of them.

    Returns:
        Rows of ``changed``, with ``change`` (the form), ``part`` None, and ``layers``, None for all.
    """

    def scores() -> AnswerScores:
        return _joined([first_answers(model, batch.input_ids, batch.answer_positions[:, 0]) for batch in batches])

    whole = scores()
    rows = []
    for form in forms:
        for own in (*([layer] for layer in layers), None):
            with second_map(model, form, layers if own is None else own):
                rows.append({"change": form, "part": None, "layers": own, **changed(whole, scores())})
    return rows


def changed(whole: AnswerScores, other: AnswerScores) -> dict[str, Any]:
    """Accuracy before and after a change of the attention, and the changes of the answer's scores.

    Each change has a 95 % interval over contexts: Bonett and Price's for ``accuracy_change``, otherwise Student's.
    """
    before, after = whole.is_right, other.is_right
    difference, interval = paired_interval(int((after & ~before).sum()), int((before & ~after).sum()), len(before))
    found: dict[str, Any] = {
        "contexts": len(before),
        "accuracy_before": float(before.double().mean()),
        "accuracy": float(after.double().mean()),
        "accuracy_change": {"value": difference, "interval": list(interval)},
    }
    for name in ("log_probability", "log_odds"):
        values = (getattr(other, name) - getattr(whole, name)).tolist()
        found[name] = {"value": statistics.fmean(values), "interval": _listed(mean_interval(values))}
    return found
