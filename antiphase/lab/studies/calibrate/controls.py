"""What a gain must be compared with: other heads, other tokens, and the opposite of calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from antiphase.base.randomness import keyed_generator
from antiphase.calibration.apply import calibrated
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.search import Head, by_layer
from antiphase.calibration.variants import Rule, varied

RANDOM_HEADS = 20
"""Draws of as many heads."""
RANDOM_TOKENS = 5
"""Draws of as many tokens in the place of sinks."""


@dataclass(frozen=True)
class Control:
    """A setting that should gain nothing if the choice of heads and sinks matters."""

    setting: str
    heads: list[Head]
    rule: Rule | None = None
    """None: calibration itself."""
    seed: int = 0

    def applied(self, model: PreTrainedModel, alpha: float, beta: float, mode: str) -> AbstractContextManager[None]:
        """The model in this setting."""
        plan = CalibrationPlan(by_layer(self.heads), alpha, beta, mode)
        if self.rule is None:
            return calibrated(model, plan)
        return varied(model, plan, self.rule, seed=self.seed)


def random_heads(kept: Sequence[Head], tried: Sequence[Head], seed: int) -> Iterator[Control]:
    """As many heads of all that were tried, kept ones too.

    If the choice says nothing, the kept heads are one draw more. Where many are kept, draws from the rejected heads
    would all be nearly one set, and vary less than a choice does.
    """
    for draw in range(RANDOM_HEADS):
        generator = keyed_generator(seed, "random heads", draw)
        order = torch.randperm(len(tried), generator=generator).tolist()[: len(kept)]
        yield Control(f"random heads {draw}", sorted(tried[index] for index in order))


def controls_of(kept: Sequence[Head], tried: Sequence[Head], seed: int, mode: str = "prompt") -> Iterator[Control]:
    """All controls of some kept heads.

    The inverse rule and other tokens have no form in mode "running".
    """
    yield from random_heads(kept, tried, seed)
    if mode == "running":
        return
    for draw in range(RANDOM_TOKENS):
        yield Control(f"random tokens {draw}", list(kept), "random-tokens", draw)
    yield Control("first token alone", list(kept), "first-token")
    yield Control("inverse", list(kept), "inverse")
