"""The rows of ``antiphase ablations``: what each changes in the model, what it departs from, and the paper's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from antiphase.base.errors import InputError, nearest
from antiphase.base.typed import dotted
from antiphase.lab.settings.arms import (
    Arm,
    Changes,
    differential,
    grouped_v2,
    half_the_heads,
    map_width,
    rival,
    softmax,
)
from antiphase.lab.settings.presets import ModelSettings, Preset, RunSettings, arm_run
from antiphase.layers.registry import ACROSS
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.transformer import AntiphaseForCausalLM

RATIOS = (4, 3, 2)
"""Heads for each noise head in grouped differential attention; the first that divides the heads (the paper: 4 or 3)."""

NAMED = {"softmax": "S", "differential": "V1", "differential_v2": "V2"}
"""The arms with a name of these kinds of attention."""


@dataclass(frozen=True)
class Ablation:
    """A row of the table."""

    about: str
    changes: Arm
    against: str | None = None
    """The row that it departs from."""
    paper: tuple[float, float, float] | None = None
    """Loss, AR-hit and others in the paper's table 6 (1.4B parameters)."""
    equal: bool = False
    """Whether the MLP's width compensates for parameters that only the row or only ``against`` has."""


def _v2(kind: str = "differential_v2", **more: Any) -> Arm:
    def changes(model: ModelSettings) -> Changes:
        return {"attention_type": kind, "num_key_value_heads": _v2_keys(model), "head_dim": map_width(model), **more}

    return changes


def _v2_keys(model: ModelSettings) -> int:
    """Key heads of V2 and of its baselines: a quarter of the maps, which 1, 1.5 and 2 times its heads can share."""
    maps = model.num_attention_heads
    return maps // 4 if maps % 8 == 0 else maps // 2


def _softmax_beside_v2(factor: float) -> Arm:
    def changes(model: ModelSettings) -> Changes:
        heads, keys = factor * model.num_attention_heads / 2, _v2_keys(model)
        if heads % keys:
            raise InputError(f"{heads:g} softmax heads cannot share the {keys} keys of V2; it takes 8, 16, ... maps")
        return {
            "attention_type": "softmax", "num_attention_heads": int(heads), "num_key_value_heads": keys,
            "head_dim": map_width(model),
        }  # fmt: skip

    return changes


def _grouped(model: ModelSettings) -> Changes:
    heads = model.num_attention_heads // 2
    ratio = next((ratio for ratio in RATIOS if heads % ratio == 0), None)
    if ratio is None:
        raise InputError(f"{heads} differential heads are not a multiple of 2 or 3, so no noise head can be shared")
    noise = heads // ratio
    return {"attention_type": "differential", "num_noise_heads": noise, "num_key_value_heads": 2 * noise}


ABLATIONS: dict[str, Ablation] = {
    "softmax": Ablation("softmax attention", softmax(), paper=(3.087, 0.898, 3.272)),
    "softmax-half-heads": Ablation(
        "half the heads, twice as wide", half_the_heads(), "softmax", paper=(3.088, 0.899, 3.273)
    ),
    "softmax-half-heads-norm": Ablation(
        "and a norm of each head", half_the_heads(head_norm=True), "softmax", paper=(3.086, 0.899, 3.271)
    ),
    "differential": Ablation(
        "differential attention", differential(), "softmax", paper=(3.062, 0.880, 3.247)
    ),
    "added": Ablation("the second map added instead", differential(second_map="added"), "differential"),
    "first-map": Ablation("the first map alone", differential(second_map="none"), "differential"),
    "no-norm": Ablation(
        "no norm of each head", differential(head_norm=False), "differential", paper=(3.122, 0.911, 3.309)
    ),
    "lambda-init-0.8": Ablation(
        "λinit 0.8 in every layer", differential(lambda_init=0.8), "differential", paper=(3.065, 0.883, 3.250)
    ),
    "lambda-init-0.5": Ablation(
        "λinit 0.5 in every layer", differential(lambda_init=0.5), "differential", paper=(3.066, 0.882, 3.251)
    ),
    "lambda-fixed": Ablation("λ = λinit, not learned", differential(lambda_form="fixed"), "differential"),
    "lambda-scalar": Ablation("λ a learned number", differential(lambda_form="scalar"), "differential"),
    "lambda-head": Ablation("λ a learned number by head", differential(lambda_form="head"), "differential"),
    "no-factor": Ablation("no factor 1 - λinit", differential(head_scale=False), "differential"),
    "no-norm-no-factor": Ablation(
        "neither norm nor factor", differential(head_norm=False, head_scale=False), "differential"
    ),
    "v2": Ablation("differential V2", _v2(), "softmax-2h"),
    "softmax-1h": Ablation("softmax, V2's number of heads", _softmax_beside_v2(1), "v2"),
    "softmax-1.5h": Ablation("softmax, V2's parameters", _softmax_beside_v2(1.5), "v2"),
    "softmax-2h": Ablation("softmax, V2's number of maps", _softmax_beside_v2(2)),
    "v2-across": Ablation("V2, pairs read different keys", _v2(ACROSS), "v2"),
    "v2-no-lambda": Ablation("V2 without λ", _v2(lambda_form="fixed"), "v2"),
    "v2-no-sigmoid": Ablation("V2, λ without its sigmoid", _v2(lambda_form="linear"), "v2"),
    "gated": Ablation("gated softmax (2505.06708)", softmax(output_gate=True), "softmax", equal=True),
    "sink-logits": Ablation("learned sink logits", softmax(sink_logits=True), "softmax", equal=True),
    "grouped": Ablation("grouped differential (2510.06949)", _grouped, "differential", equal=True),
    "grouped-v2": Ablation("V2, grouped and gated (Motif-3's form)", grouped_v2, "v2", equal=True),
    "softmax-1": Ablation("softmax-1", rival("softmax_one"), "softmax"),
    "softpick": Ablation("softpick (2504.20966)", rival("softpick"), "softmax"),
    "cog": Ablation("Cog attention (2411.07176)", rival("cog"), "softmax"),
    "exclusive": Ablation("exclusive attention (2603.09078)", rival("exclusive"), "softmax"),
}  # fmt: skip
"""All rows, in the order of the table."""
TABLE_6 = (
    "softmax", "softmax-half-heads", "softmax-half-heads-norm", "differential", "no-norm", "lambda-init-0.8",
    "lambda-init-0.5", "lambda-fixed", "lambda-scalar", "lambda-head", "no-factor", "no-norm-no-factor",
)  # fmt: skip
"""Rows that are trained unless others are named: the paper's, the forms of λ, and the parts that are said to let it
train."""


def ablation_preset(
    preset: Preset, names: Sequence[str] = (), *, rivals: bool = False
) -> tuple[Preset, dict[str, str]]:
    """The comparison of the rows, and the reasons why rows that were not named are left out.

    A row takes the settings that the preset's arm of its ``attention_type`` has (its learning rate, say).

    Args:
        names: rows; what they depart from joins them. Empty: ``TABLE_6``, with ``rivals`` all.

    Raises:
        InputError: an unknown row, or one that these sizes cannot have.
    """
    if preset.run.model.kind != "transformer":
        raise InputError(f"model.kind must be transformer, got {preset.run.model.kind}")
    if unknown := [name for name in names if name not in ABLATIONS]:
        raise InputError(f"--rows names {unknown[0]!r}{nearest(unknown[0], ABLATIONS)}")
    wanted = set(names) or set(ABLATIONS if rivals else TABLE_6)
    while more := {ABLATIONS[name].against for name in wanted} - wanted - {None}:
        wanted |= {name for name in more if name is not None}
    left_out: dict[str, str] = {}
    arms: dict[str, dict[str, Any]] = {}
    runs: dict[str, RunSettings] = {}
    for name in [name for name in ABLATIONS if name in wanted]:
        try:
            arms[name] = _arm(preset, name)
            runs[name] = arm_run(preset.run, replace(preset.compare, arms={name: arms[name]}, also={}), name, seed=0)
            parameter_count(runs[name])
        except InputError as error:
            if name in names:
                raise InputError(f"--rows {name}: {error}") from None
            left_out[name] = str(error)
            arms.pop(name, None)
    for name in [name for name in arms if ABLATIONS[name].against in left_out]:
        left_out[name] = f"{ABLATIONS[name].against}, which it departs from, is left out"
        del arms[name]
    for name in [name for name in arms if ABLATIONS[name].equal]:
        arms[name]["model.intermediate_size"] = _equalized(runs[name], runs[ABLATIONS[name].against or name])
    if len(arms) < 2:
        raise InputError(f"--rows leaves nothing to compare: {'; '.join(left_out.values()) or ', '.join(arms)}")
    compare = replace(preset.compare, arms=arms, also={})
    return replace(preset, compare=compare), left_out


def _arm(preset: Preset, name: str) -> dict[str, Any]:
    changes = ABLATIONS[name].changes(preset.run.model)
    kind = changes["attention_type"]
    arm = kind if kind == "differential" else "differential_v2" if kind in ("differential_v2", ACROSS) else "softmax"
    known = preset.compare.arms
    given = dotted(known.get(arm, known.get(NAMED[arm], {})))
    return given | {f"model.{field}": value for field, value in changes.items()}


def parameter_count(run: RunSettings) -> int:
    """Parameters of the run's model with a vocabulary of eight words, which is enough to compare models by.

    Raises:
        InputError: sizes that do not fit; the message names the field.
    """
    positions = ("rope_theta", "partial_rotary_factor")  # have no parameters
    fields = {name: value for name, value in vars(run.model).items() if name not in ("kind", *positions)}
    fields["max_position_embeddings"] = fields["max_position_embeddings"] or run.data.sequence_length
    with torch.device("meta"):
        return int(AntiphaseForCausalLM(AntiphaseConfig(**{**fields, "vocab_size": 8})).num_parameters())


def _equalized(run: RunSettings, target: RunSettings) -> int:
    """The width of the MLP that gives a run the target's parameters, as nearly as whole channels can.

    Raises:
        InputError: not even the narrowest MLP does.
    """
    model = run.model
    surplus = parameter_count(run) - parameter_count(target)
    matrices = 3 if model.gated_mlp else 2
    width = model.intermediate_size - round(surplus / (matrices * model.hidden_size * model.num_hidden_layers))
    if width < 1:
        raise InputError(
            f"model.intermediate_size ({model.intermediate_size}) is too small to compensate for a gate's parameters"
        )
    return width
