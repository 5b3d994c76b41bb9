"""``AntiphaseConfig``: one configuration for softmax and differential Transformers of equal size."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from antiphase.base.errors import InputError, nearest
from antiphase.layers.attention import check_counts
from antiphase.layers.mlp import KNOWN
from antiphase.layers.norm import NORMS
from antiphase.layers.registry import LAYERS, variant_fields
from antiphase.models.block_fields import BLOCK, BlockFields, check_block, checked_rope, with_scaling
from antiphase.models.first_use import register_models
from antiphase.models.start import check_initialization, default_multiplier
from antiphase.models.tensor_plan import tensor_plan
from antiphase.models.variants import check_layers, option

ATTENTION_TYPES = ("softmax", "differential", "differential_v2")
"""The published kinds of attention."""
LAYER_TYPES = ("full_attention", "sliding_attention")
KNOWN_ELSEWHERE = frozenset(
    {"attn_implementation", "auto_map", "model_type", "name_or_path", "num_labels", "quantization_config", "rope_theta",
     "torch_dtype"}
)  # fmt: skip
"""Fields that transformers reads outside its configuration classes."""
PIPELINE = {
    "embed_tokens": (["input_ids"], ["inputs_embeds"]),
    "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    "norm": (["hidden_states"], ["hidden_states"]),
}
NO_CODE: Mapping[str, str] = MappingProxyType({})
"""``auto_map`` of a configuration without code files, for which TRL asks every model outside transformers."""


class NamedFields(PreTrainedConfig):
    """A configuration that refuses unknown fields when it is made, and warns of them when it is loaded."""

    auto_map: ClassVar[Mapping[str, str]] = NO_CODE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; unknown fields of a file, which other tools may have written, are kept with a warning.

        Fields among ``kwargs`` replace those of the file before all are checked.
        """
        foreign = {name: config_dict[name] for name in unknown_fields(cls, config_dict)}
        own = {name: value for name, value in config_dict.items() if name not in foreign}
        given = {name: kwargs.pop(name) for name in _own_fields(cls).intersection(kwargs)}
        kinds, layers = {*(own.get("layer_types") or ())}, given.get("num_hidden_layers")
        if len(kinds) == 1 and "sliding_window" in given:  # with a window or without, all layers are of another kind
            own["layer_types"] = None
        elif len(kinds) == 1 and isinstance(layers, int):  # more or fewer layers of the same kind
            own["layer_types"] = [*kinds] * layers
        found = super().from_dict(own | given, **kwargs)
        config = found[0] if isinstance(found, tuple) else found
        for name, value in foreign.items():
            hint = nearest(name, _own_fields(cls))
            warnings.warn(f"configuration field '{name}' is unknown and has no effect{hint}", stacklevel=2)
            if not isinstance(getattr(type(config), name, None), property):  # an older name of a field, such as Llama's
                setattr(config, name, value)
        return found


class AntiphaseConfig(NamedFields, BlockFields):
    """Configuration of a decoder with pre-RMSNorm, SwiGLU, RoPE and grouped-query attention, softmax or differential.

    Its blocks are Llama's by default; the fields of ``BlockFields``, keyword arguments like all others, make them those
    of Qwen2, Qwen3, OLMo 2, EXAONE 4, Gemma or GPT-NeoX.

    Two configurations that differ only in ``attention_type``, "softmax" or "differential", give a fair comparison:
    equal projections and equal multiply-adds, plus λ vectors and head norms in the differential model.
    "differential_v2" has half the output projection, and half the keys and values unless ``num_key_value_heads`` is
    given.

    Example:
        >>> config = antiphase.AntiphaseConfig(
        ...     attention_type="differential", vocab_size=1000, hidden_size=64, intermediate_size=172,
        ...     num_hidden_layers=2, num_attention_heads=4,
        ... )
        >>> model = antiphase.AntiphaseForCausalLM(config)

    Args:
        attention_type: "softmax", "differential" (Ye et al., 2410.05258) or "differential_v2" (Microsoft, 2026);
            "differential_v2_across" is an ablation whose pairs read different keys.
        vocab_size: words of the vocabulary.
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP.
        num_hidden_layers: number of layers.
        num_attention_heads: softmax maps per layer; must be even for a differential layer, which has half as many
            heads.
        num_key_value_heads: key maps per layer; None means ``num_attention_heads``. Must be even for a differential
            layer, which has half as many value heads. In V2, where both maps of a head share key and value, None means
            half of ``num_attention_heads``, and each key must serve an even number of maps.
        head_dim: width of a map; None means ``hidden_size / num_attention_heads``.
        head_norm_eps: ε of the RMSNorm of each head's output ("differential" only).
        sliding_window: a token sees itself and the ``sliding_window - 1`` before it; None means all tokens before it.
        layer_types: "full_attention" or "sliding_attention" for each layer; None means sliding if there is a window.
        lambda_form: parametrization of λ. For "differential": "exponential" (the paper's form, the default), "scalar"
            or "head" (λinit plus one learned number per layer or head), or "fixed" (λinit). For V2: "sigmoid" (the
            default), "linear" (no sigmoid) or "fixed" (λ = 1).
        lambda_init: λinit of every layer, above -1 and below 1, or a list with that of each; None means the schedule by
            depth ("differential" only).
        head_norm: whether to apply an RMSNorm to each head's output; None means only in "differential".
        head_scale: whether to apply the factor 1 - λinit after it; None means yes ("differential" only).
        output_gate: whether to apply a sigmoid gate to every channel of the heads' outputs (Qiu et al., 2505.06708).
        sink_logits: whether each map has a learned logit in its softmax's denominator, as in gpt-oss ("softmax" only).
        second_map: "subtracted", or as controls "added" or "none" (its weight is 0); None means subtracted
            ("differential" only).
        num_noise_heads: number of second maps that the heads of a layer share (2510.06949, "differential" only); it
            must divide the number of heads and be a multiple of the number of value heads. None means one per head.
        dex_heads: heads of each layer that DEX extends (2505.16333, "softmax" only); None means none.
        dex_steps: training steps over which DEX anneals its λ.
        initializer: initialization of matrices: "normal", N(0, initializer_range²), or "fan_in", as in the authors'
            stack (microsoft/unilm, YOCO): linear layers U(±1/√fan_in), embeddings N(0, 1/hidden_size) times
            √hidden_size.
        embedding_range: standard deviation of the initial embeddings; None means that of ``initializer``.
        embedding_multiplier: factor of the embeddings in the forward pass; None means √hidden_size with "fan_in", else
            1.
        residual_init_scale: factor on the initial weights of the layers that write into the residual stream (output
            projections of attention and MLP); "depth" means 1/√(2·num_hidden_layers), and 0 makes every block start as
            the identity.
        head_norm_init: initial weight of the norm of each head's output.
        dequantized_from: quantization that the weights went through, such as "Q4_1", of a model converted from GGUF.

    ``rope_parameters`` may have a ``partial_rotary_factor``, the share of channels that positions rotate, as in
    GPT-NeoX; ``rope_scaling`` and ``rope_theta`` are older spellings. It, ``max_position_embeddings``,
    ``rms_norm_eps``, ``initializer_range``, ``tie_word_embeddings``, ``use_cache`` and the special tokens are as in
    transformers.

    Raises:
        InputError: a field is unknown (the message gives the nearest known one), or a value is invalid; the message
            names the field.
    """

    model_type = "antiphase"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "cache"]

    def __init__(
        self,
        attention_type: str = "differential",
        vocab_size: int = 32000,
        hidden_size: int = 768,
        intermediate_size: int = 2048,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int = 2048,
        rope_parameters: dict[str, Any] | None = None,
        rms_norm_eps: float = 1e-6,
        head_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        sliding_window: int | None = None,
        layer_types: list[str] | None = None,
        lambda_form: str | None = None,
        lambda_init: float | list[float] | None = None,
        head_norm: bool | None = None,
        head_scale: bool | None = None,
        output_gate: bool = False,
        sink_logits: bool = False,
        second_map: str | None = None,
        num_noise_heads: int | None = None,
        dex_heads: list[list[int]] | None = None,
        dex_steps: int = 0,
        initializer: str = "normal",
        embedding_range: float | None = None,
        embedding_multiplier: float | None = None,
        residual_init_scale: float | str = 1.0,
        head_norm_init: float = 1.0,
        dequantized_from: str | None = None,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        rope_scaling: dict[str, Any] | None = None,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        block = {name: kwargs.pop(name, default) for name, default in BLOCK.items()}
        variant = {name: kwargs.pop(name) for name in variant_fields() if name in kwargs}
        refuse_unknown_fields(type(self), kwargs)
        self.attention_type = attention_type
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.lambda_form, self.lambda_init = lambda_form, lambda_init
        self.head_norm, self.head_scale = head_norm, head_scale
        self.output_gate, self.sink_logits = output_gate, sink_logits
        self.second_map, self.num_noise_heads = second_map, num_noise_heads
        self.dex_heads, self.dex_steps = dex_heads, dex_steps
        for name, value in variant.items():  # for kinds of attention registered by other packages
            setattr(self, name, value)
        if num_key_value_heads is None and attention_type in [*LAYERS]:
            num_key_value_heads = LAYERS[attention_type].default_key_value_heads(vars(self))
        self.num_key_value_heads = num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        self.sliding_window = sliding_window
        self._check_sizes(head_dim)
        self.layer_types = self._layer_types(layer_types)
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        for name, given in (("rope_parameters", rope_parameters), ("rope_scaling", rope_scaling)):
            if not isinstance(given, Mapping | None):
                raise InputError(f"{name} must map names to values, got {given!r}")
        # A bare `rope_theta` is the older spelling of the same.
        rope_parameters = rope_parameters or {"rope_type": "default", "rope_theta": kwargs.pop("rope_theta", 10000.0)}
        if rope_scaling:
            rope_parameters = with_scaling(rope_parameters, rope_scaling, theta=kwargs.pop("rope_theta", None))
        self.rope_parameters = checked_rope(
            rope_parameters, head_dim=self.head_dim, kinds=("default", *ROPE_INIT_FUNCTIONS)
        )
        self.rms_norm_eps = rms_norm_eps
        self.head_norm_eps = head_norm_eps
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self._check_scales()
        if not isinstance(tie_word_embeddings, bool):
            raise InputError(f"tie_word_embeddings must be true or false, got {tie_word_embeddings!r}")
        self.initializer, self.embedding_range = initializer, embedding_range
        if embedding_multiplier is None:
            embedding_multiplier = default_multiplier(initializer, hidden_size)
        self.embedding_multiplier = embedding_multiplier
        self.residual_init_scale, self.head_norm_init = residual_init_scale, head_norm_init
        self._set_block(block)
        if dequantized_from is not None:  # only where there is something to tell, so that other models' digests stay
            self.dequantized_from = dequantized_from
        check_initialization(self, has_head_norm=option(self, "head_norm"))
        super().__init__(
            tie_word_embeddings=tie_word_embeddings,
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            **kwargs,
        )
        register_models()

    @property
    def base_model_tp_plan(self) -> dict[str, str] | None:
        """How ``from_pretrained(tp_plan="auto")`` divides the weights."""
        given: dict[str, str] | None = self.__dict__.get("base_model_tp_plan")
        return given or tensor_plan(self)

    @base_model_tp_plan.setter
    def base_model_tp_plan(self, plan: dict[str, str]) -> None:  # transformers 5.17 adds a tied embedding's
        self.__dict__["base_model_tp_plan"] = plan

    @property
    def base_model_pp_plan(self) -> dict[str, tuple[list[str], list[str]]] | None:
        """How pipelines divide the model: modules in their order, with inputs and outputs.

        None if embeddings are multiplied, because the model multiplies what it is given, which in a later stage is not
        an embedding.
        """
        return PIPELINE if self.embedding_multiplier == 1.0 else None

    def _set_block(self, given: dict[str, Any]) -> None:
        """Store what differs from Llama's blocks."""
        check_block(given, {"hidden_act": KNOWN, "norm_type": NORMS})
        for name, value in given.items():
            if value != BLOCK[name]:
                setattr(self, name, value)

    def _check_sizes(self, head_dim: int | None) -> None:
        check_counts(vars(self), ("vocab_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"))
        check_layers(self, head_dim=head_dim)
        width = self.hidden_size // self.num_attention_heads if head_dim is None else head_dim
        if width % 2:
            raise InputError(f"head_dim must be even for rotary positions, got {width}")

    def _layer_types(self, given: Any) -> list[str]:
        if given is None:
            return [LAYER_TYPES[self.sliding_window is not None]] * self.num_hidden_layers
        is_list = isinstance(given, Sequence) and all(kind in LAYER_TYPES for kind in given)
        if not is_list or len(given) != self.num_hidden_layers:
            raise InputError(
                f"layer_types must name {' or '.join(LAYER_TYPES)} for each of the {self.num_hidden_layers} layers, "
                f"got {given}"
            )
        if "sliding_attention" in given and self.sliding_window is None:
            raise InputError("layer_types names sliding_attention, but sliding_window is not set")
        if "sliding_attention" not in given and self.sliding_window is not None:
            warnings.warn(
                f"sliding_window={self.sliding_window} has no effect, because layer_types names no sliding_attention",
                stacklevel=3,
            )
        return list(given)

    def _check_scales(self) -> None:
        for name in ("rms_norm_eps", "head_norm_eps", "initializer_range"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise InputError(f"{name} must be a number of at least 0, got {value!r}")


def refuse_unknown_fields(kind: type[PreTrainedConfig], kwargs: dict[str, Any]) -> None:
    """Refuse unknown keys, which transformers would silently store: a typo should be an error.

    Raises:
        InputError: neither the configuration ``kind`` nor transformers has such a key; the message gives the nearest
            one.
    """
    for name in unknown_fields(kind, kwargs):
        raise InputError(f"unknown configuration field '{name}'{nearest(name, _own_fields(kind))}")


def unknown_fields(kind: type[PreTrainedConfig], names: Iterable[str]) -> list[str]:
    """The names that are neither fields of the configuration ``kind`` nor of every configuration of transformers."""
    known = set(vars(PreTrainedConfig())) | set(inspect.signature(PreTrainedConfig.__init__).parameters)
    known |= {name for kind in PreTrainedConfig.__mro__ for name in vars(kind).get("__annotations__", {})}
    known |= set(PreTrainedConfig().to_dict()) | _own_fields(kind) | {*variant_fields()} | KNOWN_ELSEWHERE
    return [name for name in names if name not in known and not name.startswith("_")]


def _own_fields(kind: type[PreTrainedConfig]) -> set[str]:
    blocks = BLOCK if issubclass(kind, BlockFields) else ()
    return set(inspect.signature(kind.__init__).parameters).union(blocks) - {"self", "kwargs"}
