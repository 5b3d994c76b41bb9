"""The settings of a run as typed dataclasses, with their defaults and bounds; ``presets`` reads them from presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from antiphase.base.typed import bounded
from antiphase.models.block_fields import BlockFields

SEEDS = -(1 << 63), (1 << 64) - 1
"""The least and the largest seed: the 64 bits that generators of torch take, with or without a sign."""


@dataclass(kw_only=True)
class SizeSettings:
    """Sizes, attention and initialization of a model, which stand before the fields of its blocks."""

    hidden_size: int
    num_hidden_layers: int = bounded(least=1, most=10_000)
    intermediate_size: int
    num_attention_heads: int
    """Softmax maps per layer; a differential layer has half as many heads."""
    kind: Literal["transformer", "rnn", "lstm"] = "transformer"
    """``rnn`` and ``lstm`` use only hidden_size (states and embeddings), num_hidden_layers and tie_word_embeddings."""
    vocab_size: int | None = bounded(None, least=1)
    """Rows of the embeddings, at least as many as the tokenizer has tokens; None means as many."""
    attention_type: Literal[
        "softmax", "differential", "differential_v2", "differential_v2_across",
        "softmax_one", "softpick", "cog", "exclusive",
    ] = "differential"  # fmt: skip
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
    lambda_init: float | list[float] | None = None
    head_norm: bool | None = None
    head_scale: bool | None = None
    output_gate: bool = False
    sink_logits: bool = False
    second_map: Literal["subtracted", "added", "none"] | None = None
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
class ModelSettings(BlockFields, SizeSettings):
    """Size and shape of a model: the arguments of ``AntiphaseConfig``, with two settings for its rope_parameters.

    A recurrent network (``kind``) uses few of them.
    """

    partial_rotary_factor: float = bounded(1.0, above=0, most=1)
    """Share of a map's channels that positions rotate."""
    sliding_window: int | None = bounded(None, least=1)
    """Tokens that a token sees in layers with a window, itself included; None means all before it."""
    layer_types: list[str] | None = None
    """``full_attention`` or ``sliding_attention`` for each layer; None means sliding if there is a window."""


@dataclass(kw_only=True)
class DataSettings:
    """The data of a run. ``synthetic`` needs no file; ``text`` reads ``paths``."""

    source: Literal["synthetic", "text"] = "synthetic"
    sequence_length: int = bounded(least=2, most=1 << 24)
    """Tokens per training sequence."""
    needles: int = bounded(8, least=1)
    """Key-value facts per retrieval sequence."""
    queries: int = bounded(12, least=1)
    """Questions at the end of a retrieval sequence, drawn with replacement."""
    asked_together: int = bounded(1, least=1)
    """Largest number of different facts that one question of a training sequence asks for; each sequence draws its
    number between 1 and this. Measurements during training ask for one at a time.
    """
    queries_drawn: bool = False
    """Each training sequence draws its number of questions between 1 and ``queries``."""
    one_token_numbers: bool = False
    """Numbers in text are single tokens: two digits, which the tokenizers trained here do not split. Text for training
    a tokenizer then has the facts in the proportion that they have in a batch without its ``repeat_share``.
    """
    lengths: list[int] = field(default_factory=list)
    """Lengths of retrieval sequences in the order of training, such as [128, 256, 512, 1024]: each divides
    ``sequence_length``, and the last one equals it. Several shorter ones, which do not see each other, fill a row.
    One that is too short for all facts holds as many as fit, at least two, and questions in proportion. Repeated
    tokens are shortened too; text and labels keep their length. The next length begins after an evaluation
    (``training.evaluate_every``) in which accuracy on held-out sequences of the present one is above
    ``length_threshold``, so arms that learn at different speeds may read different lengths. Empty means one length.
    """
    length_threshold: float = bounded(0.6, above=0, below=1)
    """First-query accuracy above which the next of ``lengths`` begins."""
    answers_only: bool = False
    """Only the answers of retrieval sequences count in the loss; otherwise, in text, filler and questions do too."""
    equal_rows: bool = False
    """All rows of a batch have the same weight in the loss, however many of their tokens count: with ``answers_only``,
    the answers' share of the loss is ``needle_share``, whatever the length. Otherwise all tokens have the same.
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
    (length upsampling, Fu et al. 2402.10171); None means consecutive blocks of the text. It is rounded to whole
    sequences of a batch; a share between 0 and 1 must give both kinds at least one.
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
    """Folder for the packed tokens, shared between runs; None means beside the run's folder, or inside a study's. A
    study takes it only if the folder is there.
    """


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
    """Weight decay of matrices, including embeddings; norms, biases and λ vectors have none."""
    clip: float = bounded(1.0, above=0)
    """Gradients are clipped to this global norm."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """``auto``: bf16 autocast on CUDA devices and on processors with bf16 instructions, else float32. ``float64``,
    weights included, is for checking one way to compute against another.
    """
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass instead of keeping what it computed."""
    compile: bool = False
    """Compile each block with ``torch.compile``; CPUs need a C++ compiler."""
    mesh: MeshSettings = field(default_factory=MeshSettings)
    hang_limit: float = bounded(1800.0, above=0)
    """Seconds after which several processes end if one of them makes no progress, with a message that names it."""
    attn_implementation: Literal["antiphase", "antiphase_triton", "eager"] | None = None
    """Attention function during training; ``antiphase_triton`` demands the fused GPU kernels, and None means
    ``antiphase``, which takes them where they run. It is not saved with the model.
    """
    seed: int = bounded(0, least=SEEDS[0], most=SEEDS[1])
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
    """Overrides of the run by name of the arm. An arm of ``arms.py`` needs none for its model; a list names
    such arms.
    """
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
