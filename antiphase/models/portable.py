"""Checkpoints that load without this package: its modeling code as one file beside the weights, named by ``auto_map``.

The file is merged from the package's own modules whenever it is written. ``portable_parts.py`` has what stands there in
place of kernels and of the package's names of attention functions.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from antiphase.base.records import write_atomically
from antiphase.models.merging import Merger

FILE = "modeling_antiphase.py"
ROOTS = (
    ("antiphase.models.configuration", "AntiphaseConfig"),
    ("antiphase.models.transformer", "AntiphaseModel"),
    ("antiphase.models.transformer", "AntiphaseForCausalLM"),
    ("antiphase.models.transformer", "AntiphaseForSequenceClassification"),
    ("antiphase.models.transformer", "AntiphaseForTokenClassification"),
)
AUTO_MAP = {
    "AutoConfig": "modeling_antiphase.AntiphaseConfig",
    "AutoModel": "modeling_antiphase.AntiphaseModel",
    "AutoModelForCausalLM": "modeling_antiphase.AntiphaseForCausalLM",
    "AutoModelForSequenceClassification": "modeling_antiphase.AntiphaseForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_antiphase.AntiphaseForTokenClassification",
}
PARTS = "antiphase.models.portable_parts"
REPLACED = {
    "antiphase.ops.layer.rms_norm": "antiphase.ops.plain.plain_rms_norm",
    "antiphase.ops.layer.exponential_lambda": "antiphase.ops.plain.plain_lambda",
    "antiphase.ops.layer.cross_entropies": "antiphase.ops.plain.plain_cross_entropies",
    "antiphase.layers.functions.antiphase_attention": f"{PARTS}.eager_attention",
    "antiphase.models.attention.function_for": f"{PARTS}.function_for",
    "antiphase.models.pretrained.chosen_implementation": f"{PARTS}.chosen_implementation",
    "antiphase.attention.interface.refuse_continuous_batching": f"{PARTS}.refuse_continuous_batching",
}
DROPPED = (
    "antiphase.layers.differential._LambdaAndNorm.step",  # a decoding step on the native kernels
    "antiphase.layers.differential.DifferentialAttentionV1._attend",  # calls it
    "antiphase.models.transformer.AntiphasePreTrainedModel.save_pretrained",  # writes a model card
    "antiphase.models.first_use.register_models",  # with the Auto classes, where ``auto_map`` does it
)
HEADER = '''\
"""Softmax and differential Transformers of antiphase {version} in one file, for ``trust_remote_code=True``.

Merged from modules of the package, which each part names, by ``antiphase convert``. Everything runs on
transformers' own attention implementations: eager (with weights), sdpa, flash and flex attention.

SPDX-License-Identifier: MIT. {copyright}.
"""

from __future__ import annotations

'''
FOOTER = '''

def _register() -> None:
    """For classifiers of transformers, which build the model inside them by ``AutoModel`` without
    ``trust_remote_code``; and for its ``Trainer``, which shifts labels that it smooths only for classes of these names.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModel

    AutoModel.register(AntiphaseConfig, AntiphaseModel, exist_ok=True)
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[AntiphaseConfig.model_type] = AntiphaseForCausalLM.__name__


_register()
'''
COPYRIGHT = "Copyright (c) 2026 antiphase contributors"


@cache
def code() -> str:
    """The file, as text."""
    merger = Merger("antiphase", REPLACED, DROPPED)
    merger.add(ROOTS)
    return HEADER.format(version=version("antiphase"), copyright=COPYRIGHT) + merger.text() + FOOTER


def refuse_portable(given: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: ``portable`` is among the arguments of ``save_pretrained`` of a model that has no such form.
    """
    if given.pop("portable", False):
        raise ValueError("portable=True is only for AntiphaseForCausalLM and its siblings; save without it")


def make_portable(folder: Path) -> None:
    """Write the file into the folder of a model of this package, and name its classes in ``config.json``."""
    write_atomically(folder / FILE, code().encode())
    path = folder / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8")) | {"auto_map": AUTO_MAP}
    write_atomically(path, (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode())
