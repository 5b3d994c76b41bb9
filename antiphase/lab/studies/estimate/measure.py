"""``antiphase estimate``: the least division of a model over a fleet that fits, and how long its training takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.base.folders.ownership import check_empty, make_folder
from antiphase.base.records import Record, finite
from antiphase.lab.settings.presets import Preset, RunSettings, arm_run, load_preset
from antiphase.lab.studies.estimate import GIGA, GPUS, EstimatedRun, Estimates, EstimateSettings
from antiphase.lab.studies.estimate.formulas import Memory, ModelSizes, Shape, Step, communication, memory
from antiphase.lab.studies.estimate.operations import forward_flops
from antiphase.lab.text.tokenization import id_count
from antiphase.lab.training.distributed import mesh_sizes
from antiphase.lab.training.run_model import check_mesh, sized_config, why_undivided
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.sources.tokenizers import load_tokenizer
from antiphase.models.tensor_plan import divides_mlp
from antiphase.models.transformer import AntiphaseForCausalLM

SECONDS_A_DAY = 86_400


def estimate(
    settings: EstimateSettings,
    output: Path | None,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[float, int], None] = lambda done, count: None,
) -> Record:
    """The record of kind "estimate", with a row for each arm; it is saved if there is an ``output``.

    Raises:
        InputError: settings that cannot be used, or a fleet that is too small.
    """
    if output is not None:
        check_empty(output)
    settings.check()
    started = time.perf_counter()
    preset = load_preset(settings.preset, list(settings.settings), data=["text"])
    record = Record(
        kind="estimate", values=finite(Estimates(rows=estimated(preset, settings))),
        config=finite({"fleet": asdict(settings), "gpu": GPUS[settings.gpu], "run": preset.run}), seeds=[],
        seconds=time.perf_counter() - started,
    )  # fmt: skip
    if output is not None:
        make_folder(output)
        record.save(output)
    return record


def estimated(preset: Preset, fleet: EstimateSettings) -> list[EstimatedRun]:
    """A row for each arm of a preset.

    Raises:
        InputError: sizes that do not fit, a kind of model whose cost is not known here, or a fleet that is too small.
    """
    return [_estimated(arm, arm_run(preset.run, preset.compare, arm, seed=0), fleet) for arm in preset.compare.arms]


def sizes_of(run: RunSettings) -> tuple[AntiphaseForCausalLM, ModelSizes]:
    """The model of a run on the meta device, which needs no memory, and the sizes of what a copy has."""
    named = run.data.tokenizer
    config = sized_config(run, vocab_size=id_count(load_tokenizer(named)) if named else run.data.vocabulary_size)
    if not isinstance(config, AntiphaseConfig):
        raise InputError(f"model.kind {run.model.kind}: the cost of a recurrent network is not counted; remove it")
    return _sized(config)


def part_of(run: RunSettings) -> ModelSizes:
    """What one of the GPUs has that divide the heads (``training.mesh.tensor``): a model of so many heads fewer."""
    config, count = sizes_of(run)[1].config, run.training.mesh.tensor
    assert config.num_key_value_heads  # the configuration has filled it in
    config.num_attention_heads //= count
    config.num_key_value_heads //= count
    if divides_mlp(config):
        config.intermediate_size //= count
    return _sized(config)[1]


def _sized(config: AntiphaseConfig) -> tuple[AntiphaseForCausalLM, ModelSizes]:
    with torch.device("meta"):
        model = AntiphaseForCausalLM(config)
    inside = {id(parameter) for parameter in model.model.layers.parameters()}
    layers = [layer for layer in model.model.layers[0].modules() if isinstance(layer, nn.Linear)]
    rounded = {id(parameter) for layer in layers for parameter in layer.parameters()}
    block = tuple(_shape(one, is_rounded=id(one) in rounded) for one in model.model.layers[0].parameters())
    outside = tuple(_shape(parameter) for parameter in model.parameters() if id(parameter) not in inside)
    linear = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    return model, ModelSizes(config, block, outside, linear)


def step_of(run: RunSettings, *, gpus: int, shard: int, context: int = 1) -> Step:
    """How a run's step is made on each of several GPUs; on one with the most sequences, if they are not equal."""
    training, tensor = run.training, run.training.mesh.tensor
    own = _most_sequences(run, groups=gpus // (context * tensor))
    sequences = min(training.micro_batch_size or own, own)
    return Step(
        sequences=sequences, length=run.data.sequence_length, passes=-(-own // sequences), shard=shard,
        replicas=gpus // (shard * context * tensor), context=context, tensor=tensor,
        is_half=training.precision != "float32", is_checkpointed=training.gradient_checkpointing,
    )  # fmt: skip


def _most_sequences(run: RunSettings, *, groups: int) -> int:
    """The most sequences of a batch that one of the groups of GPUs has, for which the others wait."""
    return -(-run.training.batch_size // groups)


def chosen_mesh(sizes: ModelSizes, run: RunSettings, fleet: EstimateSettings) -> tuple[Step, Memory, str]:
    """The division that fits with the fewest GPUs to a sequence and to a copy, because less is sent the fewer, and why.

    A copy is divided over some GPUs of a node, over a node, or over some nodes; a sequence over GPUs of a node. What
    ``training.mesh`` asks for is taken, and heads are divided only if it asks for it.

    Args:
        sizes: of what one GPU has if the run divides heads, else of the model.

    Raises:
        InputError: it fits on no division, or there are more GPUs than sequences in a batch.
    """
    contexts = _contexts(sizes, run, fleet)
    if not contexts:
        raise InputError(
            f"--gpus {fleet.gpus}: a batch has only {run.training.batch_size} sequences (training.batch_size), one for "
            "each GPU at least; give fewer"
        )
    tried: list[tuple[str, int]] = []
    for context in contexts:
        lines = fleet.gpus // (context * run.training.mesh.tensor)
        for shard in _shards(run, lines, fleet.gpus_per_node):
            step = step_of(run, gpus=fleet.gpus, shard=shard, context=context)
            found = memory(sizes, step)
            tried.append((f"{shard}" if context == 1 else f"{shard}, each sequence over {context}", found.total))
            if found.total <= fleet.bytes_each:
                few = fleet.gpus > run.training.batch_size
                return (
                    step,
                    found,
                    ("a batch has fewer sequences than GPUs; " if few else "") + _why(tried, step, fleet),
                )
    shared, least = min(tried, key=lambda one: one[1])
    raise InputError(
        f"--gpus {fleet.gpus} are too small a fleet: shared over {shared}, a step takes {least / GIGA:.1f} GB of each, "
        f"and {fleet.bytes_each / GIGA:.1f} GB are there; give more, or --set training.micro_batch_size=1 or "
        "training.gradient_checkpointing=true"
    )


def _shards(run: RunSettings, lines: int, node: int) -> list[int]:
    """Numbers of GPUs that can share a copy: the run's own, or any within a node, and whole nodes."""
    if _is_given(run):
        return [run.training.mesh.shard]
    fit = [one for one in range(1, lines + 1) if lines % one == 0 and (node % one == 0 or one % node == 0)]
    return list(dict.fromkeys([*fit, lines]))


def _is_given(run: RunSettings) -> bool:
    """Whether the run says how many GPUs share a copy."""
    return run.training.mesh.shard > 1 or run.training.mesh.replicate is not None


def _contexts(sizes: ModelSizes, run: RunSettings, fleet: EstimateSettings) -> list[int]:
    """Numbers of GPUs that can share a sequence and leave each group of them one: the run's own, or any in a node."""
    given, gpus = run.training.mesh.context, fleet.gpus // run.training.mesh.tensor
    numbers = [given] if given > 1 or _is_given(run) else range(1, fleet.gpus_per_node // run.training.mesh.tensor + 1)
    return [
        one for one in numbers
        if gpus % one == 0 and run.data.sequence_length % one == 0
        and gpus // one <= run.training.batch_size and why_undivided(sizes.config, one) is None
    ]  # fmt: skip


def _why(tried: list[tuple[str, int]], step: Step, fleet: EstimateSettings) -> str:
    room, (shared, total) = f"{fleet.bytes_each / GIGA:.1f} GB", tried[-1]
    fits = f"{total / GIGA:.1f} GB of {room}"
    if step.shard == step.context == 1:
        if step.tensor > 1:
            return f"heads divided over {step.tensor} GPUs as asked for, it fits ({fits})"
        return f"a whole copy fits on each GPU ({fits}), and only gradients are sent"
    if len(tried) == 1:
        return f"shared over {shared} GPUs it fits ({fits})"
    before, more = tried[-2]
    return f"shared over {shared} GPUs it fits ({fits}); over {before} it takes {more / GIGA:.1f} GB"


def _estimated(arm: str, run: RunSettings, fleet: EstimateSettings) -> EstimatedRun:
    model, whole = sizes_of(run)
    sizes = whole
    _check_counted(run)
    check_mesh(whole.config, run.training)
    if run.training.mesh.tensor > 1:
        node = min(fleet.gpus, fleet.gpus_per_node)
        if node % run.training.mesh.tensor:
            raise InputError(
                f"training.mesh.tensor={run.training.mesh.tensor} does not divide the {node} GPUs of a node (--gpus, "
                "--gpus-per-node); change one of them"
            )
        sizes = part_of(run)
    mesh_sizes(run.training, fleet.gpus, otherwise="give another number with --gpus")
    step, found, why = chosen_mesh(sizes, run, fleet)
    forward = forward_flops(model, step.length)
    passes = 4 if step.is_checkpointed else 3  # a backward pass is two forward passes; checkpoints repeat one
    tokens = run.training.steps * run.training.batch_size * step.length
    groups = step.replicas * step.shard
    busy = run.training.batch_size / (groups * _most_sequences(run, groups=groups))  # share of the time, on average
    speed = busy * fleet.flops / (passes * forward)
    sent = communication(sizes, step)
    return EstimatedRun(
        arm=arm, parameters=whole.parameters, tokens=tokens, flops_a_token=3 * forward, flops=3 * forward * tokens,
        replicate=step.replicas, shard=step.shard, context=step.context, tensor=step.tensor, why=why,
        sequences=step.sequences, passes=step.passes, total=found.total, tokens_a_second=speed,
        days=tokens / speed / SECONDS_A_DAY, **asdict(found), **asdict(sent),
    )  # fmt: skip


def _check_counted(run: RunSettings) -> None:
    """
    Raises:
        InputError: the formulas do not count such a run.
    """
    if run.training.precision == "float64":
        raise InputError("training.precision=float64 is not counted; give float32 or bfloat16")
    if run.training.trained != "all":
        raise InputError(f"training.trained={run.training.trained} is not counted, only the training of all; remove it")
    for field, uncounted in (("attention_type", ("cog", "exclusive", "softpick")), ("output_gate", (True,))):
        if (value := getattr(run.model, field)) in uncounted:
            raise InputError(f"model.{field}={value} is not counted; remove it, or the arm that sets it")


def _shape(parameter: Tensor, *, is_rounded: bool = False) -> Shape:
    rows = parameter.shape[0] if parameter.dim() else 1
    return Shape(rows, parameter.numel() // rows, is_rounded)
