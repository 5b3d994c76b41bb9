"""The kinds of models that go through transformers' test classes: tiny configurations, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedConfig, PreTrainedModel

import antiphase
from antiphase.lab.lineage.models import sequence_to_sequence, vanilla
from antiphase.models import transformer

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, **SPECIAL,
}  # fmt: skip
CLASSIC = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **SPECIAL}
AUTO = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")


@dataclass
class Kind:
    """One kind of model."""

    config: Callable[[], PreTrainedConfig]
    models: Callable[[], tuple[type[PreTrainedModel], ...]]
    heads: int = 4
    """Attention maps that a layer returns."""
    form: str = "decoder"
    """ "decoder", "encoder" or "pair"."""
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)


def registered(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], ...]:
    """The models that the Auto classes have for a configuration."""
    found = [getattr(hf, name)._model_mapping for name in AUTO]
    return tuple(mapping[type(config)] for mapping in found if type(config) in mapping)


def own(attention_type: str, heads: int) -> Kind:
    """The decoder of this package."""

    def config() -> PreTrainedConfig:
        return antiphase.AntiphaseConfig(attention_type=attention_type, **SIZES)

    return Kind(config, lambda: registered(config()), heads)


def inside() -> PreTrainedConfig:
    """Llama with differential attention."""
    return antiphase.differential_config(hf.LlamaConfig(**SIZES))


KINDS = {
    "llama": Kind(
        lambda: hf.LlamaConfig(**SIZES),
        lambda: (
            hf.LlamaModel, hf.LlamaForCausalLM, hf.LlamaForSequenceClassification, hf.LlamaForTokenClassification,
        ),
    ),
    "diffllama": Kind(
        lambda: hf.DiffLlamaConfig(**SIZES),
        lambda: (
            hf.DiffLlamaModel, hf.DiffLlamaForCausalLM, hf.DiffLlamaForSequenceClassification,
            hf.DiffLlamaForTokenClassification,
        ),
    ),
    "softmax": own("softmax", 4),
    "differential": own("differential", 2),
    "differential_v2": own("differential_v2", 2),
    "differential_llama": Kind(inside, lambda: registered(inside()), 2),
    "pair": Kind(
        lambda: antiphase.SequenceToSequenceConfig(attention_type="differential", **CLASSIC),
        lambda: (
            sequence_to_sequence.SequenceToSequenceModel,
            sequence_to_sequence.SequenceToSequenceForConditionalGeneration,
        ),
        2, "pair", CLASSIC,
    ),
    "encoder": Kind(
        lambda: antiphase.VanillaConfig(attention_type="differential", **CLASSIC),
        lambda: (vanilla.VanillaModel, vanilla.VanillaForMaskedLM, vanilla.VanillaForSequenceClassification),
        2, "encoder", CLASSIC,
    ),
}  # fmt: skip
"""Stock Llama and DiffLlama first, then this package's."""
assert transformer.AntiphaseModel in KINDS["softmax"].models()


class ModelTester:
    """What transformers' test classes ask of a model's own tests: a configuration, inputs, sizes."""

    batch_size, seq_length, is_training = 3, 7, True

    def __init__(self, parent: Any, kind: Kind) -> None:
        self.parent, self.kind = parent, kind
        self.num_attention_heads = kind.heads
        self.num_hidden_layers = self.expected_num_hidden_layers = kind.sizes["num_hidden_layers"]
        self.expected_num_hidden_layers += 1
        self.hidden_size, self.vocab_size = kind.sizes["hidden_size"], kind.sizes["vocab_size"]
        self.causal_lm_class = next((model for model in kind.models() if "ForCausalLM" in model.__name__), None)
        self.encoder_seq_length = self.decoder_seq_length = self.seq_length

    def get_config(self) -> PreTrainedConfig:
        """A new configuration."""
        return self.kind.config()

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """Random tokens, none of them special; the second row ends in padding."""
        shape = (self.batch_size, self.seq_length)
        ids, mask = torch.randint(3, self.vocab_size, shape), torch.ones(shape, dtype=torch.int64)
        mask[1, -2:] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.kind.form == "pair":
            inputs |= {"decoder_input_ids": torch.randint(3, self.vocab_size, shape)}
        return self.get_config(), inputs

    prepare_config_and_inputs = prepare_config_and_inputs_for_common
