"""The model card that ``save_pretrained`` writes: what the model is and how to load it."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

from antiphase.base.records import Record, dequantized, write_atomically
from antiphase.models.sources.models import ORIGIN
from antiphase.models.variants import option, own_fields

TEXT = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- antiphase
- {tag}-attention
---

# {title}

A decoder of {parameters:,} parameters with {attention_type} attention, made with
[antiphase](https://arxiv.org/abs/2410.05258): {layers} layers, width {width}, {maps} softmax maps of width {map_width}
a layer, {vocabulary} tokens, at most {length} positions.
{origin}
```python
{load}
tokenizer = AutoTokenizer.from_pretrained("PATH"{trusted})
```

{training}"""

BESIDE = "If antiphase trained it, `run.yaml` and `record.json` beside this file say how.\n"

WITH_PACKAGE = """\
import antiphase  # registers the architecture
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("PATH")"""
PORTABLE = """\
from transformers import {auto}, AutoTokenizer

# Runs modeling_antiphase.py of this folder; with `import antiphase` instead, its faster kernels are used.
model = {auto}.from_pretrained("PATH", trust_remote_code=True)"""

PIPELINES = {
    "ForCausalLM": "text-generation", "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification", "Model": "feature-extraction",
}  # fmt: skip
"""Kind of pipeline by the end of a class's name, which its Auto class shares."""

PLAIN = """\
---
library_name: transformers
pipeline_tag: text-generation
---

# {title}

A {title} of {parameters:,} parameters, from a GGUF file by `antiphase convert`; it loads with transformers alone.
{origin}"""


def write_model_card(
    model: PreTrainedModel, folder: Path, *, portable: bool = False, trained: Record | None = None, source: str = ""
) -> None:
    """Write ``README.md`` in ``folder`` unless it exists: a user's own text is never replaced.

    Args:
        portable: the folder has the modeling code.
        trained: record of the training run whose model this is, or was converted from.
        source: what the weights were converted from.
    """
    path = folder / "README.md"
    if path.exists():
        return
    config = model.config
    quantization = getattr(config, ORIGIN, None)
    origin = f"\nIts weights were converted from {Path(source).absolute().name}.\n" if source else ""
    origin += f"\nIts weights were {dequantized(quantization)}.\n" if quantization else ""
    if config.model_type != "antiphase":
        text = PLAIN.format(title=type(model).__name__, parameters=model.num_parameters(), origin=origin)
        write_atomically(path, text.encode())
        return
    values = {name: option(config, name) for name in own_fields(config)}
    departs = [
        f"{name} {'by layer' if isinstance(value, list) else json.dumps(value)}" for name, value in values.items()
    ]
    ends = [part.__name__.removeprefix("Antiphase") for part in type(model).__mro__]  # it may be somebody's subclass
    kind = next((end for end in ends if end in PIPELINES), "Model")
    load = PORTABLE if portable else WITH_PACKAGE
    text = TEXT.format(
        origin=origin,
        training=BESIDE if trained is None else training_of(trained),
        trusted=", trust_remote_code=True" if portable else "",
        pipeline=PIPELINES[kind],
        load=load.format(auto="AutoModel" + kind.removeprefix("Model")),
        attention_type=f"{config.attention_type} ({', '.join(departs)})" if departs else config.attention_type,
        tag=config.attention_type.replace("_", "-"),
        title="Differential Transformer" if config.attention_type.startswith("differential") else "Transformer",
        parameters=model.num_parameters(),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        maps=config.num_attention_heads,
        map_width=config.head_dim,
        vocabulary=config.vocab_size,
        length=config.max_position_embeddings,
    )
    write_atomically(path, text.encode())


def training_of(record: Record) -> str:
    """What a training run was and reached, from its record; a conversion keeps the function or says what it changes."""
    values, run = record.values, record.config
    data, training = run["data"], run["training"]
    text = f"text ({', '.join(Path(path).name for path in data['paths'])})" if data["paths"] else "generated questions"
    share = data.get("needle_share", 0.0)
    if data["paths"] and share:
        text += f", {share:.0%} of it questions about facts in the context"
    reached = [f"loss {values['final']['loss']:.3f} nats a token"] if values["final"].get("loss") is not None else []
    if (not data["paths"] or share) and values["final"].get("accuracy") is not None:
        reached.append(f"{values['final']['accuracy']:.1%} of the questions right")
    size = f"{training['batch_size']} × {data['sequence_length']}"
    return (
        "## Training\n\n"
        f"{training['steps']:,} steps of {size} tokens, {values['tokens']:,} in all, on {text}; "
        f"learning rate {training['learning_rate']:g}, seed {values['seed']}. On held-out data: "
        f"{', '.join(reached)}. The figures are those of the trained model, before any conversion.\n"
    )
