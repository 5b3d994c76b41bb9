"""Scores of samples, one number each: the reported metric, and a smooth, differentiable one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.lab.scoring.likelihood import OptionScores, generated_tokens, score_options
from antiphase.lab.text.tasks.answers import exact_match, f1
from antiphase.lab.text.tasks.samples import Sample


def score_samples(model: PreTrainedModel, samples: Sequence[Sample], *, stepwise: bool = False) -> Tensor:
    """Each sample's own metric, 0 to 1: (samples,) float64 on the CPU; NaN if logits are NaN.

    ``stepwise``, here and below: as in ``score_options``.

    Raises:
        NonFiniteError: logits are NaN while an open answer is written.
    """
    with torch.no_grad():
        found = _scored(model, [sample for sample in samples if not sample.answers], stepwise)
    return _metrics(model, samples, found)


def log_probabilities(model: PreTrainedModel, samples: Sequence[Sample], *, stepwise: bool = False) -> Tensor:
    """Log-probability of the correct option, or of the correct answer per token: (samples,), differentiable."""
    return _log_probabilities(samples, _scored(model, samples, stepwise))


@dataclass(frozen=True)
class SampleScores:
    """All that is known about a model's answers to some samples, on the CPU."""

    metric: Tensor
    """(samples,) float64, as ``score_samples`` gives it."""
    log_probability: Tensor
    """(samples,) float64, as ``log_probabilities`` gives it."""
    options: list[Tensor]
    """Of each sample (options,) float64: log-likelihoods, divided by the options' lengths where the task does so."""


@torch.no_grad()
def all_scores(model: PreTrainedModel, samples: Sequence[Sample], *, stepwise: bool = False) -> SampleScores:
    """``score_samples`` and ``log_probabilities``, with shared work done once."""
    found = _scored(model, samples, stepwise)
    chosen = [scores for sample, scores in zip(samples, found, strict=True) if not sample.answers]
    return SampleScores(
        _metrics(model, samples, chosen), _log_probabilities(samples, found).double(),
        [(scored.log_likelihood / torch.tensor(sample.lengths)).double()
         for sample, scored in zip(samples, found, strict=True)],
    )  # fmt: skip


def _metrics(model: PreTrainedModel, samples: Sequence[Sample], found: Sequence[OptionScores]) -> Tensor:
    """``found``: scores of the samples with options."""
    scores = torch.zeros(len(samples), dtype=torch.float64)
    chosen = [index for index, sample in enumerate(samples) if not sample.answers]
    written = [index for index, sample in enumerate(samples) if sample.answers]
    for index, options in zip(chosen, found, strict=True):
        scores[index] = _option_score(samples[index], options)
    if written:
        some = [samples[index] for index in written]
        longest, stop = max(sample.longest for sample in some), some[0].stop
        continued = generated_tokens(
            model, [sample.prompt for sample in some], longest=longest, stop=stop, numbers=written
        )
        for index, tokens in zip(written, continued, strict=True):
            sample = samples[index]
            metric = exact_match if sample.metric == "exact_match" else f1
            scores[index] = metric(sample.decode(tokens[: sample.longest], skip_special_tokens=True), sample.answers)
    return scores


def _log_probabilities(samples: Sequence[Sample], found: Sequence[OptionScores]) -> Tensor:
    values = []
    for sample, scored in zip(samples, found, strict=True):
        if len(sample.options) > 1:
            shares = (scored.log_likelihood / torch.tensor(sample.lengths)).log_softmax(0)
            values.append(shares[sample.target])
        else:
            values.append(scored.log_likelihood[0] / len(sample.options[0]))
    return torch.stack(values)


def probabilities(model: PreTrainedModel, samples: Sequence[Sample], *, stepwise: bool = False) -> Tensor:
    """``log_probabilities`` as probabilities, 0 to 1, which are less noisy than accuracies of few samples."""
    return log_probabilities(model, samples, stepwise=stepwise).exp()


def _scored(model: PreTrainedModel, samples: Sequence[Sample], stepwise: bool) -> list[OptionScores]:
    prompts, options = [sample.prompt for sample in samples], [sample.options for sample in samples]
    return score_options(model, prompts, options, stepwise=stepwise)


def _option_score(sample: Sample, found: OptionScores) -> float:
    if not bool(found.log_likelihood.isfinite().all()):
        return torch.nan
    if sample.metric == "greedy":
        return float(found.is_greedy[sample.target])
    best = (found.log_likelihood / torch.tensor(sample.lengths)).argmax()
    return float(int(best) == sample.target)
