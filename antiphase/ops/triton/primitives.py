"""Building blocks of the kernels: the place of a program, loading and storing tiles, visibility, and one softmax step.

Legend: B batch, H heads, G value heads, R = H / G, N queries, M keys, d, dv widths; a tile has BLOCK_M queries or
BLOCK_N keys and widths padded to powers of two. Scores are in units of log2, so that ``exp2`` can be used.
"""

from __future__ import annotations

import triton
import triton.language as tl

MINUS_INFINITY = tl.constexpr(float("-inf"))
LARGEST_RATIO = tl.constexpr(32768.0)
"""Largest ratio of the maps' weights: a multiple of a weight, which is at most 1, must be representable in fp16."""


@triton.jit
def product(first, second, RAISE: tl.constexpr):
    """Matrix product with fp32 sums. ``RAISE`` casts to fp32 first: Triton's interpreter cannot multiply bf16."""
    if RAISE:
        return tl.dot(first.to(tl.float32), second.to(tl.float32), input_precision="ieee")
    return tl.dot(first, second, input_precision="ieee")


@triton.jit
def row_pointers(base, stride, rows, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Addresses of rows (n, BLOCK), and which entries exist: those within ``length`` and ``WIDTH``."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < length)[:, None]
    if BLOCK != WIDTH:
        inside = inside & (columns < WIDTH)[None, :]
    return base + rows.to(tl.int64)[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(base, stride, rows, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows (n, BLOCK), with zeros beyond ``length`` and ``WIDTH``."""
    place, inside = row_pointers(base, stride, rows, length, BLOCK, WIDTH)
    return tl.load(place, mask=inside, other=0.0)


@triton.jit
def store_rows(base, stride, rows, length, tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Store rows in the dtype of the memory, the inverse of ``load_rows``."""
    place, inside = row_pointers(base, stride, rows, length, BLOCK, WIDTH)
    tl.store(place, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def extent(edges, index, length, PACKED: tl.constexpr):
    """First row and number of rows of a sequence, either the whole tensor or between two edges, which lie within it."""
    start = 0
    if PACKED:
        start = tl.minimum(tl.maximum(tl.load(edges + index), 0), length)
        length = tl.minimum(tl.maximum(tl.load(edges + index + 1), start), length) - start
        start = start.to(tl.int64)
    return start, length


@triton.jit
def owner(count, query_edges, key_edges, all_queries, all_keys, PACKED: tl.constexpr):
    """Which of ``count`` heads of which batch row or sequence a program handles, and where its queries and keys are.

    Returns head and batch row (64-bit, for offsets beyond 32 bits), the first query and the number of queries, the
    first key and the number of keys.
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
    """Address of a row of a head of a batch row."""
    return base + batch * strides[0] + head * strides[1] + row * strides[2]


@triton.jit
def visible_pairs(
    rows, columns, queries, keys, mask, mask_strides,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Which pairs of queries ``rows`` (n, 1) and keys ``columns`` (1, m) are visible.

    ``mask`` points to the mask of a batch row and head or, in the shape of ``rows``, to that of each query.
    """
    seen = (rows < queries) & (columns < keys)
    if CAUSAL:
        distance = rows + (keys - queries) - columns
        seen = seen & (distance >= 0)
        if WINDOW > 0:
            seen = seen & (distance < WINDOW)
    if HAS_MASK:
        place = mask + rows.to(tl.int64) * mask_strides[2] + columns.to(tl.int64) * mask_strides[3]
        seen = seen & (tl.load(place, mask=seen, other=0) != 0)
    return seen


@triton.jit
def key_parts(
    first_row, queries, keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Edges of three parts of the keys that any of BLOCK_M queries from ``first_row`` sees; all of them see the second.

    The last edge is the last key, exclusive; the others are multiples of BLOCK_N. The first part is empty unless there
    is a window, and the second if there is a mask.
    """
    start, stop = 0, keys
    if CAUSAL:
        last = tl.minimum(first_row + BLOCK_M, queries) + (keys - queries)
        stop = tl.minimum(keys, tl.maximum(last, 0))
        if WINDOW > 0:
            start = tl.maximum(0, first_row + (keys - queries) - WINDOW + 1) // BLOCK_N * BLOCK_N
    whole_start, whole_stop = start, stop // BLOCK_N * BLOCK_N
    if CAUSAL:
        whole_stop = tl.minimum(whole_stop, tl.maximum(first_row + (keys - queries) + 1, 0) // BLOCK_N * BLOCK_N)
        if WINDOW > 0:
            unseen = tl.maximum(first_row + BLOCK_M + (keys - queries) - WINDOW, 0)
            whole_start = tl.minimum((unseen + BLOCK_N - 1) // BLOCK_N * BLOCK_N, stop)
    if HAS_MASK:
        whole_stop = whole_start
    return start, whole_start, tl.maximum(whole_start, whole_stop), stop


@triton.jit
def query_parts(
    first_key, queries, keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Edges of three parts of the queries that see any of BLOCK_N keys from ``first_key``; the second sees all of them.

    The last edge is the last query, exclusive; the others are multiples of BLOCK_M, so that a part can end with rows
    beyond the last query, whose weights are 0. The third part is empty unless there is a window, and the second if
    there is a mask or the block has fewer keys.
    """
    start, stop = 0, queries
    if CAUSAL:
        start = tl.maximum(0, first_key - (keys - queries)) // BLOCK_M * BLOCK_M
        if WINDOW > 0:
            last = tl.minimum(first_key + BLOCK_N, keys) - (keys - queries) + WINDOW - 1
            stop = tl.minimum(queries, tl.maximum(last, 0))
    whole_start, whole_stop = start, stop
    if CAUSAL:
        whole_start = tl.maximum(first_key + BLOCK_N - 1 - (keys - queries), 0)
        whole_start = (whole_start + BLOCK_M - 1) // BLOCK_M * BLOCK_M
        if WINDOW > 0:
            whole_stop = tl.maximum(first_key - (keys - queries) + WINDOW, 0) // BLOCK_M * BLOCK_M
    if HAS_MASK or first_key + BLOCK_N > keys:
        whole_start = stop
    whole_start = tl.maximum(start, tl.minimum(whole_start, stop))
    return start, whole_start, tl.maximum(whole_start, tl.minimum(whole_stop, stop)), stop


@triton.jit
def softmax_weights(scores, highest, total):
    """Add scores (n, m) to an online softmax: highest score and total (n,), weights (n, m), factor for old sums.

    Rows that have seen nothing yet keep a highest score of -inf and a total of 0.
    """
    raised = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(raised == MINUS_INFINITY, 0.0, raised)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    return raised, total * shrink + tl.sum(weights, 1), weights, shrink


@triton.jit
def initial_state(ROWS: tl.constexpr, BLOCK_DV: tl.constexpr):
    """The state of ``difference_step`` before the first key."""
    nothing = tl.full((ROWS,), MINUS_INFINITY, tl.float32)
    zeros = tl.zeros((ROWS,), tl.float32)
    none = tl.zeros((ROWS, BLOCK_DV), tl.float32)
    return nothing, zeros, nothing, zeros, zeros, none, none


@triton.jit
def difference_step(scores_1, scores_2, values, lambdas, state, RAISE: tl.constexpr):
    """Add scores (n, m) of both maps and values (m, dv) to the state of a differential softmax.

    The factors of the values are rounded to their dtype. Rounding each map separately would leave errors proportional
    to the maps even where they cancel and the output is small, so the maps are subtracted before rounding. One sum is
    that of W1 - ρ W2, where W are the unnormalised weights, and the other is that of W2. With ρ = λ total1 / total2,
    the first sum divided by total1 is the output. The totals are not known before the last key, so ρ uses the totals so
    far, and the first sum of earlier keys is corrected to the new ρ with the help of the second. At the end
    ``both_maps`` gives the sums of both maps.
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
    """Highest scores, totals and sums of both maps, from a state of ``difference_step``."""
    highest_1, total_1, highest_2, total_2, ratio, difference, sums_2 = state
    return highest_1, total_1, difference + ratio[:, None] * sums_2, highest_2, total_2, sums_2


@triton.jit
def normalized(highest, total, sums):
    """Output (n, dv) and log-sum-exp (n,) of a softmax; 0 and +inf if no key was seen, so that weights are 0."""
    divisor = tl.where(total == 0.0, 1.0, total)
    return sums / divisor[:, None], tl.where(total == 0.0, -MINUS_INFINITY, highest + tl.log2(divisor))


@triton.jit
def dot(first, second, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Scalar product of two contiguous vectors (d,) in fp32."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    left = tl.load(first + columns, mask=inside, other=0.0).to(tl.float32)
    return tl.sum(left * tl.load(second + columns, mask=inside, other=0.0).to(tl.float32), 0)


@triton.jit
def exponential_lambda(q1, k1, q2, k2, initial, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (2410.05258, equation 2)."""
    return tl.exp(dot(q1, k1, WIDTH, BLOCK)) - tl.exp(dot(q2, k2, WIDTH, BLOCK)) + initial
