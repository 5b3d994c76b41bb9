"""Models for every command: from safetensors or GGUF, checked whole, or refused in one sentence.

``field``: what the model was given with, for messages, which begin with it and the name: ``model runs/mine: ...``.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from torch import Tensor, dtype
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from antiphase.base.errors import InputError, brief, named
from antiphase.base.files import read_json
from antiphase.base.limits import check_depth, check_returned, check_special
from antiphase.models.source_configs import is_diff_mlx
from antiphase.models.sources.failures import asking_hub, loading, usable_config
from antiphase.models.sources.folders import WeightFiles, local_folder, weight_files
from antiphase.models.sources.gguf import gguf_place, is_gguf, left_out, read_header
from antiphase.models.sources.tokenizers import check_tokenizer, load_tokenizer

PACKED = 32
"""Weights that one stored number may hold: bits of a quantization to one, and a little."""
ORIGIN = "dequantized_from"
"""Field of a configuration: the quantization that the weights went through, such as ``Q4_1``."""
FAULTS = {
    "missing": "it has no weights for {}",
    "surplus": "its configuration has no place for {}",
    "misshapen": "{}",
    "broken": "NaN or infinite weights in {}",
}
"""What is wrong with the tensors of a checkpoint."""


def read_config(name: str, *, field: str) -> PreTrainedConfig:
    """The configuration of a model in a folder, a GGUF file or on the Hub; code that lies beside it is never run.

    Raises:
        InputError: there is no such model, or its configuration cannot be used.
    """
    if is_gguf(name):
        return _gguf_config(name, field)
    if local_folder(name, field) is None:
        with asking_hub(name, field):
            tree, _ = PreTrainedConfig.get_config_dict(name)
            check_depth(tree, named(field, name))
            _check_type(tree, name, field)
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    else:
        tree = read_json(Path(name) / "config.json", field, "save the model once more")
        check_depth(tree, named(field, name))
        _check_type(tree, name, field)
        with usable_config(name, field):
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    with usable_config(name, field):
        if not isinstance(config.architectures, list | None):
            raise TypeError(f"architectures must be a list of names, got {config.architectures!r}")
        if "/" in str(config._attn_implementation):  # transformers would fetch and run it
            raise ValueError(f"the attention {brief(config._attn_implementation)} is code of the Hub, never run here")
        check_returned(config)
        if not isinstance(config.dtype, dtype | None):
            raise TypeError(f"dtype must be the name of a type, got {config.dtype!r}")
    return config


def _check_type(tree: Mapping[str, Any], name: str, field: str) -> None:
    """
    Raises:
        InputError: transformers knows no models of this type, so that only code that lies beside them could read them.
    """
    kind = tree.get("model_type")
    if is_diff_mlx(tree):
        raise InputError("this is a model of diff-mlx", "run antiphase convert first", field=field, path=name)
    if not isinstance(kind, str) or kind in CONFIG_MAPPING:
        return
    remedy = "code that lies beside a model is never run here" if "auto_map" in tree else "a newer one may"
    if kind == "phi4flash":
        remedy = "its attention layers alone can be read, by phi4_flash_attention of antiphase.models.phi4_flash"
    raise InputError(
        f"transformers {transformers.__version__} knows no models of type {brief(kind)}", remedy, field=field, path=name
    )


def _gguf_config(name: str, field: str) -> PreTrainedConfig:
    header = read_header(name, field)
    with loading(f"{named(field, name)}: its header cannot be used"):
        config = AutoConfig.from_pretrained(**gguf_place(name))
    if header.quantization is not None:
        setattr(config, ORIGIN, header.quantization)
    return config


def origin_of(name: str, *, field: str = "model") -> str | None:
    """The quantization that a model's weights went through, such as ``Q4_1``; None: none that is known.

    Raises:
        InputError: as ``read_config``.
    """
    found = (
        read_header(name, field).quantization
        if is_gguf(name)
        else getattr(read_config(name, field=field), ORIGIN, None)
    )
    return found if isinstance(found, str) else None


def read_model(
    name: str,
    choose: Callable[[PreTrainedConfig], Any],
    *,
    field: str = "model",
    kind: str = "causal language model",
    whole: str = "whole model",
    dtype: str | None = None,
    device_map: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model on the CPU, with every weight taken from its checkpoint, and its tokenizer.

    Args:
        choose: the class of transformers that makes the model of a configuration.
        dtype: of the weights in memory, such as ``bfloat16``; None: as they are stored, float32 for a GGUF file.
        device_map: how accelerate spreads the model over devices, such as ``auto``; None: it stays on the CPU.
        kind: what such a model is called.
        whole: what one without missing tensors is called.

    Raises:
        InputError: there is none under this name, its files cannot be read, tensors or tokenizer do not fit its
            configuration, or weights are not finite. It names the first of them.
    """
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        raise InputError(
            f"{named('device_map')} needs the package accelerate",
            f"run pip install accelerate, or give {named('device')}",
        )
    config = read_config(name, field=field)
    auto = choose(config)
    if type(config) not in auto._model_mapping:
        raise InputError(
            f"{named(field, name)} is no {kind}, but a model of type {config.model_type!r}",
            "give another, or convert it first with antiphase convert",
        )
    if Path(name).is_dir():  # transformers reads a model of the Hub while it fetches it
        stored = weight_files(Path(name), name, field)
        _check_size(auto, config, stored, named(field, name))
    options: dict[str, Any] = {"dtype": dtype or "auto", "device_map": device_map}
    if "float64" in (dtype, str(config.dtype).removeprefix("torch.")):
        options["experts_implementation"] = "eager"  # grouped products of experts have no float64
    if is_gguf(name):  # dequantized in float32: in another format transformers warns of what it does not do here
        options |= {"dtype": "float32", "config": config}
        _check_places(auto, config, name, field)
    with loading(f"{named(field, name)}: no {kind} could be loaded"):
        model = _read_weights(auto, name, named(field, name), whole, options)
    if is_gguf(name) and dtype is not None:
        model = model.to(getattr(torch, dtype))
    check_special(model, named(field, name))
    tokenizer = load_tokenizer(name, field=field)
    check_tokenizer(tokenizer, model, named(field, name))
    return model, tokenizer


def _check_size(auto: Any, config: PreTrainedConfig, stored: WeightFiles, place: str) -> None:
    """Compare the sizes in a configuration with those of its weights, before memory is taken for what is missing.

    Raises:
        InputError: the configuration asks for far more than there is.
    """
    shell = _shell(auto, config, f"{place}: its config.json cannot be used")
    _compare(shell, sum(math.prod(shape) for shape in stored.shapes.values()), place, "config.json")


def _compare(shell: PreTrainedModel, found: int, place: str, told: str) -> None:
    asked = sum(weight.numel() for weight in shell.parameters())
    if asked > PACKED * (found + 1):
        raise InputError(
            f"{place} is no whole model: its {told} asks for {asked:,} weights, and its files hold {found:,}",
            "download or copy it again",
        )


def _check_places(auto: Any, config: PreTrainedConfig, name: str, field: str) -> None:
    """Look for a place for every tensor of a GGUF file.

    Raises:
        InputError: the model of its configuration has none for one of them, or is far larger.
    """
    shell, header = _shell(auto, config, f"{named(field, name)}: its header cannot be used"), read_header(name, field)
    _compare(shell, header.count, named(field, name), "header")
    if unread := left_out(shell, header):
        raise InputError(
            f"{named(field, name)} holds {unread[0]}, for which {type(shell).__name__} read from a GGUF file has no "
            "place",
            "give the model's folder of safetensors",
        )


def _shell(auto: Any, config: PreTrainedConfig, failure: str) -> PreTrainedModel:
    """The model of a configuration, without weights.

    Raises:
        InputError: it has none, which ``failure`` says.
    """
    with loading(failure), torch.device("meta"):
        return auto.from_config(config, trust_remote_code=False)


def _read_weights(auto: Any, name: str, place: str, whole: str, options: Mapping[str, Any]) -> PreTrainedModel:
    """The model with its own weights: transformers alone would draw what is missing, and report it.

    One pass over the weights looks for those that are not finite, at several GB/s, so NumPy need not warn of them.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)
    try:
        with numpy.errstate(invalid="ignore", over="ignore"):
            model, notes = auto.from_pretrained(
                **(gguf_place(name) if is_gguf(name) else {"pretrained_model_name_or_path": name}),
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
    finally:
        logger.removeFilter(_is_no_report)
    if hasattr(model, "hf_quantizer"):  # of a GGUF file, whose weights are ordinary ones now
        model.hf_quantizer.remove_quantization_config(model)
    check_tensors(
        place,
        whole=whole,
        missing=_without_pooler(model, notes["missing_keys"]),
        surplus=[key for key in notes["unexpected_keys"] if _is_own(model) or _is_of_a_layer(model, key)],
        misshapen={key: (found, expected) for key, found, expected in notes["mismatched_keys"]},
        broken=(key for key, weight in model.named_parameters() if not is_finite(weight)),
    )
    return model


def _without_pooler(model: PreTrainedModel, missing: Iterable[str]) -> list[str]:
    """Missing tensors, after the removal of a pooler that the checkpoint lacks and the model's class can do without."""
    missing, pooler = list(missing), getattr(model, "pooler", None)
    if pooler is None or "add_pooling_layer" not in inspect.signature(type(model)).parameters:
        return missing
    own = {f"pooler.{name}" for name, _ in pooler.named_parameters()}
    if not own <= set(missing):
        return missing
    model.pooler = None
    return [name for name in missing if name not in own]


def _is_no_report(line: logging.LogRecord) -> bool:
    """Not the list of what a checkpoint lacks: here that is an error, told in one sentence."""
    return "LOAD REPORT" not in line.getMessage()


def _is_of_a_layer(model: PreTrainedModel, key: str) -> bool:
    """Whether a surplus tensor is a bias, or the like, of a layer that the configuration makes without it.

    What else a checkpoint of another package has too many may be a head that the model's class has not.
    """
    place, _, leaf = key.rpartition(".")
    layers = dict(model.named_modules())
    named = (place, f"{model.base_model_prefix}.{place}")
    return any(leaf in layers[name]._parameters for name in named if name in layers)


def _is_own(model: PreTrainedModel) -> bool:
    """Whether the checkpoint was written by exactly this class of this package."""
    return type(model).__module__.startswith("antiphase.") and type(model).__name__ in (
        model.config.architectures or []
    )


# ------------------------------------------------------------------------------------------ tensors


def check_tensors(
    place: str,
    *,
    whole: str = "whole model",
    missing: Iterable[str] = (),
    surplus: Iterable[str] = (),
    misshapen: Mapping[str, tuple[Iterable[int], Iterable[int]]] | None = None,
    broken: Iterable[str] = (),
) -> None:
    """
    Args:
        place: what holds the tensors.
        misshapen: shape found and shape expected, of tensors where they differ.
        broken: tensors with numbers that are not finite.

    Raises:
        InputError: any of these; it names the first and counts the others.
    """
    shapes = misshapen or {}
    for fault, names in (("missing", missing), ("surplus", surplus), ("misshapen", shapes), ("broken", broken)):
        if not (listed := sorted(names)):
            continue
        told = listed[0]
        if fault == "misshapen":
            found, expected = map(tuple, shapes[told])
            told = f"{told} has the shape {found}, expected {expected}"
        if len(listed) > 1:
            told += f" and {len(listed) - 1} more"
        raise InputError(f"{place} is no {whole}: {FAULTS[fault].format(told)}")


def check_shapes(
    found: Mapping[str, Iterable[int]], expected: Mapping[str, Iterable[int]], place: str, *, whole: str = "whole model"
) -> None:
    """Compare what a checkpoint or state dict holds with what its configuration asks for.

    Raises:
        InputError: a tensor is missing, surplus, or of another shape.
    """
    shared = {name: (tuple(found[name]), tuple(expected[name])) for name in set(found) & set(expected)}
    check_tensors(
        place,
        whole=whole,
        missing=set(expected) - set(found),
        surplus=set(found) - set(expected),
        misshapen={name: shapes for name, shapes in shared.items() if shapes[0] != shapes[1]},
    )


def is_finite(weight: Tensor) -> bool:
    """Whether no entry is NaN or infinite, without a copy in memory; whole numbers are finite."""
    if not weight.is_floating_point() or not weight.numel():
        return True
    wide = weight.detach() if weight.element_size() > 1 else weight.detach().float()  # torch has no order of 8 bits
    return all(bool(end.isfinite()) for end in wide.aminmax())
