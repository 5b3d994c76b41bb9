"""Search for the heads to calibrate: each is tried alone; the choice is then evaluated on held-out samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.hooks import refuse_encoder_decoder
from antiphase.base.errors import InputError
from antiphase.base.modes import evaluation_mode
from antiphase.calibration.apply import Calibration, calibrated, installed
from antiphase.calibration.changes import Scores, changes_of, gain_interval, mean_of, rounding_of
from antiphase.calibration.head_sensitivity import head_sensitivities
from antiphase.calibration.lower_layers import LowerLayerCache
from antiphase.calibration.plan import CalibrationPlan, fingerprint, heads_by_layer

Score = Callable[[PreTrainedModel, Sequence[Any]], Tensor]
"""Returns one score per sample, higher is better."""
Measured = TypeVar("Measured")
Item = TypeVar("Item")
Head = tuple[int, int]
"""0-based layer and head."""
METHODS = ("exhaustive", "cached", "screen")
SCREENED_SHARE = 0.2
"""Share of the exhaustive search's evaluations that the screen may use; at least one head is always tried."""
SLOPE_COST = 3
"""Cost of the slopes in evaluations: forward passes with and without every head calibrated, and the backward pass."""
NO_SINKS = 1e30
"""An α so large that no key is a sink, so that calibration changes nothing except rounding."""
SCREENED_AT_ONCE = 8
"""Number of samples whose activations are kept for one backward pass."""


@dataclass(frozen=True)
class Split:
    """Samples of each data set, for the search and for the evaluation."""

    search: dict[str, list[Any]]
    held_out: dict[str, list[Any]]
    search_numbers: dict[str, list[int]]
    """0-based index of each sample in its data set."""
    held_out_numbers: dict[str, list[int]]
    left_out: dict[str, int]
    """Number of samples for neither, because they are copies of samples for the search or of each other."""


def split_samples(
    samples: Mapping[str, Sequence[Any]], *, held_out: float, seed: int, key: Callable[[Any], Hashable] | None = None
) -> Split:
    """Split each data set at random; equal seeds give equal splits.

    Args:
        held_out: share of each data set for the evaluation.
        key: what identifies a sample. Samples for the evaluation that have the key of one for the search, in any data
            set, are left out, and so are those with the key of an earlier one in their data set.

    Raises:
        InputError: a data set has fewer than two samples, or only copies would be left for its evaluation.
    """
    found = Split({}, {}, {}, {}, {})
    for index, (name, given) in enumerate(samples.items()):
        if len(given) < 2:
            raise InputError(f"data set {name} has {len(given)} samples", "a search needs at least two")
        generator = torch.Generator().manual_seed(seed + index)
        order = torch.randperm(len(given), generator=generator).tolist()
        count = min(len(given) - 1, max(1, round(held_out * len(given))))
        found.held_out_numbers[name], found.search_numbers[name] = order[:count], order[count:]
        found.search[name] = [given[i] for i in order[count:]]
    known = set() if key is None else {key(sample) for some in found.search.values() for sample in some}
    for name, given in samples.items():
        numbers = found.held_out_numbers[name]
        keys = None if key is None else [key(sample) for sample in given]
        kept = numbers if keys is None else unlike(numbers, known, keys.__getitem__)
        if not kept:
            raise InputError(f"data set {name} has no sample to evaluate by that is no copy of one that chooses heads")
        found.held_out_numbers[name], found.left_out[name] = kept, len(numbers) - len(kept)
        found.held_out[name] = [given[number] for number in kept]
    return found


def unlike(items: Iterable[Item], known: Iterable[Hashable], key: Callable[[Item], Hashable]) -> list[Item]:
    """The first item with each key, but for keys that are known."""
    by_key: dict[Hashable, Item] = {}
    for item in items:
        by_key.setdefault(key(item), item)
    barred = set(known)
    return [item for found, item in by_key.items() if found not in barred]


def scores_of(
    model: PreTrainedModel,
    score: Score,
    samples: Mapping[str, Sequence[Any]],
    numbers: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Scores by data set, float64. ``numbers``: indices of the samples for messages; None means from 0.

    Raises:
        ValueError: a score is not finite; the message names the sample.
    """
    found = {}
    for name, given in samples.items():
        with torch.no_grad(), evaluation_mode(model):
            values = torch.as_tensor(score(model, given), dtype=torch.float64).detach().cpu()
        if values.shape != (len(given),):
            raise ValueError(
                f"the score must return one number per sample, {len(given)}, got shape {tuple(values.shape)}"
            )
        bad = (~values.isfinite()).nonzero()[:, 0]
        if len(bad):
            place = int(bad[0])
            number = place if numbers is None else numbers[name][place]
            raise ValueError(f"the score of sample {number} of {name} (from 0) is {values[place].item()}")
        found[name] = values
    return found


@dataclass(frozen=True)
class HeadResult:
    """The effect of calibrating one head alone on the scores of the search's samples."""

    layer: int
    head: int
    change: float
    """Change of the mean over data sets."""
    improved: int
    """Samples whose score rose."""
    worsened: int
    """Samples whose score fell."""


def each_alone(
    model: PreTrainedModel,
    heads: Sequence[Head],
    rule: Mapping[str, Any],
    measure: Callable[[], Measured],
    *,
    shares_lower: bool,
) -> Iterator[tuple[Head, Measured | None]]:
    """What ``measure`` returns with each (layer, head) calibrated alone, in order; None where no key was a sink.

    Args:
        rule: α, β and mode of a ``CalibrationPlan``.
        shares_lower: whether ``measure`` runs the layers below a head only once; it must then use the same inputs every
            time.
    """
    lower = LowerLayerCache(model) if shares_lower else None
    for layer, of_layer in itertools.groupby(heads, key=lambda head: head[0]):
        if lower is not None and layer:
            with lower.record(layer):
                measure()
        for head in of_layer:
            calibration = Calibration(CalibrationPlan({layer: [head[1]]}, **rule))
            with nullcontext() if lower is None else lower.skipped(), installed(model, calibration):
                found = measure()
            yield head, found if calibration.rule.found_sinks else None


def search_calibration(
    model: PreTrainedModel,
    score: Score,
    samples: Mapping[str, Sequence[Any]] | Sequence[Any],
    *,
    alpha: float = 5.0,
    beta: float = 0.4,
    mode: str = "prompt",
    method: str = "exhaustive",
    layers: Sequence[int] | None = None,
    surrogate: Score | None = None,
    held_out: float = 0.5,
    seed: int = 0,
    key: Callable[[Any], Hashable] | None = None,
    known: Sequence[HeadResult] = (),
    report: Callable[[HeadResult, int], None] = lambda result, count: None,
) -> CalibrationPlan:
    """Find the heads whose calibration alone raises the score, and evaluate them together on held-out samples.

    Example:
        >>> def score(model, samples):  # log-likelihood of each text
        ...     return torch.stack([-model(ids, labels=ids).loss for ids in samples])
        >>> plan = antiphase.search_calibration(model, score, texts, method="screen")

    Args:
        score: takes (model, samples) and returns (len(samples),), higher is better.
        samples: samples for ``score``; several data sets, given by name, have equal weight.
        method: "exhaustive" tries every head; "cached" does the same but runs the layers below a head only once;
            "screen" takes the derivative of the score with respect to a gate on each head and tries the most promising
            ones, with at most a fifth of the evaluations (but at least one head).
        layers: 0-based layers to search; None means all (2406.15765 uses 2 to L - 2).
        surrogate: a differentiable score for the screen; None means ``score`` itself.
        held_out: share of each data set on which the choice is evaluated.
        key: what identifies a sample; the choice is not evaluated on copies of samples that made it. None: there are no
            copies.
        known: results of an earlier, interrupted search with the same arguments, which are not measured again.
        report: called with each new result and the total number of results.

    Returns:
        A plan with the kept heads. Its ``scores`` hold the results by head, the held-out score before and after, the
        interval of the gain, the indices of the search samples (``search_samples``), the number of copies left out
        (``left_out``), and ``rounding``: smaller changes of a sample's score count as none.

    Raises:
        InputError: the method or a layer is unknown, or there are too few samples.
        ValueError: a score is not finite, or the method does not support it.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    searched = range(model.config.get_text_config().num_hidden_layers) if layers is None else sorted(set(layers))
    rule: dict[str, Any] = {"alpha": alpha, "beta": beta, "mode": mode}
    refuse_encoder_decoder(model)
    maps_of = heads_by_layer(model)
    every = CalibrationPlan({layer: range(maps_of.get(layer, 1)) for layer in searched}, **rule)
    every.check(model)
    named = dict(samples) if isinstance(samples, Mapping) else {"samples": samples}
    split = split_samples(named, held_out=held_out, seed=seed, key=key)

    heads = [(layer, head) for layer, maps in every.heads.items() for head in maps]
    slopes: dict[Head, float] = {}
    if method == "screen":
        slopes = slopes_of(model, every, surrogate or score, split.search)
        heads = screened_heads(slopes)
    measure = partial(scores_of, model, score, split.search, split.search_numbers)
    base = measure()
    with calibrated(model, replace(every, alpha=NO_SINKS)):
        rounding = rounding_of(base, measure())
    results = {(result.layer, result.head): result for result in known}
    left = [head for head in heads if head not in results]
    for head, scores in each_alone(model, left, rule, measure, shares_lower=method == "cached"):
        results[head] = _result(head, base if scores is None else scores, base, rounding)
        report(results[head], len(heads))
    plan = CalibrationPlan(by_layer([head for head in heads if results[head].change > 0]), **rule)
    return replace(
        plan, fingerprint=fingerprint(model),
        scores={
            "method": method, "seed": seed,
            "evaluations": len(heads) + (SLOPE_COST if slopes else 0),
            "exhaustive_evaluations": sum(map(len, every.heads.values())),
            "samples": {name: len(given) for name, given in named.items()},
            "search_samples": split.search_numbers, "left_out": split.left_out, "rounding": rounding,
            "search_before": mean_of(base),
            **_judged(model, plan, score, split, rounding=rounding, seed=seed),
            "heads": {
                f"{layer}.{head}": {
                    "change": found.change, "improved": found.improved, "worsened": found.worsened,
                    **({"slope": slopes[layer, head]} if slopes else {}),
                }
                for (layer, head), found in sorted(results.items()) if (layer, head) in set(heads)
            },
            **({"slopes": {f"{layer}.{head}": slope for (layer, head), slope in slopes.items()}} if slopes else {}),
        },
    )  # fmt: skip


def _result(head: Head, scores: Scores, base: Scores, rounding: float) -> HeadResult:
    """``scores`` are ``base`` where no key was a sink: nothing was calibrated then, and any difference is rounding."""
    changes = changes_of(scores, base, rounding=rounding)
    flat = torch.cat(list(changes.values()))
    return HeadResult(*head, mean_of(changes), int((flat > 0).sum()), int((flat < 0).sum()))


def _judged(
    model: PreTrainedModel, plan: CalibrationPlan, score: Score, split: Split, *, rounding: float, seed: int
) -> dict[str, Any]:
    """The score on the held-out samples, without and with the plan."""
    before = scores_of(model, score, split.held_out, split.held_out_numbers)
    with calibrated(model, plan):
        after = scores_of(model, score, split.held_out, split.held_out_numbers)
    gain = changes_of(after, before, rounding=rounding)
    return {
        "held_out_before": mean_of(before), "held_out_after": mean_of(after),
        "held_out_gain": mean_of(gain), "held_out_gain_interval": list(gain_interval(gain, seed=seed)),
    }  # fmt: skip


def by_layer(heads: Sequence[Head]) -> dict[int, list[int]]:
    """Heads by layer, from (layer, head) pairs."""
    found: dict[int, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found


def screened_heads(slopes: Mapping[Head, float]) -> list[Head]:
    """The most promising heads, as many as ``SCREENED_SHARE`` of an exhaustive search's evaluations allows."""
    count = max(1, int(SCREENED_SHARE * len(slopes)) - SLOPE_COST)
    return sorted(sorted(slopes, key=lambda head: -slopes[head])[:count])


def slopes_of(
    model: PreTrainedModel, every: CalibrationPlan, score: Score, samples: Mapping[str, Sequence[Any]]
) -> dict[Head, float]:
    """Derivative of the score with respect to a gate on each of the plan's heads, by (layer, head).

    The mean over data sets of the derivative of each data set's mean score.
    """
    total: dict[Head, float] = {}
    for given in samples.values():
        for start in range(0, len(given), SCREENED_AT_ONCE):
            some = given[start : start + SCREENED_AT_ONCE]
            with evaluation_mode(model):
                slopes = head_sensitivities(model, every, score, some)
            for head, slope in slopes.items():
                total[head] = total.get(head, 0.0) + slope * len(some) / len(given) / len(samples)
    return total
