"""Recipes of converted tensors: each reads the tensors of the source that it needs, and makes one of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from antiphase.base.errors import InputError, named
from antiphase.layers.lambdas import LAMBDA_STD

Read = Callable[[str], Tensor]
"""Returns a tensor of the source by name."""
Recipe = Callable[[Read], Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Conversion:
    """The result's configuration, and a recipe for each of its tensors."""

    config: PreTrainedConfig
    recipes: Mapping[str, Recipe]


def tensor_shapes(config: PreTrainedConfig) -> dict[str, torch.Size]:
    """Name and shape of every tensor in a checkpoint of the configuration's model, without a tied head."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes[HEAD]
    return shapes


def unchanged(config: PreTrainedConfig) -> Conversion:
    """The same tensors under the same names."""
    return Conversion(config, {name: partial(take, name) for name in tensor_shapes(config)})


def composed(later: Mapping[str, Recipe], earlier: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Recipes that read the tensors made by ``earlier`` recipes."""

    def through(recipe: Recipe, read: Read) -> Tensor:
        return recipe(lambda name: earlier[name](read))

    return {name: partial(through, recipe) for name, recipe in later.items()}


# ------------------------------------------------------------------------------------------ recipes


def take(name: str, read: Read) -> Tensor:
    """The source's tensor."""
    return read(name)


def changed(name: str, change: Callable[[Tensor], Tensor], read: Read) -> Tensor:
    """The source's tensor, changed."""
    return change(read(name)).contiguous()


def with_head_norm(name: str, read: Read) -> Tensor:
    """An output projection with the weight of the head norm in its columns."""
    columns, weight = read(name), read(name.replace("o_proj", "head_norm"))
    folded = columns.double().unflatten(1, (-1, len(weight))) * weight.double()
    return folded.flatten(1).to(columns.dtype)


def zeros_of_extension(name: str, shape: tuple[int, ...], read: Read) -> Tensor:
    """Parameters of DEX in the layer's dtype, but for λ."""
    dtype = read(name.replace(name.rpartition(".")[2], "o_proj.weight")).dtype
    return torch.zeros(shape, dtype=torch.float32 if name.endswith("dex_lambda") else dtype)


def no_lambda(name: str, heads: int, read: Read) -> Tensor:
    """The projection of a λ of 1/2 for every token."""
    keys = read(name.replace("lambda_proj", "k_proj"))
    return torch.zeros(heads, keys.shape[1], dtype=keys.dtype)


def drawn_once(name: str, width: int, layer: int, read: Read) -> Tensor:
    """A λ vector; the pairs q1, q2 and k1, k2 of a layer are equal, so λ = λinit, and every vector has a gradient."""
    generator = torch.Generator().manual_seed(2 * layer + ("lambda_k" in name))
    return in_full(torch.randn(width, generator=generator, dtype=torch.float64).float() * LAMBDA_STD)


def head_norm_there(name: str, width: int, read: Read) -> Tensor:
    """Weights of one for a norm that the source does not have."""
    return head_norm_of(read(name.replace("head_norm", "o_proj")), width=width)


# ------------------------------------------------------------------------------------------ changes of one tensor


def interleaved(rows: Tensor, *, width: int) -> Tensor:
    """Reorder maps from (all first, all second) to pairs: (maps · d, hidden), or biases (maps · d,)."""
    return rows.unflatten(0, (2, -1, width)).transpose(0, 1).flatten(0, 2)


def by_map(rows: Tensor, *, width: int) -> Tensor:
    """The inverse of ``interleaved``."""
    return rows.unflatten(0, (-1, 2, width)).transpose(0, 1).flatten(0, 2)


def by_halves(rows: Tensor, width: int) -> Tensor:
    """Reorder the rotary channels of each map from neighbours (even, odd) to halves."""
    return rows.unflatten(0, (-1, width // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def third(rows: Tensor, *, index: int, width: int) -> Tensor:
    """One of three: every head's rows are a query, a key and a value, each ``width`` wide."""
    return rows.unflatten(0, (-1, 3, width))[:, index].flatten(0, 1)


def repeated(rows: Tensor, *, width: int) -> Tensor:
    """Every head's rows twice in a row."""
    return rows.unflatten(0, (-1, width)).repeat_interleave(2, dim=0).flatten(0, 1)


def doubled(columns: Tensor) -> Tensor:
    """
    Raises:
        InputError: doubling a weight overflows the dtype.
    """
    twice = 2 * columns
    check_overflow(twice, columns, "doubled")
    return twice


def check_overflow(scaled: Tensor, columns: Tensor, how: str) -> None:
    """
    Raises:
        InputError: finite output weights are no longer finite.
    """
    if bool((scaled.isinf() & columns.isfinite()).any()):
        raise InputError(
            f"{named('source')} has output weights (o_proj) too large for {columns.dtype} when {how}",
            "save it in bfloat16 first",
        )


def two_and_minus_one(columns: Tensor, *, width: int) -> Tensor:
    """Every head's columns times 2, then times -1: (hidden, heads · d) to (hidden, 2 · heads · d)."""
    heads = columns.unflatten(1, (-1, 1, width))
    return torch.cat([doubled(heads), -heads], dim=2).flatten(1)


def with_zeros(rows: Tensor, *, width: int) -> Tensor:
    """Every head's rows, then as many of zeros."""
    heads = rows.unflatten(0, (-1, 1, width))
    return torch.cat([heads, torch.zeros_like(heads)], dim=1).flatten(0, 2)


def widened(columns: Tensor, *, width: int, factors: Sequence[float]) -> Tensor:
    """Every head's columns times its factor, then those of the next head, which begin with outputs of zero.

    Raises:
        InputError: a product overflows the dtype.
    """
    heads = columns.unflatten(1, (-1, 1, width))
    scaled = (heads.double() * torch.tensor(factors, dtype=torch.float64)[:, None, None]).to(columns.dtype)
    check_overflow(scaled, heads, "multiplied")
    return torch.cat([scaled, scaled.roll(-1, 1)], dim=2).flatten(1)


def in_full(vector: Tensor) -> Tensor:
    """λ vectors are kept in fp32, whatever the dtype of the other tensors."""
    return vector if vector.dtype == torch.float64 else vector.float()


def head_norm_of(columns: Tensor, *, width: int) -> Tensor:
    """The weights of a norm that has none, in the dtype of the output projection."""
    return torch.ones(2 * width, dtype=columns.dtype)
