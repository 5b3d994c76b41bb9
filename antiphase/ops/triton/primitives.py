"""What the kernels share: where a program works, tiles in and out of memory, what a query sees, one step of a softmax.

Legend: B batch, H heads, G value heads, R = H / G, N queries, M keys, d, dv widths; a tile has BLOCK_M queries or
BLOCK_N keys and widths padded to powers of two. Scores are in units of log2, so that ``exp2`` serves.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def product(first, second, RAISE: tl.constexpr):
    """Matrix product with fp32 sums. ``RAISE``: to fp32 before, for Triton's interpreter cannot multiply bf16."""
    if RAISE:
        return tl.dot(first.to(tl.float32), second.to(tl.float32), input_precision="ieee")
    return tl.dot(first, second, input_precision="ieee")


@triton.jit
def load_rows(base, stride, rows, length, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Rows (n, WIDTH), zeros beyond ``length`` and ``WIDTH``."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < length)[:, None]
    if BLOCK != WIDTH:
        inside = inside & (columns < WIDTH)[None, :]
    return tl.load(base + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(base, stride, rows, length, tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The inverse, in the dtype of the memory."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < length)[:, None]
    if BLOCK != WIDTH:
        inside = inside & (columns < WIDTH)[None, :]
    place = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(place, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def add_rows(base, stride, rows, length, tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Add to fp32 rows that other programs add to as well."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < length)[:, None]
    if BLOCK != WIDTH:
        inside = inside & (columns < WIDTH)[None, :]
    place = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.atomic_add(place, tile, mask=inside, sem="relaxed")


@triton.jit
def extent(edges, index, length, PACKED: tl.constexpr):
    """First row and number of rows of a sequence: of the whole tensor, or between two edges."""
    if PACKED:
        start = tl.load(edges + index)
        return start.to(tl.int64), tl.load(edges + index + 1) - start
    return 0, length


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
    """Which of (n, m) pairs of query and key exist and may meet; ``mask`` points to that of a batch row and head."""
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
def softmax_step(scores, values, highest, total, sums, RAISE: tl.constexpr):
    """Scores (n, m) and values (m, dv) into the highest score (n,), total (n,) and sums (n, dv) of an online softmax.

    Rows that have seen nothing yet keep a highest score of -inf and sums of 0.
    """
    raised = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(raised == NOTHING, 0.0, raised)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    total = total * shrink + tl.sum(weights, 1)
    sums = sums * shrink[:, None] + product(weights.to(values.dtype), values, RAISE)
    return raised, total, sums


@triton.jit
def finished(highest, total, sums):
    """Output (n, dv) and log-sum-exp (n,) of a softmax; where nothing was seen 0 and +inf, with which weights are 0."""
    divisor = tl.where(total == 0.0, 1.0, total)
    return sums / divisor[:, None], tl.where(total == 0.0, -NOTHING, highest + tl.log2(divisor))
