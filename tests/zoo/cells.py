"""What must hold of every architecture: each property is a cell, equal, refused by name, or wrong."""

import re
import traceback
from dataclasses import dataclass
from functools import cached_property
from unittest.mock import patch

import torch

import antiphase
from antiphase.attention.hooks import is_encoder_decoder, observed
from antiphase.attention.maps import attention_maps
from antiphase.attention.statistics import attention_statistics
from antiphase.calibration.plan import CalibrationPlan
from antiphase.lab.measures.long_context.measure import losses_by_position
from antiphase.lab.scoring import likelihood
from antiphase.lab.scoring.likelihood import generated_tokens, score_options
from zoo.architectures import TEXT, built, texts

BOUNDS = {torch.float32: 1e-3, torch.float64: 1e-5}
"""Largest difference that counts as equal, as a share of the largest value. Models keep parts, such as RoPE, in fp32
whatever they are in; what is wrong differs by 1e-2 and more.
"""
CHUNK = 5
MOST_WORDS = 300
PACKAGE = antiphase.__file__.rpartition("/")[0]


@dataclass
class Subject:
    """One architecture in one number format."""

    family: str
    name: str
    dtype: torch.dtype

    def model(self, implementation):
        return built(self.family, self.name, implementation, self.dtype)

    @cached_property
    def eager(self):
        return self.model("eager")

    @cached_property
    def own(self):
        """The same weights with the implementation that transformers chooses, as the commands load a model."""
        return self.model(None)

    @cached_property
    def fast(self):
        """The same weights with the project's attention."""
        return self.model("antiphase")

    @cached_property
    def is_pair(self):
        """Some that transformers lists as such read sound with one part and text with the other, which is a decoder."""
        return is_encoder_decoder(self.eager)

    def logits(self, model, ids, mask=None):
        """(B, N, words); of a pair, both parts read the text."""
        further = {} if mask is None else {"attention_mask": mask}
        if self.is_pair:
            further["decoder_input_ids"] = ids
            if mask is not None:
                further["decoder_attention_mask"] = mask
        return model(input_ids=ids, **further).logits


def difference(found, expected) -> float:
    """The largest difference, as a share of the largest expected value; infinite if one of them is not a number."""
    gap = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-9)
    return float(gap) if gap.isfinite() else float("inf")


# ------------------------------------------------------------------------------------------ the cells


def attention(of):
    """Logits under antiphase are those under eager: whole texts, and texts with padding on either side."""
    ids = texts(2)
    found = [difference(of.logits(of.fast, ids), of.logits(of.eager, ids))]
    for hidden in (slice(0, 7), slice(-7, None)):
        mask = torch.ones_like(ids)
        mask[1, hidden] = 0
        real = mask.bool()
        found.append(difference(of.logits(of.fast, ids, mask)[real], of.logits(of.own, ids, mask)[real]))
    return max(found)


def no_leak(of):
    """Another last token moves no earlier logit by more than it does under eager."""
    ids = texts(2)
    other = ids.clone()
    other[:, -1] = TEXT[0] + (ids[:, -1] - TEXT[0] + 1) % (TEXT[1] - TEXT[0])
    moved = []
    for model in (of.eager, of.fast):
        before, after = of.logits(model, ids), of.logits(model, other)
        moved.append(difference(after[:, :-1], before[:, :-1]))
    return max(0.0, moved[1] - moved[0])


def chunks(of):
    """Losses of a text, and tokens generated from it, are those of the whole text when it is read in parts."""
    ids = texts(2)
    expected = brute_losses(of, ids)
    found = [difference(losses_by_position(of.own, ids, chunk=CHUNK), expected)]
    prompt = ids[0].tolist()
    with patch.object(likelihood, "CHUNK", CHUNK):
        found.append(untrue(of, [prompt]))
    return max(found)


def padding(of):
    """Texts of unequal lengths are scored and continued together as each alone."""
    rows = [row[:length].tolist() for row, length in zip(texts(3), (20, 9, 14), strict=True)]
    options = [[[21, 33], [40]]] * 3
    together = score_options(of.own, rows, options)
    expected = torch.stack([brute_score(of, row, each) for row, each in zip(rows, options, strict=True)])
    found = torch.stack([one.log_likelihood for one in together])
    return max(difference(found, expected), untrue(of, rows))


def options(of):
    """Log-likelihoods of options of one prompt are those of plain passes over prompt and option."""
    prompt, given = texts(1)[0].tolist(), [[21, 33, 27], [40], [21, 22]]
    (found,) = score_options(of.own, [prompt], [given])
    return difference(found.log_likelihood, brute_score(of, prompt, given))


def statistics(of):
    """Weight received and entropy are those of the maps that eager attention returns."""
    ids = texts(2)
    if of.is_pair:
        return maps_of_pair(of, ids[:1])
    found = attention_statistics(of.own, input_ids=ids)
    maps = eager_maps(of.eager, ids)
    if len(found.layers) != len(maps):
        raise AssertionError(f"{len(found.layers)} layers measured, {len(maps)} returned weights")
    gaps = []
    for layer, weights in enumerate(maps):
        seen = (weights > 0).any(1, keepdim=True).sum(-2)  # in any map: a small weight may be rounded to 0
        received = (weights.sum(-2) / seen).nan_to_num()  # keys that no query sees
        gaps.append(difference(found.received[layer].nan_to_num(), received))
        gaps.append(difference(found.entropy[layer], torch.special.entr(weights).sum(-1).mean(-1)))
    return max(gaps)


def calibration(of):
    """Calibration that finds no sink changes nothing."""
    ids = texts(2)
    plain, seen = of.logits(of.own, ids), {}
    with observed(of.own, lambda call, heads, weights: seen.setdefault(call.layer, call.maps)):
        of.logits(of.own, ids)
    plan = CalibrationPlan({layer: list(range(maps)) for layer, maps in seen.items()}, alpha=1e30)
    with antiphase.calibrated(of.own, plan):
        return difference(of.logits(of.own, ids), plain)


CELLS = {
    "causal": (attention, no_leak, padding, chunks, options, statistics, calibration),
    "encoder": (attention, statistics, calibration),
    "encoder-decoder": (attention, no_leak, statistics, calibration),
}


# ------------------------------------------------------------------------------------------ by hand


def plain(of, ids):
    """Logits (B, N, words) of whole texts by one pass without a cache, with which xLSTM computes something else."""
    return of.own(input_ids=ids, use_cache=False).logits.double()


def brute_losses(of, ids):
    """-log p (B, N - 1) by one plain pass."""
    logs = plain(of, ids).log_softmax(-1)
    return -logs[:, :-1].gather(2, ids[:, 1:, None])[..., 0]


def brute_score(of, prompt, given):
    """Log p of each option by a plain pass over all but its last token, after which nothing is predicted.

    Where attention goes to a choice of the tokens, their number counts, those that follow included.
    """
    found = []
    for option in given:
        logs = plain(of, torch.tensor([prompt + option[:-1]]))[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(option) - 1)
        found.append(sum(logs[place, token] for place, token in zip(places, option, strict=True)))
    return torch.stack(found)


def untrue(of, prompts, *, longest=3) -> float:
    """How far below the best a generated token's logit is, of plain passes, as a share of the largest logit."""
    worst = 0.0
    for prompt, written in zip(prompts, generated_tokens(of.own, prompts, longest=longest), strict=True):
        for count, token in enumerate(written):
            logits = plain(of, torch.tensor([prompt + written[:count]]))[0, -1]
            worst = max(worst, float((logits.max() - logits[token]) / logits.abs().max()))
    return worst


def eager_maps(model, ids):
    """The softmax maps (B, maps, N, N) of every layer that has some; linear attention may return weights too.

    With sink logits (gpt-oss), rows sum to less than 1.
    """
    given = model(input_ids=ids, output_attentions=True).attentions
    maps = [weights.double() for weights in given or () if weights is not None and weights.dim() == 4]
    return [weights for weights in maps if bool((weights >= 0).all() and (weights.sum(-1) < 1 + 1e-3).all())]


def maps_of_pair(of, ids):
    """The maps that ``look`` shows are those that eager attention returns."""
    given = of.eager(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    by_part = {part: given[f"{part}_attentions"] for part in ("encoder", "decoder", "cross")}
    found = attention_maps(of.own, ids, ids)
    gaps = []
    for part, expected in by_part.items():
        here = [one.maps[:, 0] for one in found if one.part == part]
        gaps += [difference(one, weights[0]) for one, weights in zip(here, expected, strict=True)]
    return max(gaps)


# ------------------------------------------------------------------------------------------ judging


@torch.no_grad()
def judged(of, cell) -> dict:
    """The state of a cell and what it rests on.

    "equal" and "wrong" come with the difference, "refused" with the sentence, in which … stands for the model's names;
    "unnamed" is a refusal that does not say which model it is about, and "crash" any other error.
    """
    try:
        gap = cell(of)
    except Exception as error:  # noqa: BLE001  # whatever a model raises is a result
        words = " ".join(str(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        if not isinstance(error, ValueError) or not frames[-1].filename.startswith(PACKAGE):
            place = f"{frames[-1].filename.rpartition('site-packages/')[2]}:{frames[-1].lineno}"
            place = place.replace(f"{PACKAGE.rpartition('/')[0]}/", "")
            return {"state": "crash", "why": f"{type(error).__name__} at {place}: {words}"[:MOST_WORDS]}
        named = names_of(of).sub("…", words)
        return {"state": "unnamed" if named == words else "refused", "why": named[:MOST_WORDS]}
    return {"state": "equal" if gap <= BOUNDS[of.dtype] else "wrong", "difference": gap}


def names_of(of):
    """Finds the model's type, its class and the classes of its layers in a sentence."""
    modules = {
        type(module).__name__ for module in of.eager.modules() if not type(module).__module__.startswith("torch")
    }
    config = of.eager.config
    kinds = {of.name, config.model_type, config.get_text_config(decoder=True).model_type}
    names = sorted(kinds | modules, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")


def row(family, name) -> dict:
    """All cells of an architecture: {"family", "name", "cells": {cell: {number format: {"state", ...}}}}.

    If transformers cannot build or run a model at all, each of its cells is "unbuilt".
    """
    found: dict = {}
    for dtype in BOUNDS:
        of, unbuilt = Subject(family, name, dtype), None
        try:
            with torch.no_grad():
                of.logits(of.eager, texts(2))
        except Exception as error:  # noqa: BLE001  # whatever a model raises is a result
            unbuilt = {
                "state": "unbuilt",
                "why": f"{type(error).__name__}: {' '.join(str(error).split())}"[:MOST_WORDS],
            }
        for cell in CELLS[family if unbuilt or family != "encoder-decoder" or of.is_pair else "causal"]:
            kept = found.setdefault(cell.__name__, {})
            kept[str(dtype).removeprefix("torch.")] = unbuilt or judged(of, cell)
    return {"family": family, "name": name, "cells": found}
