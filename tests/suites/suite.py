"""transformers' test classes over every kind of model; ``run.py`` runs them and judges the results."""

from __future__ import annotations

import unittest
from typing import Any

from suites import source
from suites.generation import HeadTests, PackedTests
from suites.kinds import KINDS, Kind, ModelTester

common = source.load("test_modeling_common")
training = source.load("test_training_mixin")
TABLES = {
    "ForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "ForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "ForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "ForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "ForConditionalGeneration": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "Model": "MODEL_MAPPING_NAMES",
}  # fmt: skip
"""Tables of model names by the end of a name; the tests look there for what a model is trained with, if at all."""


class Suite:
    """What every class below has; the kind is set by ``_suite``."""

    kind: str
    has_attentions = True

    def setUp(self) -> None:  # unittest's name
        """New helpers for each test, as in transformers' own classes."""
        self.model_tester = ModelTester(self, KINDS[self.kind])


def _name_models(kind: Kind) -> None:
    """Enter the models into the tests' own copies of these tables."""
    for model in kind.models():
        table = next(table for ending, table in TABLES.items() if model.__name__.endswith(ending))
        setattr(common, table, {**getattr(common, table), kind.config().model_type: model.__name__})


def _suite(name: str) -> type:
    kind = KINDS[name]
    _name_models(kind)
    bases: list[type] = [Suite, PackedTests, HeadTests, common.ModelTesterMixin]
    models = kind.models()
    space: dict[str, Any] = {
        "kind": name, "all_model_classes": models, "is_encoder_decoder": kind.form == "pair", "__module__": __name__,
        "all_generative_model_classes": tuple(model for model in models if model.can_generate()),
        "model_tester": None,
        "test_generation_tester_mixin_inheritance": None,  # asks for a class that the distribution lacks
    }  # fmt: skip
    if kind.form == "decoder":
        bases.append(training.TrainingTesterMixin)
    return type(f"Test_{name}_", (*bases, unittest.TestCase), space)


globals().update({f"Test_{name}_": _suite(name) for name in KINDS})
