"""Variants of calibration, for studying why it works: with other rules for the freed weight, or other keys.

They compute whole maps, so memory is quadratic in length. Source: Yu et al., 2406.15765, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall
from antiphase.attention.forward_pass import ForwardPass
from antiphase.attention.hooks import transformed
from antiphase.attention.selected_maps import ChosenMaps, MapChoice
from antiphase.base.errors import InputError
from antiphase.base.randomness import keyed_generator
from antiphase.calibration.apply import CalibrationRule, CalibrationState, in_cache
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.reference import redistribute

Rule = Literal["proportional", "uniform", "question", "demonstrations", "choices", "inverse", "temperature",
               "random-tokens", "first-token"]  # fmt: skip
RULES = get_args(Rule)
READING: tuple[Rule, ...] = ("question", "demonstrations", "choices", "random-tokens")
"""Rules that depend on tokens."""
Spans = Mapping[tuple[int, ...], Mapping[str, tuple[int, int]]]
"""Named parts of a prompt, by its token ids: first position, and position after the last."""


@contextmanager
def varied(
    model: PreTrainedModel,
    plan: CalibrationPlan,
    rule: Rule,
    *,
    temperature: float = 1.1,
    spans: Spans | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Change the plan's heads by another rule within the block.

    Args:
        rule: ``proportional``: calibration itself. ``uniform``: the freed weight goes to the other keys in equal parts.
            ``question``, ``demonstrations``, ``choices``: it goes to the keys of that part of the prompt, in
            proportion. ``inverse``: weights on other keys are multiplied by β, and the sinks get the freed weight.
            ``temperature``: weights of all keys except the first token are multiplied by ``temperature``, and rows are
            normalized again. ``random-tokens``: as calibration, but with as many randomly drawn keys instead of the
            sinks. ``first-token``: as calibration, but with the first token, which calibration leaves alone, as the
            only sink.
        spans: parts of every prompt, for the rules that name one. Rows without such keys stay unchanged.

    Raises:
        InputError: the rule is unknown, or does not work with the plan's mode.
    """
    if rule not in RULES:
        raise InputError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if plan.mode == "running":
        raise InputError('other rules need the mode "paper" or "prompt"')
    plan.check(model)
    varied_maps = _Varied(plan, rule, temperature, spans or {}, seed)
    with transformed(model, varied_maps, layers=plan.heads, state=CalibrationState, check=varied_maps.check):
        yield


class _Varied:
    def __init__(self, plan: CalibrationPlan, rule: Rule, temperature: float, spans: Spans, seed: int) -> None:
        self.calibration, self.choice = CalibrationRule(plan), MapChoice(plan.heads)
        self.rule, self.temperature, self.spans, self.seed = rule, temperature, spans, seed

    def check(self, forward: ForwardPass) -> None:
        """Check a forward pass before it starts.

        Raises:
            ValueError: mode or rule needs information that is missing for its sequences.
        """
        self.calibration.check(forward)
        if self.rule in READING and not forward.state.is_whole:
            raise ValueError(
                f"the rule {self.rule} must see the complete sequence, but this cache was filled outside of the block"
            )

    def __call__(self, call: AttentionCall) -> Tensor:
        return self.choice.changed(call, lambda maps: self._outputs(call, maps))

    def _outputs(self, call: AttentionCall, maps: ChosenMaps) -> Tensor:
        weights = maps.weights()  # (B, G, R, N, M)
        mass = (weights * maps.real_queries[:, None, None, :, None]).sum(-2)
        found = self.calibration.sinks(call, maps, mass)  # (B, G, R, M)
        return maps.multiply(self._changed(call, maps, weights, found))

    def _changed(self, call: AttentionCall, maps: ChosenMaps, weights: Tensor, found: Tensor) -> Tensor:
        """Maps (B, G, R, N, M) changed by the rule, for sinks (B, G, R, M)."""
        beta = self.calibration.plan.beta
        sinks = found.unsqueeze(-2)
        first = torch.arange(weights.shape[-1], device=weights.device) == maps.first[:, None]  # (B, M)
        if self.rule == "first-token":
            return redistribute(weights, (first[:, None, None] & maps.chosen).unsqueeze(-2), beta=beta)
        if self.rule == "temperature":
            stays = first[:, None, None, None] | ~maps.chosen.unsqueeze(-1)
            factor = torch.ones_like(weights).masked_fill_(~stays, self.temperature)
            scaled = weights * factor
            total = scaled.sum(-1, keepdim=True)
            return torch.where(total > 0, scaled / total.where(total > 0, 1.0), weights)
        if self.rule == "inverse":
            return redistribute(weights, ~sinks & maps.chosen.unsqueeze(-1) & (weights > 0), beta=beta)
        if self.rule == "random-tokens":
            return redistribute(weights, self._drawn(call, maps, found).unsqueeze(-2), beta=beta)
        if self.rule == "proportional":
            return redistribute(weights, sinks, beta=beta)
        receives = (~sinks & (weights > 0)).to(weights.dtype)
        if self.rule != "uniform":
            receives = receives * weights * self._part(call, maps)[:, None, None, None]
        total = receives.sum(-1, keepdim=True)
        freed = (1 - beta) * weights.masked_fill(~sinks, 0.0).sum(-1, keepdim=True)
        moved = torch.where(sinks, beta * weights, weights) + freed * receives / total.where(total > 0, 1.0)
        return torch.where(total > 0, moved, weights)

    def _drawn(self, call: AttentionCall, maps: ChosenMaps, found: Tensor) -> Tensor:
        """As many random keys (B, G, R, M) as there are sinks, drawn from real keys that are not sinks.

        They depend on the sequence and the layer, but not on the rest of the batch. Like sinks, they are those of the
        prompt or, in mode "paper", of each call.
        """
        assert call.forward is not None
        kept = call.forward.state.kept
        if self.calibration.plan.mode == "prompt" and call.forward.past:
            return in_cache(kept["drawn", call.layer], call.forward, maps) & maps.chosen
        order = torch.full(found.shape, 2.0)
        for row, tokens, real in self._sequences(call, maps):
            generator = keyed_generator(self.seed, "random tokens", call.layer, *tokens)
            order[row, ..., real] = torch.rand(*found.shape[1:3], len(tokens), generator=generator)
        order = order.to(found.device)
        position = torch.arange(found.shape[-1], device=found.device)
        allowed = maps.real & (position != maps.first[:, None])  # (B, M)
        order = order.masked_fill(~(allowed[:, None, None] & ~found), 2.0)
        rank = order.argsort(-1).argsort(-1)
        drawn = (rank < found.sum(-1, keepdim=True)) & (order < 2.0)
        kept["drawn", call.layer] = drawn
        return drawn

    def _sequences(self, call: AttentionCall, maps: ChosenMaps) -> Iterator[tuple[int, tuple[int, ...], Tensor]]:
        """For each sequence: its index, the tokens in the cache that are not padding, and their positions (M,)."""
        assert call.forward is not None
        forward, kept = call.forward, call.forward.state.kept
        ids = forward.input_ids
        if ids is None:
            raise InputError(f"the rule {self.rule} needs prompts as token ids")
        if forward.past:
            ids = torch.cat([kept["tokens", call.layer][:, : forward.past], ids], dim=1)
        kept["tokens", call.layer] = ids
        for row, (own, real) in enumerate(zip(in_cache(ids, forward, maps).cpu(), maps.real.cpu(), strict=True)):
            yield row, tuple(own[real].tolist()), real

    def _part(self, call: AttentionCall, maps: ChosenMaps) -> Tensor:
        """Keys (B, M) of the part of the prompt that receives the freed weight."""
        assert call.forward is not None
        kept = call.forward.state.kept
        if not call.forward.past:
            part = torch.zeros(maps.real.shape, dtype=torch.bool)
            for row, prompt, real in self._sequences(call, maps):
                if prompt not in self.spans:
                    raise InputError(
                        f"the rule {self.rule} does not know the parts of this prompt of {len(prompt)} tokens"
                    )
                start, stop = self.spans[prompt].get(self.rule, (0, 0))
                part[row, real.nonzero()[start:stop, 0]] = True
            kept["part", call.layer] = part.to(maps.real.device)
        return in_cache(kept["part", call.layer], call.forward, maps)
