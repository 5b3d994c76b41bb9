"""λ of differential attention: the schedule by depth, parametrizations, and initial values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from antiphase.base.errors import InputError, nearest

LAMBDA_STD = 0.1
"""Standard deviation of the initial λ vectors (2410.05258, section 2.1)."""


def lambda_init(layer_idx: int | None) -> float:
    """λinit = 0.8 - 0.6·exp(-0.3·(l - 1)) for the 1-based layer l; ``layer_idx`` is 0-based (2410.05258, 2.1).

    None, a layer that does not know its depth, has 0.8, which served every layer nearly as well in the paper (table 6:
    a loss of 3.065 instead of 3.062).
    """
    return 0.8 if layer_idx is None else 0.8 - 0.6 * math.exp(-0.3 * layer_idx)


def check_one_of(name: str, given: Any, known: Sequence[str]) -> None:
    """
    Raises:
        InputError: a given form is not one of those known; the message names the argument.
    """
    if given is not None and given not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {given!r}{nearest(str(given), known)}")


def check_even_maps(maps: int, name: str = "num_attention_heads") -> None:
    """
    Raises:
        InputError: the number of maps is odd.
    """
    if maps % 2:
        raise InputError(f"{name} must be even for differential attention (two maps a head), got {maps}")
