"""``differential_config``: differential attention for other architectures of transformers."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from antiphase.base.errors import InputError
from antiphase.models.configuration import NO_CODE

DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Names of the dropout of attention weights in different architectures."""


def differential_config(config: PreTrainedConfig, *, head_norm_eps: float = 1e-5) -> PreTrainedConfig:
    """The same architecture with differential attention (Ye et al., 2410.05258), for use with the Auto classes.

    Models built from it have random initial weights; saved models load with the Auto classes once antiphase is
    imported. Dropout of attention weights, which differential attention does not have, is set to 0 with a warning.

    Example:
        >>> config = AutoConfig.from_pretrained("Qwen/Qwen3-0.6B")
        >>> model = AutoModelForCausalLM.from_config(antiphase.differential_config(config))

    Args:
        config: configuration of Llama, Mistral, Qwen2, Qwen3, GPT-2 or BERT. Heads 2i and 2i+1 become the maps of head
            i.
        head_norm_eps: ε of the norm of each head's output.

    Raises:
        InputError: the architecture is not supported, the number of heads or key-value heads is odd, or ε is not
            positive.
    """
    if not head_norm_eps > 0:
        raise InputError(f"head_norm_eps must be above 0, got {head_norm_eps}")
    if type(config) not in CONFIGURATIONS:
        known = ", ".join(sorted(kind.model_type for kind in CONFIGURATIONS))
        raise InputError(
            f"a configuration of type {config.model_type!r} cannot be made differential", f"known: {known}"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, 2)
        if count % 2:
            raise InputError(f"{name} must be even for differential attention (two maps a head), got {count}")
    fields = copy.deepcopy(config.to_dict())
    for name in ("model_type", "architectures", "transformers_version"):
        fields.pop(name, None)
    for name in DROPOUTS:
        if fields.get(name):
            warnings.warn(f"{name} is set to 0: differential attention has no dropout on its weights", stacklevel=2)
            fields[name] = 0.0
    return CONFIGURATIONS[type(config)](head_norm_eps=head_norm_eps, **fields)


def __getattr__(name: str) -> Any:
    """A model of one of the configurations below, for ``pickle``: a new process has not registered it yet."""
    for base, kind in CONFIGURATIONS.items():
        if name.startswith(kind.__name__.removesuffix("Config")):
            from antiphase.models.architectures import register_models

            models = register_models(base, kind)
            if name in models:
                return models[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _with_differential_attention(base: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    def finish(self: PreTrainedConfig, **kwargs: Any) -> None:
        super(kind, self).__post_init__(**kwargs)
        # Not at import of this module, because transformers may be only half imported then.
        from antiphase.models.architectures import register_models

        register_models(base, kind)

    kind: type[PreTrainedConfig] = type(
        f"Differential{base.__name__}",
        (base,),
        {
            "__doc__": f"``{base.__name__}`` with differential attention; made by ``differential_config``.",
            "__module__": __name__,
            "__annotations__": {"head_norm_eps": float},
            "__post_init__": finish,
            "model_type": f"differential_{base.model_type}",
            "head_norm_eps": 1e-5,
            "auto_map": NO_CODE,
        },
    )
    return kind


CONFIGURATIONS = {
    base: _with_differential_attention(base)
    for base in (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, GPT2Config, BertConfig)
}
"""Configuration class and differential configuration class of each architecture."""

for _kind in CONFIGURATIONS.values():
    AutoConfig.register(_kind.model_type, _kind, exist_ok=True)
    globals()[_kind.__name__] = _kind  # so that they can be pickled
