"""Configurations of published models for which transformers has no class: their checkpoints are read to be converted.

Every field is named here, with the default of the public code that reads it; others are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from antiphase.errors import InputError, shown
from antiphase.models.configuration import unknown_fields

DIFF_MLX_WEIGHTS = "latest.safetensors"
"""What a training run of diff-mlx calls its last checkpoint."""


class SourceConfig(PreTrainedConfig):
    """A configuration without a model."""

    has_no_defaults_at_init = True

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers.

        Raises:
            InputError: a field is missing or unknown.
        """
        for name, parameter in inspect.signature(cls.__init__).parameters.items():
            is_required = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
            if is_required and name not in config_dict:
                raise InputError(f"{name} is missing")
        return super().from_dict(config_dict, **kwargs)

    def __init__(self, **kwargs: Any) -> None:
        """
        Raises:
            InputError: a field is unknown.
        """
        for name in unknown_fields(type(self), kwargs):
            raise InputError(
                f"{name}={shown(kwargs[name])} is no known field of models of type {self.model_type!r}, and may change "
                "what they compute"
            )
        super().__init__(**kwargs)


class DiffMlxConfig(SourceConfig):
    """guygrigsby/diff-mlx: differential and softmax models of one size, trained in MLX.

    ``amp_dtype`` is the precision of training; the weights are stored in fp32.
    """

    model_type = "diff_mlx"
    attention_type: str
    """In no file: what the tensors show."""
    attribute_map: ClassVar = {
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads_vanilla",
        "num_key_value_heads": "n_heads_vanilla", "head_dim": "qk_head_dim", "intermediate_size": "mlp_intermediate",
        "max_position_embeddings": "block_size", "rms_norm_eps": "rms_eps", "tie_word_embeddings": "tie_embeddings",
    }  # fmt: skip

    def __init__(
        self,
        *,
        dim: int,
        n_layers: int,
        n_heads_vanilla: int,
        qk_head_dim: int,
        vocab_size: int,
        mlp_intermediate: int,
        block_size: int,
        rope_base: float = 10000.0,
        rms_eps: float = 1e-5,
        tie_embeddings: bool = True,
        amp_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        self.dim, self.n_layers, self.vocab_size, self.mlp_intermediate = dim, n_layers, vocab_size, mlp_intermediate
        self.n_heads_vanilla, self.qk_head_dim, self.block_size = n_heads_vanilla, qk_head_dim, block_size
        self.rope_base, self.rms_eps, self.tie_embeddings = rope_base, rms_eps, tie_embeddings
        self.amp_dtype = amp_dtype
        super().__init__(**kwargs)


def is_diff_mlx(tree: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of diff-mlx, which has no ``model_type``."""
    return "model_type" not in tree and isinstance(tree.get("model"), dict) and isinstance(tree.get("train"), dict)


def diff_mlx_config(tree: Mapping[str, Any], tensors: Iterable[str]) -> DiffMlxConfig:
    """The configuration of a diff-mlx folder, whose tensors say which of the two kinds of attention it has.

    Raises:
        InputError: a field is missing or unknown.
    """
    for name in sorted(set(tree) - {"model", "train"}):
        raise InputError(f"diff-mlx has the fields model and train alone, got {name}")
    is_differential = any(name.endswith("attn.lambda_q1") for name in tensors)
    config: DiffMlxConfig = DiffMlxConfig.from_dict(tree["model"])
    config.attention_type = "differential" if is_differential else "softmax"
    return config
