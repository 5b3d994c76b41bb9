"""What the kernels share: where a program works, tiles in and out of memory, what a query sees, one step of a softmax.

Legend: B batch, H heads, G value heads, R = H / G, N queries, M keys, d, dv widths; a tile has BLOCK_M queries or
BLOCK_N keys and widths padded to powers of two. Scores are in units of log2, so that ``exp2`` serves.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(float("-inf"))
LARGEST_RATIO = tl.constexpr(32768.0)
"""Of the maps' weights: a multiple of a weight, which is at most 1, must be a number in fp16."""


@triton.jit
def product(first, second, RAISE: tl.constexpr):
    """Matrix product with fp32 sums. ``RAISE``: to fp32 before, for Triton's interpreter cannot multiply bf16."""
    if RAISE:
        return tl.dot(first.to(tl.float32), second.to(tl.float32), input_precision="ieee")
    return tl.dot(first, second, input_precision="ieee")


@triton.jit
def row_places(base, stride, rows, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Where rows (n, BLOCK) lie, and which of it exists: not what is beyond ``length`` and ``WIDTH``."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < length)[:, None]
    if BLOCK != WIDTH:
        inside = inside & (columns < WIDTH)[None, :]
    return base + rows.to(tl.int64)[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(base, stride, rows, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Rows (n, BLOCK), zeros beyond ``length`` and ``WIDTH``."""
    place, inside = row_places(base, stride, rows, length, BLOCK, WIDTH)
    return tl.load(place, mask=inside, other=0.0)


@triton.jit
def store_rows(base, stride, rows, length, tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The inverse, in the dtype of the memory."""
    place, inside = row_places(base, stride, rows, length, BLOCK, WIDTH)
    tl.store(place, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def add_rows(base, stride, rows, length, tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Add to fp32 rows that other programs add to as well."""
    place, inside = row_places(base, stride, rows, length, BLOCK, WIDTH)
    tl.atomic_add(place, tile, mask=inside, sem="relaxed")


@triton.jit
def extent(edges, index, length, PACKED: tl.constexpr):
    """First row and number of rows of a sequence: of the whole tensor, or between two edges."""
    start = 0
    if PACKED:
        start = tl.load(edges + index)
        length = tl.load(edges + index + 1) - start
        start = start.to(tl.int64)
    return start, length


@triton.jit
def owner(count, query_edges, key_edges, all_queries, all_keys, PACKED: tl.constexpr):
    """Which of ``count`` heads of which batch row or sequence a program serves, and where its queries and keys lie.

    Head and batch row, as 64-bit numbers for offsets that 32 bits cannot hold; first query and number of queries; first
    key and number of keys.
    """
    head = (tl.program_id(0) % count).to(tl.int64)
    index = tl.program_id(0) // count
    first_query, queries = extent(query_edges, index, all_queries, PACKED)
    first_key, keys = extent(key_edges, index, all_keys, PACKED)
    batch = index.to(tl.int64)
    if PACKED:
        batch = batch * 0
    return head, batch, first_query, queries, first_key, keys


@triton.jit
def at(base, strides, batch, head, row):
    """Where a row of a head of a batch row begins."""
    return base + batch * strides[0] + head * strides[1] + row * strides[2]


@triton.jit
def visible_pairs(
    rows, columns, queries, keys, mask, mask_strides,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Which of (n, m) pairs of query and key exist and may meet.

    ``mask`` points to that of a batch row and head, or, (n, 1), to each query's.
    """
    seen = (rows < queries)[:, None] & (columns < keys)[None, :]
    if CAUSAL:
        distance = rows[:, None] + (keys - queries) - columns[None, :]
        seen = seen & (distance >= 0)
        if WINDOW > 0:
            seen = seen & (distance < WINDOW)
    if HAS_MASK:
        place = mask + rows.to(tl.int64)[:, None] * mask_strides[2] + columns.to(tl.int64)[None, :] * mask_strides[3]
        seen = seen & (tl.load(place, mask=seen, other=0) != 0)
    return seen


@triton.jit
def key_range(first_row, queries, keys, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The first and the last key, exclusive, that any of BLOCK_M queries from ``first_row`` sees."""
    start, stop = 0, keys
    if CAUSAL:
        last = tl.minimum(first_row + BLOCK_M, queries) + (keys - queries)
        stop = tl.minimum(keys, tl.maximum(last, 0))
        if WINDOW > 0:
            start = tl.maximum(0, first_row + (keys - queries) - WINDOW + 1)
    return start, stop


@triton.jit
def query_range(first_key, queries, keys, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The first and the last query, exclusive, that sees any of BLOCK_N keys from ``first_key``."""
    start, stop = 0, queries
    if CAUSAL:
        start = tl.maximum(0, first_key - (keys - queries))
        if WINDOW > 0:
            last = tl.minimum(first_key + BLOCK_N, keys) - (keys - queries) + WINDOW - 1
            stop = tl.minimum(queries, tl.maximum(last, 0))
    return start, stop


@triton.jit
def softmax_weights(scores, highest, total):
    """Scores (n, m) into an online softmax: highest score and total (n,), weights (n, m), and by what old sums shrink.

    Rows that have seen nothing yet keep a highest score of -inf and a total of 0.
    """
    raised = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(raised == NOTHING, 0.0, raised)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    return raised, total * shrink + tl.sum(weights, 1), weights, shrink


@triton.jit
def nothing_seen(ROWS: tl.constexpr, BLOCK_DV: tl.constexpr):
    """The state of ``difference_step`` before the first key."""
    nothing = tl.full((ROWS,), NOTHING, tl.float32)
    zeros = tl.zeros((ROWS,), tl.float32)
    none = tl.zeros((ROWS, BLOCK_DV), tl.float32)
    return nothing, zeros, nothing, zeros, zeros, none, none


@triton.jit
def difference_step(scores_1, scores_2, values, lambdas, state, RAISE: tl.constexpr):
    """Scores (n, m) of both maps and values (m, dv) into the state of a differential softmax.

    What is multiplied with the values is rounded to their dtype. Rounding each map apart would leave errors as large as
    the maps, where the maps cancel and the output is small; so the maps are subtracted before: one sum is that of
    W1 - ρ W2, W the weights not yet normalised, the other that of W2. With ρ = λ total1 / total2 the former is the
    output but for total1. The totals are not known before the last key: ρ is what they say so far, and sums of earlier
    keys are brought to the new ρ, for W2's are there. ``both_maps`` gives both maps' sums in the end.
    """
    highest_1, total_1, highest_2, total_2, ratio, difference, sums_2 = state
    highest_1, total_1, weights_1, shrink_1 = softmax_weights(scores_1, highest_1, total_1)
    highest_2, total_2, weights_2, shrink_2 = softmax_weights(scores_2, highest_2, total_2)
    before = ratio * shrink_1
    ratio = lambdas * total_1 / tl.where(total_2 == 0.0, 1.0, total_2)
    ratio = tl.minimum(tl.maximum(ratio, -LARGEST_RATIO), LARGEST_RATIO)
    difference = difference * shrink_1[:, None] + (before - ratio * shrink_2)[:, None] * sums_2
    difference += product((weights_1 - ratio[:, None] * weights_2).to(values.dtype), values, RAISE)
    sums_2 = sums_2 * shrink_2[:, None] + product(weights_2.to(values.dtype), values, RAISE)
    return highest_1, total_1, highest_2, total_2, ratio, difference, sums_2


@triton.jit
def both_maps(state):
    """Highest scores, totals and sums, of the first map and of the second, from a state of ``difference_step``."""
    highest_1, total_1, highest_2, total_2, ratio, difference, sums_2 = state
    return highest_1, total_1, difference + ratio[:, None] * sums_2, highest_2, total_2, sums_2


@triton.jit
def finished(highest, total, sums):
    """Output (n, dv) and log-sum-exp (n,) of a softmax; where nothing was seen 0 and +inf, with which weights are 0."""
    divisor = tl.where(total == 0.0, 1.0, total)
    return sums / divisor[:, None], tl.where(total == 0.0, -NOTHING, highest + tl.log2(divisor))
