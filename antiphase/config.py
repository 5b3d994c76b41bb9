"""Settings of a run: YAML presets and ``KEY=VALUE`` overrides, read into typed dataclasses.

An unknown key is an error that names the nearest known one. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from antiphase.errors import InputError, nearest
from antiphase.reading.files import parse_yaml, read_yaml
from antiphase.typed import assign, bounded, build, check_bounds, dotted, section

SHARED_BY_ARMS = ("training.seed", "training.steps", "training.batch_size", "training.precision", "training.device")
"""Settings, besides data and evaluation, that must be equal in both arms of a fair comparison."""

SMALLEST_WEIGHT = 0.0001
"""Smallest weight of a source in a mixture; weights are exact to this number."""


@dataclass(kw_only=True)
class ModelSettings:
    """Size and shape of a model: the arguments of ``AntiphaseConfig``, with ``rope_theta`` for its rope_parameters.

    A recurrent network (``kind``) uses few of them.
    """

    hidden_size: int
    num_hidden_layers: int = bounded(least=1, most=10_000)
    intermediate_size: int
    num_attention_heads: int
    """Softmax maps per layer; a differential layer has half as many heads."""
    kind: Literal["transformer", "rnn", "lstm"] = "transformer"
    """``rnn`` and ``lstm`` use only hidden_size (states and embeddings), num_hidden_layers and tie_word_embeddings."""
    vocab_size: int | None = bounded(None, least=1)
    """Rows of the embeddings, at least as many as the tokenizer has tokens; None means as many."""
    attention_type: Literal["softmax", "differential", "differential_v2", "differential_v2_across"] = "differential"
    num_key_value_heads: int | None = None
    """Key maps per layer; None means ``num_attention_heads``, or half of it in V2."""
    head_dim: int | None = None
    """Width of one map; None means ``hidden_size / num_attention_heads``."""
    max_position_embeddings: int | None = None
    """Longest sequence the model accepts; None means ``data.sequence_length``."""
    rope_theta: float = bounded(10000.0, above=0)
    rms_norm_eps: float = bounded(1e-6, above=0)
    head_norm_eps: float = bounded(1e-5, above=0)
    initializer_range: float = bounded(0.02, above=0)
    tie_word_embeddings: bool = True
    lambda_form: str | None = None
    """Ablations and competing methods, as in ``AntiphaseConfig``; None and false mean the published form."""
    lambda_init: float | None = None
    head_norm: bool | None = None
    head_scale: bool | None = None
    output_gate: bool = False
    sink_logits: bool = False
    num_noise_heads: int | None = None
    dex_heads: list[list[int]] | None = None
    dex_steps: int = 0
    """Training steps over which DEX anneals its λ; at most ``training.steps``."""
    initializer: Literal["normal", "fan_in"] = "normal"
    """Initialization of matrices: N(0, initializer_range²), or as in the authors' code (microsoft/unilm, YOCO): linear
    layers U(±1/√fan_in), embeddings N(0, 1/hidden_size) times √hidden_size.
    """
    embedding_range: float | None = None
    """Standard deviation of the initial embeddings; None means that of ``initializer``."""
    embedding_multiplier: float | None = None
    """Factor of the embeddings in the forward pass; None means that of ``initializer``."""
    residual_init_scale: float | Literal["depth"] = 1.0
    """Factor on the initial output projections of attention and MLP; ``depth`` means 1/√(2·num_hidden_layers)."""
    head_norm_init: float = 1.0
    """Initial weight of the norm of each head's output."""


@dataclass(kw_only=True)
class DataSettings:
    """The data of a run. ``synthetic`` needs no file; ``text`` reads ``paths``."""

    source: Literal["synthetic", "text"] = "synthetic"
    sequence_length: int = bounded(least=2)
    """Tokens per training sequence."""
    needles: int = bounded(8, least=1)
    """Key-value facts per retrieval sequence."""
    queries: int = bounded(12, least=1)
    """Questions at the end of a retrieval sequence, drawn with replacement."""
    asked_together: int = bounded(1, least=1)
    """Largest number of different facts that one question of a training sequence asks for; each sequence draws its
    number between 1 and this. Measurements during training ask for one at a time.
    """
    needle_share: float = bounded(0.7, least=0, most=1)
    """Share of retrieval sequences in a batch; the rest after all shares is repeated tokens (synthetic) or text."""
    label_share: float = bounded(0.0, least=0, most=1)
    """Share of each batch that is words with labels to learn in context (``text``)."""
    repeat_share: float = bounded(0.0, least=0, most=1)
    """Share of each batch that is repeated random tokens (``text``), as in ``synthetic``: from the second time on, each
    can be found by looking back, and only these count in the loss.
    """
    long_share: float | None = bounded(None, least=0, most=1)
    """Share of the text sequences that are each cut from a single document, so that long documents have more weight
    (length upsampling, Fu et al. 2402.10171); None means consecutive blocks of the text.
    """
    keys: int = bounded(64, least=1, most=1_000_000)
    """Number of different keys (``synthetic``)."""
    numbers: int = bounded(100, least=1, most=1_000_000)
    """Number of different values (``synthetic``)."""
    fillers: int = bounded(200, least=1, most=1_000_000)
    """Number of different filler words (``synthetic``)."""
    paths: list[str] = field(default_factory=list)
    """Files, folders or Hub dataset names to train on (``text``); the flag is ``--data``."""
    validation: list[str] = field(default_factory=list)
    """The same for validation (``--validation``); if empty, ``validation_share`` of ``paths`` is held out."""
    validation_share: float = bounded(0.05, above=0, below=1)
    text_field: str | None = None
    """Column that contains the text in tables; None means ``text``, or the only column of strings."""
    tokenizer: str | None = None
    """Folder or Hub name of a tokenizer; None means a byte-level BPE trained on ``paths`` and the tasks' words."""
    vocabulary_size: int = 4096
    """Vocabulary size of the tokenizer trained here."""
    vocabulary_sample: int = bounded(1 << 30, least=1)
    """Largest text in bytes that this tokenizer is trained on as a whole; of a larger one, shards are drawn, up to so
    many characters.
    """
    vocabulary_seed: int = 0
    """Seed of that draw."""
    weights: list[float] = field(default_factory=list)
    """Share of each of ``paths`` in the text sequences, adding up to 1; needs ``validation``. Empty means that all are
    one text, in which each has the share of its length.
    """
    order: Literal["permutation", "keyed"] = "permutation"
    """How the blocks of text are shuffled: a stored permutation, which takes 8 bytes per block in each process, or a
    keyed one, which takes none (``KeyedPermutation``). Both depend only on the seed, and differ from each other.
    """
    workers: int | None = bounded(None, least=1)
    """Processes that tokenize; None means one per core. They change no token."""
    cache: str | None = None
    """Folder for the packed tokens, shared between runs; None means inside the run's own folder."""


@dataclass(kw_only=True)
class MeshSettings:
    """How the processes of a run divide it: ``replicate`` times ``shard`` times ``context`` times ``tensor`` of them.

    Each of ``replicate`` times ``shard`` groups has its own sequences.
    """

    replicate: int | None = bounded(None, least=1)
    """Copies of the model; None means as many as the number of processes allows."""
    shard: int = bounded(1, least=1)
    """Processes that divide the weights, gradients and optimizer states of one copy between them (FSDP2)."""
    context: int = bounded(1, least=1)
    """Processes that divide the tokens of each sequence between them; it must divide ``data.sequence_length`` and the
    heads.
    """
    tensor: int = bounded(1, least=1)
    """Processes that divide the heads and the channels of the MLP between them; it must divide both."""


@dataclass(kw_only=True)
class TrainingSettings:
    """One training run, with the paper's defaults (Ye et al., 2410.05258, appendix D)."""

    steps: int = bounded(least=1)
    """Optimizer steps."""
    decay_steps: int | None = None
    """Step at which the linear decay reaches zero, possibly after the end of the run; None means ``steps``."""
    batch_size: int = bounded(64, least=1)
    """Sequences per step, over all processes."""
    micro_batch_size: int | None = bounded(None, least=1)
    """Sequences in one forward pass of one process; None means all sequences of the process."""
    learning_rate: float = bounded(3e-4, above=0)
    """Peak learning rate of the schedule."""
    lambda_rate: float = bounded(1.0, above=0)
    """Learning rate of λ's parameters, as a multiple of that of the others."""
    warmup_steps: int = bounded(100, least=0)
    beta1: float = bounded(0.9, least=0, below=1)
    beta2: float = bounded(0.95, least=0, below=1)
    weight_decay: float = bounded(0.1, least=0)
    """Weight decay of matrices, including embeddings; norms and λ have none."""
    clip: float = bounded(1.0, above=0)
    """Gradients are clipped to this global norm."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """``auto``: bf16 autocast if the processor has bf16 instructions, else float32. ``float64``, weights included, is
    for checking one way to compute against another.
    """
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass instead of keeping what it computed."""
    compile: bool = False
    """Compile each block with ``torch.compile``; CPUs need a C++ compiler."""
    mesh: MeshSettings = field(default_factory=MeshSettings)
    hang_limit: float = bounded(1800.0, above=0)
    """Seconds after which several processes end if one of them makes no progress, with a message that names it."""
    attn_implementation: Literal["antiphase", "antiphase_triton", "eager"] | None = None
    """Attention function during training; ``antiphase_triton`` uses the fused GPU kernels, and None means
    ``antiphase``. It is not saved with the model.
    """
    seed: int = 0
    log_every: int = bounded(10, least=1)
    """Steps between lines of ``metrics.jsonl``."""
    evaluate_every: int = bounded(100, least=1)
    """Steps between evaluations on held-out data."""
    checkpoint_every: int = bounded(500, least=1)
    device: str = "auto"
    """``auto``: cuda if available, else cpu."""
    threads: int | None = bounded(None, least=1, most=1024)
    """CPU threads of one process; None means torch's default."""
    start_from: str | None = None
    """Folder of a model with this run's sizes, whose weights are the initial weights; None means random weights."""
    trained: Literal["all", "lambda", "lora"] = "all"
    """Parameters to train: all; ``lambda``, those of λ alone; ``lora``, low-rank adapters of the projections
    (2106.09685), merged into the weights at the end, together with λ (extra ``antiphase[lora]``).
    """
    lora_rank: int = bounded(8, least=1)
    """Rank of the adapters."""
    tensorboard: bool = False
    """Also write TensorBoard events (extra ``antiphase[tensorboard]``)."""


@dataclass(kw_only=True)
class EvaluationSettings:
    """What to measure at the end of a run, and how much of it."""

    samples: int = bounded(200, least=1)
    """Sequences per cell of the needle grid, and for the allocation."""
    depths: list[float] = field(default_factory=lambda: [0.0, 0.25, 0.5, 0.75, 1.0])
    """Depths of the needle that is asked for: 0 is the start of the context, 1 its end."""
    needles: list[int] = field(default_factory=list)
    """Numbers of needles in the grid; empty means the number in training."""
    queries: list[int] = field(default_factory=list)
    """Numbers of queries in the grid; empty means the number in training."""
    lengths: list[int] = field(default_factory=list)
    """Sequence lengths in the grid; empty means the length in training."""
    validation_sequences: int = bounded(200, least=1)
    """Sequences for the validation loss."""
    curve_samples: int = bounded(500, least=1)
    """Retrieval sequences per point of a training curve; 500 give a standard error of at most 2.3 points."""


@dataclass(kw_only=True)
class RunSettings:
    """One training run: what ``antiphase train`` executes and writes to ``run.yaml``."""

    description: str = ""
    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)


@dataclass(kw_only=True)
class CompareSettings:
    """Arms trained on the same data in the same order, from the ``compare`` section of a preset."""

    arms: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: {"model.attention_type": name} for name in ("softmax", "differential")}
    )
    """Overrides of the run by name of the arm."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    also: dict[str, str] = field(default_factory=dict)
    """Further comparisons: an arm, and another arm that it is compared with besides the first."""
    threshold: float = 0.5
    """First-query accuracy; the step at which each run first exceeds it is reported."""
    processes: int | None = None
    """Number of runs at a time; None means one per core, but at most one per run."""


@dataclass(kw_only=True)
class Preset:
    """A shipped or user's YAML file with its overrides applied: a run, and how to compare its arms."""

    run: RunSettings
    compare: CompareSettings
    name: str


def preset_names() -> list[str]:
    """Names of the presets shipped in the package."""
    folder = resources.files("antiphase") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_preset(
    name: str, overrides: Sequence[str] = (), *, data: Sequence[str] = (), validation: Sequence[str] = ()
) -> Preset:
    """Read a preset by name, or a YAML file by path, and apply ``KEY=VALUE`` overrides.

    ``data`` and ``validation`` are the paths of ``--data`` and ``--validation``; with data, a synthetic preset becomes
    a text one, with the changes that the preset lists under ``with_data``.
    """
    return _preset(_read_preset(name), name, overrides, data=data, validation=validation)


def kept_run(path: Path, *, flag: str) -> RunSettings:
    """The settings stored in a run's folder; ``flag`` names the folder in messages.

    Raises:
        InputError: the file cannot be read or does not contain such settings.
    """
    remedy = "restore it as the run wrote it"
    tree = read_yaml(path, flag, remedy)
    try:
        return _preset(tree, str(path)).run
    except InputError as error:
        raise InputError(f"{flag} {path}: {error}; {remedy}") from None


def _preset(
    tree: dict[str, Any],
    name: str,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
) -> Preset:
    with_data = tree.pop("with_data", {})
    if not isinstance(with_data, Mapping):
        raise InputError(f"with_data in preset '{name}' must map dotted keys to values")
    changes: list[tuple[str, Any]] = []
    if data:
        changes += [("data.source", "text"), ("data.paths", list(data)), ("data.weights", [])]
        changes += [(str(key), value) for key, value in with_data.items()]
    if validation:
        changes.append(("data.validation", list(validation)))
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise InputError(f"--set {override!r} is not KEY=VALUE, for example --set training.steps=200")
        changes.append((key, _parse_value(override, text)))
    for key, value in changes:
        if key.startswith("compare.arms.") and "arms" not in (section(tree, "compare") or {}):
            assign(tree, "compare.arms", CompareSettings().arms)  # changing one arm keeps the others
        assign(tree, key, value)
        _forget_in_arms(tree, key)
    compare_tree = tree.pop("compare", {})
    run = build(RunSettings, tree)
    _check_run(run)
    if validation and run.data.source == "synthetic":
        raise InputError("--validation cannot be used without --data; synthetic runs hold out sequences of their own")
    compare = build(CompareSettings, compare_tree, path="compare")
    _check_compare(compare)
    for arm in compare.arms:
        arm_run(run, compare, arm, seed=0)
    return Preset(run=run, compare=compare, name=name)


def _forget_in_arms(tree: dict[str, Any], key: str) -> None:
    """Remove an arm's own value for a key: a setting for the whole run applies to every arm."""
    arms = (section(tree, "compare") or {}).get("arms")
    for changes in arms.values() if isinstance(arms, dict) else ():
        if isinstance(changes, dict):
            changes.pop(key, None)


def arm_run(run: RunSettings, compare: CompareSettings, arm: str, *, seed: int) -> RunSettings:
    """The settings of one arm and seed: the run with the arm's overrides."""
    tree = dataclasses.asdict(run)
    for key, value in dotted(compare.arms[arm]).items():
        assign(tree, key, value)
    tree["training"]["seed"] = seed
    settings = build(RunSettings, tree, path=f"compare.arms.{arm}")
    _check_run(settings)
    return settings


def rows_by_share(batch_size: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Number of sequences of a batch for each share; the remainder comes last, under the key "rest".

    Fractions are rounded by the largest-remainder method.
    """
    wanted = {**shares, "rest": max(0.0, 1 - sum(shares.values()))}
    exact = {name: share * batch_size for name, share in wanted.items()}
    rows = {name: int(number + 1e-9) for name, number in exact.items()}
    largest = sorted(wanted, key=lambda name: rows[name] - exact[name])
    for name in largest[: batch_size - sum(rows.values())]:
        rows[name] += 1
    return rows


def to_yaml(settings: RunSettings) -> str:
    """YAML text that ``load_preset`` reads back to equal settings."""
    import yaml

    return yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False)


def _check_run(run: RunSettings) -> None:
    """Check ranges that types cannot express; the message names the field."""
    training, data, evaluation = run.training, run.data, run.evaluation
    for part in ("model", "training", "data", "evaluation"):
        check_bounds(getattr(run, part), part)
    check_bounds(training.mesh, "training.mesh")
    for grid in ("needles", "queries", "lengths"):
        values = getattr(evaluation, grid)
        if any(value < 1 for value in values) or len(set(values)) != len(values):
            raise InputError(f"evaluation.{grid} must be different numbers of at least 1, got {values}")
    if training.decay_steps is not None and training.decay_steps < training.steps:
        raise InputError(
            f"training.decay_steps ({training.decay_steps}) must be at least training.steps ({training.steps})"
        )
    _check_shares(run)
    _check_weights(data)
    for name, listed in (("evaluation.depths", evaluation.depths), ("evaluation.needles", evaluation.needles)):
        if len(set(listed)) != len(listed):
            raise InputError(f"{name} must not repeat a value, got {listed}")
    if any(not 0 <= depth <= 1 for depth in evaluation.depths) or not evaluation.depths:
        raise InputError(f"evaluation.depths must be numbers between 0 and 1, got {evaluation.depths}")
    if run.model.kind != "transformer":
        for name, given in (
            ("start_from", training.start_from),
            ("gradient_checkpointing", training.gradient_checkpointing),
            ("attn_implementation", training.attn_implementation),
            ("trained", training.trained != "all"),
            ("compile", training.compile),
            ("mesh.shard", training.mesh.shard > 1),
            ("mesh.context", training.mesh.context > 1),
            ("mesh.tensor", training.mesh.tensor > 1),
        ):
            if given:
                raise InputError(f"training.{name} needs model.kind=transformer, got {run.model.kind}")
    for name, size in (("shard", training.mesh.shard), ("tensor", training.mesh.tensor)):
        if training.trained == "lora" and size > 1:
            raise InputError(f"training.trained=lora cannot divide the weights; remove training.mesh.{name}")
    if training.compile and training.mesh.tensor > 1:
        raise InputError("training.compile does not know divided heads yet; remove it, or training.mesh.tensor")
    if data.sequence_length % training.mesh.context:
        raise InputError(
            f"training.mesh.context={training.mesh.context} does not divide data.sequence_length "
            f"({data.sequence_length}); change one of them"
        )
    if run.model.dex_steps > training.steps:
        raise InputError(
            f"model.dex_steps ({run.model.dex_steps}) must be at most training.steps ({training.steps}): annealing "
            "must end before the model is saved"
        )
    longest = run.model.max_position_embeddings
    if longest is not None and longest < max([data.sequence_length, *evaluation.lengths]):
        raise InputError(
            f"model.max_position_embeddings ({longest}) is shorter than data.sequence_length or evaluation.lengths"
        )


def _check_shares(run: RunSettings) -> None:
    """Check the sum of the shares of a batch."""
    training, data = run.training, run.data
    shares = {name: getattr(data, name) for name in ("needle_share", "label_share", "repeat_share")}
    if sum(shares.values()) > 1 + 1e-9:
        named = ", ".join(f"data.{name} ({share})" for name, share in shares.items())
        raise InputError(f"{named} add up to more than 1")
    for name, rows in rows_by_share(training.batch_size, shares).items():
        share = shares.get(name, 1 - sum(shares.values()))
        if share > 1e-9 and not rows:
            what = f"data.{name} ({share})" if name in shares else f"what the shares of data leave ({share:.3g})"
            raise InputError(
                f"{what} gives no sequence to a batch of {training.batch_size}; raise training.batch_size, or "
                "change the shares"
            )
    for name in ("label_share", "repeat_share"):
        if shares[name] and data.source == "synthetic":
            raise InputError(f"data.{name} needs text: give --data")


def _check_weights(data: DataSettings) -> None:
    """Check the weights of a mixture of sources."""
    weights = data.weights
    if not weights:
        return
    if len(weights) != len(data.paths):
        raise InputError(
            f"data.weights must hold one number for each --data: {len(weights)} are given for {len(data.paths)}"
        )
    if any(not weight >= SMALLEST_WEIGHT for weight in weights):
        raise InputError(
            f"data.weights must be at least {SMALLEST_WEIGHT}, got {weights}; leave out a --data that is not wanted"
        )
    if abs(sum(weights) - 1) > 1e-6:
        raise InputError(f"data.weights must add up to 1, got {weights}, which add up to {sum(weights):.6g}")
    if not data.validation:
        raise InputError("data.weights needs held-out text of its own; name it with --validation")
    if data.long_share is not None:
        raise InputError("data.weights cannot be used together with data.long_share; leave out one of them")


def _check_compare(compare: CompareSettings) -> None:
    """Check ranges that types cannot express; the message names the field."""
    if not compare.arms:
        raise InputError("compare.arms must not be empty")
    for arm, overrides in compare.arms.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", arm):
            raise InputError(f"compare.arms: {arm!r} cannot be the name of a folder; use letters, digits, - and _")
        for key in dotted(overrides):
            if key.split(".")[0] in ("data", "evaluation") or key in SHARED_BY_ARMS:
                raise InputError(f"compare.arms.{arm} must not change {key}: all arms share their data and seeds")
    for pair in compare.also.items():
        if unknown := [arm for arm in pair if arm not in compare.arms]:
            raise InputError(f"compare.also names the arm {unknown[0]!r}; known: {', '.join(compare.arms)}")
    if not compare.seeds or len(set(compare.seeds)) != len(compare.seeds):
        raise InputError(f"--seeds must be different whole numbers, got {compare.seeds}")
    if not 0 <= compare.threshold < 1:
        raise InputError(f"compare.threshold must be at least 0 and below 1, got {compare.threshold}")
    if compare.processes is not None and compare.processes < 1:
        raise InputError(f"compare.processes must be at least 1, got {compare.processes}")


def _read_preset(name: str) -> dict[str, Any]:
    if Path(name).suffix in (".yaml", ".yml"):
        return read_yaml(name, "--preset", "give a YAML mapping with model, data and training")
    if name not in preset_names():
        raise InputError(f"--preset {name}: unknown preset{nearest(name, preset_names())}")
    text = (resources.files("antiphase") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    shipped: dict[str, Any] = parse_yaml(text, f"--preset {name}", "install antiphase again")
    return shipped


def _parse_value(override: str, text: str) -> Any:
    return parse_yaml(text, f"--set {override[:80]!r}", "write it as KEY=VALUE") if text else ""
