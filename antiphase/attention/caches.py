"""The cache of earlier keys and values by its name in transformers: ``past_key_values``, and ``cache`` from 5.24 on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn
from transformers.masking_utils import create_causal_mask

CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What the installed transformers calls it, in calls of models and in what they return."""
Forward = TypeVar("Forward", bound=Callable[..., Any])


def by_either_name(forward: Forward) -> Forward:
    """A forward pass with an argument ``past_key_values``, which transformers may give by its newer name."""
    if CACHE == "past_key_values":
        return forward  # a ``cache`` is that of continuous batching

    @functools.wraps(forward)
    def named(*args: Any, cache: Any = None, **kwargs: Any) -> Any:
        if cache is not None:
            if kwargs.get("past_key_values") is not None:
                raise ValueError("cache and past_key_values are two names of one argument; give one of them")
            kwargs["past_key_values"] = cache
        return forward(*args, **kwargs)

    known = inspect.signature(forward)
    own = inspect.Parameter("cache", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = sorted([*known.parameters.values(), own], key=lambda parameter: parameter.kind)
    named.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    return named  # type: ignore[return-value]  # the same with a further name


def cache_in(given: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a model, or in what it returned."""
    return next((given[name] for name in (CACHE, "past_key_values") if given.get(name) is not None), None)


def cache_name(model: nn.Module) -> str:
    """What a model calls it: the older name too where that is the only one it knows, or it would read without."""
    known = inspect.signature(model.forward).parameters
    return "past_key_values" if "past_key_values" in known and CACHE not in known else CACHE
