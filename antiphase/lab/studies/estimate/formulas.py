"""Memory, operations and communication of a training step, from sizes alone.

Nothing here is fitted: each function counts the tensors that ``lab/training/loop.py`` holds, and its docstring derives
the count. Legend: B sequences in a forward pass of one GPU, N tokens in a sequence, T = B N, h hidden size, W = width
of all query maps, K = width of all key maps, f width of the MLP, L blocks, V vocabulary, P parameters, S GPUs that
share one copy (``shard``), e bytes of an activation (4, or 2 in bf16). If C GPUs share each sequence (``context``), T
is what one of them has, B N / C. If GPUs divide the heads (``tensor``), W, K, f and P are what one of them has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antiphase.layers.mlp import LEARNED
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.tensor_plan import divides_mlp

FULL = 4
"""Bytes of an fp32 number: weights, gradients, moments and the loss are fp32 in any precision."""


@dataclass(frozen=True)
class Shape:
    """One parameter."""

    rows: int
    """Its first dimension, along which it is divided."""
    others: int
    """The product of the other dimensions."""
    is_rounded: bool = False
    """Whether bf16 rounds it before it is gathered: it belongs to a linear layer of a block."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.others

    def divided(self, shard: int) -> int:
        """Elements on one GPU. ``fully_shard`` gives each ⌈rows / S⌉ rows and fills the last one up."""
        return -(-self.rows // shard) * self.others

    def gathered(self, step: Step) -> int:
        """Bytes of all GPUs' parts, filled up."""
        return step.shard * self.divided(step.shard) * (step.width if self.is_rounded else FULL)


@dataclass(frozen=True)
class ModelSizes:
    """What the memory of a model depends on."""

    config: AntiphaseConfig
    block: tuple[Shape, ...]
    """Parameters of one block."""
    outside: tuple[Shape, ...]
    """Parameters outside the blocks: embeddings, last norm, head; tied ones once."""
    linear: int
    """Elements of all matrices that are multiplied in the activations' precision."""

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def head(self) -> int:
        """Elements of the matrices outside the blocks."""
        inside = sum(shape.size for shape in self.block if shape.is_rounded and shape.others > 1)
        return self.linear - self.layers * inside

    def units(self) -> Iterator[tuple[Shape, ...]]:
        """What is gathered together: what lies outside the blocks, and each block."""
        yield self.outside
        for _ in range(self.layers):
            yield self.block

    @property
    def parameters(self) -> int:
        return sum(shape.size for unit in self.units() for shape in unit)

    def held(self, shard: int) -> int:
        """Parameters on one GPU."""
        return sum(shape.divided(shard) for unit in self.units() for shape in unit)


@dataclass(frozen=True)
class Step:
    """How a step is made on one GPU."""

    sequences: int
    """B: of a forward pass."""
    length: int
    """N."""
    passes: int
    """Forward passes before the optimizer's step (micro-batches)."""
    shard: int
    """S: 1 keeps a whole copy on every GPU."""
    replicas: int
    """Copies of the model with sequences of their own."""
    is_half: bool
    """Whether activations are bf16 (autocast)."""
    is_checkpointed: bool
    """Whether blocks keep only their input and are computed again."""
    context: int = 1
    """C: GPUs that share each sequence."""
    tensor: int = 1
    """GPUs that divide the heads and have the same tokens."""

    @property
    def tokens(self) -> int:
        """T."""
        return self.sequences * self.length // self.context

    @property
    def copies(self) -> int:
        """GPUs over which each gradient is summed."""
        return self.replicas * self.context

    @property
    def is_sharded(self) -> bool:
        """Whether ``fully_shard`` gathers the weights, also those of one GPU's heads."""
        return self.shard > 1 or self.tensor > 1

    @property
    def has_buckets(self) -> bool:
        """Whether ``DistributedDataParallel`` adds up the gradients, which then lie in its buffers all the time."""
        return self.copies > 1 and not self.is_sharded

    @property
    def width(self) -> int:
        """E."""
        return 2 if self.is_half else 4


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU when most is held, by part; they add up to ``total``."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    gathered: int
    """Copies of weights for a product: those gathered from other GPUs, and those in bf16."""
    moment: str
    """When that is; see ``memory``."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.gathered


def kept_by_block(sizes: ModelSizes, step: Step) -> int:
    """Bytes that the forward pass of a block keeps for its backward pass.

    Each operation keeps what its derivative reads: a norm its input (the residual stream, h, fp32), a product its input
    (the norm's output, h), attention its queries, keys and values (W + 2K) and two statistics of each map and token in
    fp32 (where heads share second maps, the outputs of these as well, in fp32), V1's head norm the heads' outputs (W),
    the output projection its input (W; softmax attention has no norm, so these are one tensor), SwiGLU gate, its swish
    and up, and the last product their product (4f); an MLP without a gate its first product and the activation (2f).
    PolyNorm keeps x, x², x³ and what is made of each, in fp32 (6f, in place of the gate). Queries are rotated into new
    tensors, and the projections' own outputs go, but norms of queries and keys keep them (W + K). Attention and MLP in
    parallel have one input. Norms compute in fp32: under autocast their outputs are converted for the product, which
    keeps the bf16 copy, and V1's head norm keeps its input as fp32. (What is counted is PyTorch's operation. The Triton
    kernel of that norm, which CUDA devices take unless the model is compiled, keeps its input in bf16.) If GPUs share
    the sequences, attention keeps the heads' outputs (W) as it has them, too, because they are sent before they are
    used.
    """
    config, e, hidden = sizes.config, step.width, sizes.config.hidden_size
    query, key, out = query_width(config), key_width(config, step.context), output_width(config)
    residual = (1 if config.use_parallel_residual else 2) * hidden * FULL
    inputs = 2 * hidden * e
    attention = (query + 2 * key) * e + (2 * maps(config) + shared_width(config)) * FULL
    heads = out * (FULL + e) if has_head_norm(config) else out * e
    if step.context > 1:
        heads += out * e
    if config.use_qk_norm:
        attention += (query_width(config) + key_width(config)) * FULL
    mlp = (4 if config.gated_mlp else 2) * config.intermediate_size * e
    if config.hidden_act in LEARNED:
        mlp += config.intermediate_size * (6 * FULL - e)
    return step.tokens * (residual + inputs + attention + heads + mlp)


def query_width(config: AntiphaseConfig) -> int:
    """Width of all query maps: V2 has two for each of its outputs, and as many outputs as maps of a softmax layer."""
    return int(config.num_attention_heads * config.head_dim)


def maps(config: AntiphaseConfig) -> int:
    """Softmax maps that are formed: V1's heads may share their second ones."""
    heads = config.num_attention_heads // 2
    return int(config.num_attention_heads if config.num_noise_heads is None else heads + config.num_noise_heads)


def shared_width(config: AntiphaseConfig) -> int:
    """Width of the outputs of all second maps, if heads share them."""
    formed = maps(config)
    is_shared = formed < config.num_attention_heads
    return int(2 * config.head_dim * (formed - config.num_attention_heads // 2)) if is_shared else 0


def key_width(config: AntiphaseConfig, context: int = 1) -> int:
    """Width of all key maps; GPUs that share a sequence need a value head each, and send some of them several times."""
    maps = config.num_key_value_heads
    assert maps  # the configuration has filled it in
    heads = maps // 2 if config.attention_type == "differential" else maps
    return int(maps * config.head_dim * max(1, context // heads))


def output_width(config: AntiphaseConfig) -> int:
    """Width of all heads' outputs."""
    half = config.attention_type.startswith("differential_v2")
    return query_width(config) // 2 if half else query_width(config)


def has_head_norm(config: AntiphaseConfig) -> bool:
    """Whether each head's output is normalized: V1's is, unless it is switched off."""
    return config.attention_type == "differential" if config.head_norm is None else bool(config.head_norm)


def activations(sizes: ModelSizes, step: Step) -> int:
    """Bytes of all that the forward pass keeps when the loss is known.

    L blocks, or with checkpoints their inputs (h, fp32) and, once the backward pass has computed it again, one block;
    then the input of the last norm and its output, of which the positions with a prediction are copied for the head:
    3 h a token, fp32 but for the copy's conversion. Before the blocks the embeddings are multiplied, which keeps
    nothing.
    """
    block, hidden = kept_by_block(sizes, step), step.tokens * sizes.config.hidden_size
    blocks = sizes.layers * hidden * FULL if step.is_checkpointed else sizes.layers * block
    return blocks + hidden * (3 * FULL + (step.width if step.is_half else 0))


def logits(sizes: ModelSizes, step: Step) -> int:
    """Bytes of the loss when most of them are held: three times the logits in fp32.

    The forward pass keeps the log-softmax; the backward pass forms the gradient by it, and from both the gradient by
    the logits: 3 T V numbers. Each sequence predicts N - 1 of its tokens; its parts before the last predict all.
    """
    predicted = step.sequences * (step.length - 1) if step.context == 1 else step.tokens
    return 3 * FULL * predicted * int(sizes.config.vocab_size)


def in_block(sizes: ModelSizes, step: Step) -> int:
    """Bytes of activations in the backward pass of a block when most are held.

    That is in SwiGLU: the last product's derivative has given the gradient of its input (f), whose kept value (f) is
    free, and the product of gate and up gives two more (2f), or without a gate the activation one. With them are the
    gradients of both residual branches.
    """
    config = sizes.config
    wide = (2 if config.gated_mlp else 1) * config.intermediate_size * step.width
    gradients = wide + 2 * config.hidden_size * FULL
    return kept_by_block(sizes, step) + step.tokens * gradients


def memory(sizes: ModelSizes, step: Step) -> Memory:
    """What one GPU holds at the moment when it holds most.

    Weights and Adam's two moments are fp32 and stay: 4 P / S and 8 P / S. Gradients (4 P / S) appear as the backward
    pass goes and stay until the optimizer's step; with several passes they are there from the second on. Where
    ``DistributedDataParallel`` adds them up, its buffers are there all the time, and a gradient lies beside them until
    the last pass copies it there. Fused AdamW needs no room of its own. What a step holds grows or falls steadily
    through the blocks, so the most is at an end:

    * ``loss``: all activations and the loss's tensors; gradients only of earlier passes;
    * ``last block``: all activations, those within the last block's backward pass, the head's gradient;
    * ``gathering``, if sharded: after the second block of the model, beside its own gathered weights and the buffer
      for the first block's are its whole gradient, the buffer in which that is sent, and that of the block before;
    * ``first block``: its activations alone, and all gradients but most of its own; if GPUs divide heads and nothing
      else, ``fully_shard`` copies its whole gradient into a buffer and that into another, beside the buffer of the
      block before;
    * ``embedding``: all gradients. Tied embeddings have two more for a moment: that of the head and that of the table
      become their sum. The gradient of the blocks' input is there before and after it is multiplied.
    """
    state = FULL * sizes.held(step.shard)
    earlier = state * (step.has_buckets + (step.passes > 1))
    config, block, copies = sizes.config, in_block(sizes, step), gathered(sizes, step)
    residual = FULL * step.tokens * config.hidden_size
    table = FULL * config.vocab_size * config.hidden_size
    first_own = FULL * sum(shape.divided(step.shard) for shape in sizes.block)
    down = FULL * config.intermediate_size * config.hidden_size // step.shard
    if step.is_checkpointed:
        last = sizes.layers * residual + block
    else:
        last = (sizes.layers - 1) * kept_by_block(sizes, step) + block
    held_back = table if config.tie_word_embeddings else 0  # the head's gradient, until the table's is known
    twice = 2 * held_back + table * step.has_buckets
    after_head = earlier + held_back if step.has_buckets else max(earlier, table)
    before = max(min(earlier, state) + held_back * step.has_buckets, state - first_own) + down
    head = 2 * sizes.head if step.is_half and step.is_sharded else 0
    last_copies = copies if step.is_sharded else 0
    found = [
        Memory(state, earlier, 2 * state, activations(sizes, step), logits(sizes, step), copies + head, "loss"),
        Memory(state, after_head, 2 * state, last, 0, copies, "last block"),
        Memory(state, before, 2 * state, block, 0, copies, "first block"),
        Memory(state, state + twice, 2 * state, 2 * residual, 0, last_copies, "embedding"),
    ]
    below = residual + (residual if step.is_checkpointed else kept_by_block(sizes, step))
    if step.shard == 1 and step.tensor > 1:
        gradients = max(earlier, state - first_own) + 3 * first_own
        found.append(Memory(state, gradients, 2 * state, below, 0, copies, "first block"))
    if step.shard > 1 and sizes.layers > 1:
        whole = sum(step.shard * shape.divided(step.shard) for shape in sizes.block)
        outside = FULL * sum(shape.size for shape in sizes.outside)
        above = first_own * (sizes.layers - 2)
        given = sum(shape.gathered(step) for shape in sizes.block)  # gradients have the precision of the weights
        gradients = max(earlier, above) + outside + given + 2 * FULL * whole
        found.append(Memory(state, gradients, 2 * state, below, 0, copies + given, "gathering"))
    return max(found, key=lambda one: one.total)


def gathered(sizes: ModelSizes, step: Step) -> int:
    """Bytes of weights that exist beside the shards.

    ``fully_shard`` gathers a unit before it is used and frees it afterwards, except the outermost, which stays. When
    the backward pass begins, the last block is being gathered beside it: one buffer for what all send, and this GPU's
    part of it lies in the same buffer. In bf16 only the linear layers of blocks are gathered rounded. Where nothing is
    gathered, autocast keeps a bf16 copy of every matrix until the backward pass has used it.
    """
    if not step.is_sharded:
        return 2 * sizes.linear if step.is_half else 0
    if step.shard == 1:
        return sum(2 * shape.size for shape in sizes.block if shape.is_rounded) if step.is_half else 0
    return sum(shape.gathered(step) for shape in (*sizes.outside, *sizes.block))


@dataclass(frozen=True)
class Communication:
    """Bytes that collectives of one step handle on one GPU: results of gathers and exchanges, inputs of the others."""

    all_gather: int
    reduce_scatter: int
    all_reduce: int
    all_to_all: int
    sums: int = 0
    """Of the terms of the halves of blocks, if GPUs divide the heads."""


def communication(sizes: ModelSizes, step: Step) -> Communication:
    """Bytes of one step.

    Sharded, a pass gathers each block twice, before its forward and before its backward pass, and what lies outside the
    blocks once, because it stays; after each backward pass all gradients are scattered as sums. Elements are padded to
    S equal parts. Gathers are in the activations' precision, sums in fp32. Gradients of copies are summed once a step,
    after the last pass, over the parts that each GPU holds.

    GPUs that share sequences exchange queries, keys and values (W + 2 K), V2's λ (fp32) and the heads' outputs in each
    block and pass, and the gradients of all these; checkpoints repeat the former.

    GPUs that divide the heads add up the outputs of both halves of each block (h, as the last product gives them), and
    the gradients of their inputs (h, fp32); checkpoints repeat the first half's. Gradients of what each GPU has whole
    are sums too: V1's λ vectors, norms of heads, queries and keys, and biases of the outputs.
    """
    passes = step.passes * sizes.layers
    exchanged, sums = passes * _exchanged(sizes.config, step), passes * _summed(sizes.config, step)
    if step.shard == 1:
        return Communication(0, 0, FULL * sizes.parameters if step.copies > 1 else 0, exchanged, sums)
    outside, *blocks = (sum(step.shard * shape.divided(step.shard) for shape in unit) for unit in sizes.units())
    given = [sum(shape.gathered(step) for shape in unit) for unit in sizes.units()]
    held = sizes.held(step.shard)
    return Communication(
        all_gather=step.passes * (given[0] + 2 * sum(given[1:])),
        reduce_scatter=step.passes * FULL * (outside + sum(blocks)),
        all_reduce=FULL * held if step.copies > 1 else 0,
        all_to_all=exchanged,
        sums=sums,
    )


def _exchanged(config: AntiphaseConfig, step: Step) -> int:
    """Bytes that a block's attention exchanges in a pass."""
    if step.context == 1:
        return 0
    each = (query_width(config) + 2 * key_width(config, step.context) + output_width(config)) * step.width
    if config.attention_type == "differential_v2":
        each += config.num_attention_heads // 2 * FULL
    return step.tokens * each * (3 if step.is_checkpointed else 2)


def _summed(config: AntiphaseConfig, step: Step) -> int:
    """Bytes that GPUs which divide the heads add up for a block in a pass."""
    if step.tensor == 1:
        return 0
    outputs = (3 if step.is_checkpointed else 2) * step.width
    shared = (2 if config.attention_type == "differential" else 1) * config.head_dim if has_head_norm(config) else 0
    if config.attention_type == "differential" and config.second_map != "none":
        shared += {"exponential": 4 * config.head_dim, "scalar": 1}.get(config.lambda_form or "exponential", 0)
    shared += 2 * config.head_dim * config.use_qk_norm
    shared += config.hidden_size * config.attention_bias
    if not divides_mlp(config):  # whole on every GPU
        return step.tokens * config.hidden_size * (outputs - step.width + FULL) + FULL * shared
    shared += config.hidden_size * config.mlp_bias
    return step.tokens * config.hidden_size * (outputs + 2 * FULL) + FULL * shared
