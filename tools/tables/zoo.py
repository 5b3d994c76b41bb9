"""The tables of architectures on README.md and the pages, from the record of ``tests/zoo/run.py``."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from antiphase.base.records import Record
from antiphase.lab.scoring.states import KEYED
from antiphase.models.source_formats import ARCHITECTURES

RECORDS = Path(__file__).resolve().parents[2] / "records"
FAMILIES = {"causal": "causal", "encoder": "encoders", "encoder-decoder": "encoder–decoders"}
CELLS = {
    "attention": "`attn_implementation=\"antiphase\"` gives the logits of transformers' own",
    "no_leak": "a token sees no later one that it would not see with transformers' own",
    "padding": "texts of unequal lengths together",
    "chunks": "a long text read in parts",
    "options": "options after a prompt",
    "statistics": "attention statistics (`look` for pairs)",
    "calibration": "calibration",
}  # fmt: skip
SHOWN = {"attention": "attention", "no_leak": "attention", "padding": "unequal lengths", "chunks": "long texts"}
"""Short names of cells whose own would not be understood."""
WELL_KNOWN = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma",
    "gpt_neox": "GPT-NeoX (Pythia)", "stablelm": "StableLM",
    "starcoder2": "StarCoder2", "diffllama": "DiffLlama", "qwen3_5": "Qwen3.5", "qwen3_moe": "Qwen3-MoE",
    "gemma3_text": "Gemma 3", "phi3": "Phi-3", "olmo2": "OLMo 2", "smollm3": "SmolLM3", "mixtral": "Mixtral",
    "deepseek_v3": "DeepSeek-V3", "granite": "Granite", "cohere2": "Cohere 2", "gpt2": "GPT-2",
    "jamba": "Jamba", "gpt_oss": "gpt-oss", "gemma2": "Gemma 2", "deepseek_v32": "DeepSeek-V3.2",
    "falcon": "Falcon", "bloom": "BLOOM", "mpt": "MPT", "mamba": "Mamba", "bert": "BERT", "roberta": "RoBERTa",
    "modernbert": "ModernBERT", "distilbert": "DistilBERT", "deberta-v2": "DeBERTa v2 and v3",
    "bart": "BART", "marian": "Marian", "t5": "T5",
}  # fmt: skip
"""Architectures in the short table, in its order, by their names in transformers."""
NO_ATTENTION, OWN_CODE = "has no attention", "attention in code of its own"
REASONS = {
    "softcap": "caps its attention logits",
    "indices": "picks keys by an index",
    "position_bias": "adds a bias to its scores",
    "s_aux": "has learned sinks",
    "same layer numbers": "encoder and decoder number layers alike",
    "no eager attention function": NO_ATTENTION,
    "transformers' attention interface": OWN_CODE,
    "in code of their own": OWN_CODE,
    "mean nothing": "logits depend on later tokens",
    "not the text's own tokens": "has keys that are no tokens",
    "additive biases": "has an additive mask",
    "more than once in a forward pass": "attends twice in a layer",
}
STATES = ("equal", "refused", "listed")
"""From best to worst; any other state is worse."""


def counts() -> list[list[str]]:
    """How many architectures of each family are right, refused or listed in each cell, in both number formats."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in _rows():
        for cell, by_dtype in row["cells"].items():
            found[row["family"], cell][_worst(by_dtype)] += 1
    rows = [["", *FAMILIES.values()]]
    for cell, title in CELLS.items():
        rows.append([title, *(_counted(found[family, cell]) for family in FAMILIES)])
    return rows


def families(*, short: bool = False) -> list[list[str]]:
    """What well-known architectures serve: those that have the same answers, in a row each."""
    head = ["model", "look, probe", "calibrate", "evaluate", "convert", "fast attention", "why not"]
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    found = {row["name"]: row["cells"] for row in _rows()}
    for name, title in WELL_KNOWN.items():
        answers = _answers(name, found[name])
        groups[answers[:4] if short else answers].append(title)
    return [head[:5] if short else head, *([", ".join(names), *answers] for answers, names in groups.items())]


def _answers(name: str, cells: dict[str, dict[str, dict[str, Any]]]) -> tuple[str, ...]:
    equal = {cell: _worst(by_dtype) == "equal" for cell, by_dtype in cells.items()}
    why = " ".join(found.get("why", "") for by_dtype in cells.values() for found in by_dtype.values())
    reason = next((short for words, short in REASONS.items() if words in why), "")
    texts = [equal[cell] for cell in ("padding", "chunks", "options") if cell in cells]
    fast = equal["attention"] and reason not in (OWN_CODE, NO_ATTENTION)
    states = _carries_state(name)
    calibrates, converts = equal["calibration"] and not states, name in ARCHITECTURES
    asked = (equal["statistics"], calibrates, all(texts) if texts else None, converts, fast)
    reason = reason or ("carries a state" if states and equal["calibration"] else "")
    return (*("–" if answer is None else "yes" if answer else "no" for answer in asked), reason)


def _carries_state(name: str) -> bool:
    """Whether a prompt cannot be read before its answers, as commands of calibration do (``scoring/states.py``)."""
    config = AutoConfig.for_model(name)
    kind = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if kind is None:
        return False
    return bool(kind._is_stateful) or any(type(layer) not in KEYED for layer in DynamicCache(config=config).layers)


def exceptions() -> list[list[str]]:
    """Which architectures a measurement does not serve, by the reason; without those that are listed."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _rows():
        cells: dict[str, list[str]] = defaultdict(list)
        for cell, by_dtype in row["cells"].items():
            refused = [found for found in by_dtype.values() if found["state"] not in ("equal", "listed")]
            for why in {found.get("why", found["state"]) for found in refused}:
                cells[_short(why)].append(cell)
        for why, where in cells.items():
            shown = ", ".join(dict.fromkeys(SHOWN.get(cell, cell) for cell in where))
            names[why, "everything" if len(where) == len(row["cells"]) else shown].append(row["name"])
    rows = [["reason", "what it affects", "architectures"]]
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return rows + [[why, where, ", ".join(sorted(set(found)))] for (why, where), found in ordered]


def _short(why: str) -> str:
    """The reason in a few words, where the sentence is a common one."""
    return next((short for words, short in REASONS.items() if words in why), why.rstrip(".").removeprefix("… "))


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Record.load(RECORDS / "zoo.json").values["rows"]
    return rows


def _worst(by_dtype: dict[str, dict[str, Any]]) -> str:
    states = [found["state"] for found in by_dtype.values()]
    return max(states, key=lambda state: STATES.index(state) if state in STATES else len(STATES))


def _counted(states: Counter[str]) -> str:
    if not states:
        return "–"
    failing = states.total() - sum(states[state] for state in STATES)
    parts = [f"{states[state]} {state}" for state in STATES if states[state]]
    return ", ".join([*parts, *([f"{failing} failing"] if failing else [])])
