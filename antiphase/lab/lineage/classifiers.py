"""The named classifiers of ``antiphase classify``: their sizes and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.lab.lineage.models.common import ForSequenceClassification
from antiphase.lab.lineage.models.configs import ClassicConfig, ConvolutionConfig, RecurrentConfig, VanillaConfig
from antiphase.lab.lineage.models.convolution import ConvolutionForSequenceClassification
from antiphase.lab.lineage.models.recurrent import RecurrentForSequenceClassification
from antiphase.lab.lineage.models.vanilla import VanillaForSequenceClassification
from antiphase.lab.lineage.named_models import NamedModel, chosen_models
from antiphase.lab.lineage.training.classifier import ClassifierTraining
from antiphase.lab.text.tokenization import id_count
from antiphase.models.initialization import seeded

MODELS: dict[type[ClassicConfig], type[ForSequenceClassification]] = {
    ConvolutionConfig: ConvolutionForSequenceClassification,
    RecurrentConfig: RecurrentForSequenceClassification,
    VanillaConfig: VanillaForSequenceClassification,
}


@dataclass(frozen=True, kw_only=True)
class Classifier(NamedModel):
    """A model's configuration, except for vocabulary and labels, and its training settings."""

    given_by_data: ClassVar[Mapping[str, Any]] = dict.fromkeys(
        ("vocab_size", "pad_token_id", "num_labels", "id2label", "label2id")
    )
    training: ClassifierTraining = field(default_factory=ClassifierTraining)

    def build(self, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, seed: int) -> PreTrainedModel:
        """A model for the tokenizer and the labels, with random weights that depend only on the seed.

        Raises:
            InputError: a size is invalid; the message names the field.
        """
        config = self.config(
            **self.sizes, vocab_size=id_count(tokenizer), pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(labels)), label2id={label: number for number, label in enumerate(labels)},
        )  # fmt: skip
        return seeded(lambda: MODELS[self.config](config), seed)


def _recurrent(cell: str, *, bidirectional: bool) -> Classifier:
    return Classifier(
        config=RecurrentConfig, sizes={"cell": cell, "bidirectional": bidirectional, "hidden_size": 150, "dropout": 0.5}
    )


def _encoder(attention_type: str) -> Classifier:
    return Classifier(
        config=VanillaConfig,
        sizes={
            "attention_type": attention_type, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "mlp_ratio": 2.0, "norm_position": "pre", "dropout": 0.3,
        },
        training=ClassifierTraining(learning_rate=1e-3, warmup_steps=100),
    )  # fmt: skip


CLASSIFIERS: dict[str, Classifier] = {
    "cnn": Classifier(config=ConvolutionConfig),
    "rnn": _recurrent("rnn", bidirectional=False),
    "birnn": _recurrent("rnn", bidirectional=True),
    "lstm": _recurrent("lstm", bidirectional=False),
    "bilstm": _recurrent("lstm", bidirectional=True),
    "transformer": _encoder("softmax"),
    "differential": _encoder("differential"),
    "differential_v2": _encoder("differential_v2"),
}
"""By name in ``--model``. The last three are encoders that differ only in their attention."""


def chosen_classifiers(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    known: Mapping[str, Classifier] = CLASSIFIERS,
    flag: str = "--model",
    ruled: Mapping[str, str] | None = None,
) -> dict[str, Classifier]:
    """``chosen_models`` for classifiers."""
    return chosen_models(names, settings, known=known, flag=flag, ruled=ruled)
