"""Calibration plans: which heads of which model to calibrate, and how. Stored as small JSON files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel

from antiphase.attention.hooks import observed, refuse_encoder_decoder
from antiphase.base.errors import InputError, brief, nearest
from antiphase.base.files import read_json
from antiphase.base.modes import evaluation_mode
from antiphase.base.records import write_atomically
from antiphase.base.tables import Shown, Table, columns_of

FORMAT = 1
MODES = ("paper", "prompt", "running")
IDENTIFYING_FIELDS = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Fields of a configuration by which a plan recognizes its model."""
DIGESTED_VALUES = 16
"""Number of values of each weight in a fingerprint."""


@dataclass(frozen=True)
class CalibrationPlan(Shown):
    """Which heads to calibrate, and how (2406.15765, section 4).

    Example:
        >>> plan = antiphase.CalibrationPlan({3: [0, 5], 4: [2]}, beta=0.4)  # two heads of layer 3, one of layer 4
        >>> plan.save("plan.json")

    Args:
        heads: 0-based softmax maps by 0-based layer.
        alpha: a key is a sink if it receives more than α / N on average.
        beta: factor of the weights on sinks, in (0, 1].
        mode: which queries determine the sinks. "paper": those of the call; "prompt": those of the prompt, also for the
            decoding steps after it; "running": for each query, those up to it.
        fingerprint: fingerprint of the model that the plan was made for; None accepts any model with these layers and
            maps.
        scores: results of the search, by "layer.head"; not used when a plan is applied.

    Raises:
        InputError: a value is out of range.
    """

    heads: Mapping[int, Sequence[int]]
    alpha: float = 5.0
    beta: float = 0.4
    mode: str = "prompt"
    fingerprint: Mapping[str, Any] | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}{nearest(self.mode, MODES)}")
        if not 0 < self.alpha < math.inf:
            raise InputError(f"alpha must be above 0 and finite, got {self.alpha}")
        if not 0 < self.beta <= 1:
            raise InputError(f"beta must be above 0 and at most 1, got {self.beta}")
        if not isinstance(self.heads, Mapping):
            raise InputError(f"heads must be a mapping of layers to lists of heads, got {brief(self.heads)}")
        found = {}
        for layer, maps in self.heads.items():
            numbers = [int(layer), *map(int, maps)]
            if min(numbers) < 0:
                raise InputError(f"heads: layers and heads are numbered from 0, got {layer}: {list(maps)}")
            if maps:
                found[numbers[0]] = sorted(set(numbers[1:]))
        object.__setattr__(self, "heads", dict(sorted(found.items())))

    def tables(self) -> list[Table]:
        rows = [[layer, ", ".join(map(str, heads))] for layer, heads in self.heads.items()]
        note = f"alpha {self.alpha:g}, beta {self.beta:g}, mode {self.mode}; antiphase.calibrated applies it."
        return [Table(title="Calibrated heads", columns=columns_of("Layer|integer", "Heads"), rows=rows, note=note)]

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, to a temporary file that is then renamed."""
        tree = {"format": FORMAT, **asdict(self)}
        write_atomically(Path(path), (json.dumps(tree, indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan.

        Raises:
            InputError: the file is missing or is not a plan.
        """
        tree = read_json(path, "plan", "give a plan that antiphase calibrate search wrote")
        if "heads" not in tree or tree.pop("format", None) != FORMAT:
            raise InputError(f"this is not a calibration plan of format {FORMAT}", field="plan", path=path)
        fields = set(cls.__dataclass_fields__)
        for name in tree:
            if name not in fields:
                raise InputError(f"unknown field '{name}'{nearest(name, fields)}", field="plan", path=path)
        for name in ("heads", "scores", "fingerprint"):
            is_none = name == "fingerprint" and tree.get(name) is None
            if not is_none and not isinstance(tree.get(name, {}), dict):
                raise InputError(f"{name} must be a mapping, got {tree[name]!r}", field="plan", path=path)
        for name in ("alpha", "beta"):
            if isinstance(tree.get(name, 1.0), bool) or not isinstance(tree.get(name, 1.0), (int, float)):
                raise InputError(f"{name} must be a number, got {tree[name]!r}", field="plan", path=path)
        for layer, maps in tree["heads"].items():
            if not layer.isdecimal() or layer != str(int(layer)):
                raise InputError(f"heads: layers are whole numbers, got {layer!r}", field="plan", path=path)
            if not isinstance(maps, list) or any(type(head) is not int for head in maps):
                raise InputError(
                    f"heads: layer {layer} must have a list of whole numbers, got {maps!r}", field="plan", path=path
                )
        try:
            return cls(**{**tree, "heads": {int(layer): maps for layer, maps in tree["heads"].items()}})
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(str(error), field="plan", path=path) from error

    def check(self, model: PreTrainedModel) -> None:
        """Check that the plan fits a model.

        Raises:
            InputError: it does not, or the model cannot be calibrated.
        """
        refuse_encoder_decoder(model)
        text = model.config.get_text_config()
        if self.fingerprint is not None:
            own = fingerprint(model)
            for name, value in self.fingerprint.items():
                if name == "weights" and not (isinstance(value, list) and any(digest in value for digest in own[name])):
                    raise InputError("the plan was made for another model: the weights differ")
                if name != "weights" and own.get(name) != value:
                    raise InputError(
                        f"the plan was made for another model: its {name} is {value}, this one's {own.get(name)}"
                    )
        layers, maps = getattr(text, "num_hidden_layers", 0), getattr(text, "num_attention_heads", 0)
        if not maps:
            raise InputError(
                f"models of type {model.config.model_type} have no attention heads that could be calibrated"
            )
        for layer, heads in self.heads.items():
            if layer >= layers:
                raise InputError(f"the plan names layer {layer}, but the model's layers are 0 to {layers - 1}")
            if heads[-1] >= maps and heads[-1] >= (count := heads_by_layer(model).get(layer, 0)):
                raise InputError(f"the plan names head {heads[-1]} of layer {layer}, but heads are 0 to {count - 1}")


def heads_by_layer(model: PreTrainedModel) -> dict[int, int]:
    """Number of softmax maps of each layer that attends, as the model forms them on two tokens.

    Configurations of models whose layers have different numbers of heads say so in many ways.
    """
    found: dict[int, int] = {}
    if not getattr(model.config.get_text_config(), "num_attention_heads", 0):
        return found
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    with (
        torch.no_grad(), evaluation_mode(model),
        observed(model, lambda call, *_: found.update({call.layer: call.query.shape[1]})),
    ):  # fmt: skip
        model(input_ids=ids)
    return found


def fingerprint(model: PreTrainedModel) -> dict[str, Any]:
    """Identifies a model for plans: its sizes, and digests of some values of every weight.

    The values are digested in bf16, both directly and by way of fp16, so that a model loaded in half precision shares
    one of the digests and is still recognized.
    """
    text = model.config.get_text_config()
    digests = [hashlib.sha256(), hashlib.sha256()]
    for name, weight in model.named_parameters():
        some = weight.detach().reshape(-1)[:DIGESTED_VALUES].cpu()
        for digest, numbers in zip(digests, (some, some.to(torch.float16)), strict=True):
            bits = numbers.to(torch.bfloat16).view(torch.int16).tolist()
            digest.update(f"{name}{tuple(weight.shape)}{bits}".encode())
    sizes = {name: getattr(text, name) for name in IDENTIFYING_FIELDS if hasattr(text, name)}
    return {**sizes, "weights": [digest.hexdigest() for digest in digests]}
