"""Configurations of published models for which transformers has no class: their checkpoints are read to be converted.

Every field is named here, with the default of the public code that reads it; others are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from antiphase.base.errors import InputError, brief, named
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
        for name in unknown_fields(type(self), {name: value for name, value in kwargs.items() if value is not None}):
            raise InputError(
                f"{name}={brief(kwargs[name])} is no known field of models of type {self.model_type!r}, and may change "
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


class MotifConfig(SourceConfig):
    """Motif-2.6B and Motif-2-12.7B of Motif-Technologies, which share a type and a class.

    In the larger, ``num_noise_heads`` counts the second maps, and ``num_attention_heads`` all queries, in groups of
    several first ones and one second. Motif-3 has the same type and ``kv_lora_rank``. ``fused_rope`` chooses a kernel,
    and without windows ``sliding_window`` and ``max_window_layers`` have no effect.
    """

    model_type = "Motif"

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        num_noise_heads: int | None = None,
        head_dim: int | None = None,
        k_ratio: int = 1,
        hidden_act: str = "poly_norm",
        rms_norm_eps: float = 1e-6,
        attn_rms_norm_eps: float = 1e-5,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        rope_parameters: dict[str, Any] | None = None,
        fused_rope: bool = False,
        max_position_embeddings: int = 8192,
        use_sliding_window: bool = False,
        sliding_window: int | None = None,
        max_window_layers: int | None = None,
        use_bias: bool = False,
        expanded: bool = False,
        attention_dropout: float = 0.0,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.num_noise_heads = num_key_value_heads, num_noise_heads
        self.head_dim, self.k_ratio, self.hidden_act = head_dim, k_ratio, hidden_act
        self.rms_norm_eps, self.attn_rms_norm_eps = rms_norm_eps, attn_rms_norm_eps
        self.max_position_embeddings = max_position_embeddings
        self.use_sliding_window, self.use_bias, self.expanded = use_sliding_window, use_bias, expanded
        self.attention_dropout, self.initializer_range = attention_dropout, initializer_range
        self.tie_word_embeddings, self.use_cache = tie_word_embeddings, use_cache
        self.pad_token_id, self.bos_token_id, self.eos_token_id = pad_token_id, bos_token_id, eos_token_id
        rope = {"rope_type": "default", "rope_theta": rope_theta, **(rope_parameters or {})}  # as transformers saves it
        is_plain = rope == {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        for name, value in {"rope_scaling": rope_scaling, "rope_parameters": None if is_plain else rope}.items():
            if value is not None:
                raise InputError(f"{name}={brief(value)} has no known meaning in models of type 'Motif'")
        super().__init__(**kwargs)
        self.rope_parameters = rope

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in ``SourceConfig``; refuses Motif-3 by the field that tells it apart."""
        if config_dict.get("kv_lora_rank") is not None:
            raise InputError(
                f"kv_lora_rank={brief(config_dict['kv_lora_rank'])} makes it a Motif-3, whose latent attention has no "
                "counterpart here",
                "Motif-2.6B and Motif-2-12.7B can be converted",
            )
        return super().from_dict(config_dict, **kwargs)

    @property
    def maps(self) -> int:
        """Softmax maps as they are counted here: two for each head."""
        noise: Any = self.num_noise_heads
        queries: Any = self.num_attention_heads  # of a file: whatever it holds
        if noise is None:
            found: int = queries
            return found
        if not isinstance(noise, int) or not isinstance(queries, int) or not 1 <= noise < queries or queries % noise:
            raise InputError(
                f"{named('source')} has num_noise_heads={noise!r} in its config.json, which must divide its "
                f"num_attention_heads ({queries!r}) into groups of two or more"
            )
        return 2 * (queries - noise)


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
