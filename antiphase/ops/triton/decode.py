"""Decoding kernels: a few queries against many keys, cut into spans of keys so that every multiprocessor reads a part.

Keys and values are read once each, and as the cache holds them: in V1 values come in halves there, heads 2i and 2i+1
the two halves of value head i. Each span leaves both maps' highest scores, totals and sums; a second kernel joins them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphase.ops.triton.primitives import NOTHING, product, softmax_step


@triton.jit
def span_kernel(
    query, key, value, mask, sums, highest, totals,
    query_strides, key_strides, value_strides, mask_strides,
    heads, value_heads, queries, keys, span, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, PARTS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """One span of keys of one value head. Grid: batch × value heads, spans.

    A row is a query of one of the R heads, ``repeat · queries + position``; ROWS is their number, padded. Sums
    (B, G, spans, 2, ROWS, dv), highest and totals (B, G, spans, 2, ROWS) are fp32 and contiguous.
    """
    group = (tl.program_id(0) % value_heads).to(tl.int64)
    batch = (tl.program_id(0) // value_heads).to(tl.int64)
    repeats = heads // value_heads
    rows = tl.arange(0, ROWS)
    position, head = rows % queries, group * repeats + rows // queries
    exists = rows < repeats * queries
    columns_d, columns_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    place = query + batch * query_strides[0] + (2 * head * query_strides[1] + position * query_strides[2])[:, None]
    inside = exists[:, None] & (columns_d < WIDTH)[None, :]
    query_1 = tl.load(place + columns_d[None, :], mask=inside, other=0.0)
    query_2 = tl.load(place + query_strides[1] + columns_d[None, :], mask=inside, other=0.0)
    key += batch * key_strides[0] + KEY_MAPS * group * key_strides[1]
    value += batch * value_strides[0] + PARTS * group * value_strides[1]
    part = VALUE_WIDTH // PARTS
    value_columns = (columns_v // part) * value_strides[1] + columns_v % part

    highest_1 = tl.full((ROWS,), NOTHING, tl.float32)
    highest_2 = tl.full((ROWS,), NOTHING, tl.float32)
    total_1 = tl.zeros((ROWS,), tl.float32)
    total_2 = tl.zeros((ROWS,), tl.float32)
    sums_1 = tl.zeros((ROWS, BLOCK_DV), tl.float32)
    sums_2 = tl.zeros((ROWS, BLOCK_DV), tl.float32)
    start = tl.program_id(1) * span
    for first in tl.range(start, tl.minimum(start + span, keys), BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        lines = columns.to(tl.int64)[:, None]
        exist = (columns < keys)[:, None]
        values = tl.load(
            value + lines * value_strides[2] + value_columns[None, :], other=0.0,
            mask=exist & (columns_v < VALUE_WIDTH)[None, :],
        )  # fmt: skip
        known = exist & (columns_d < WIDTH)[None, :]
        keys_1 = tl.load(key + lines * key_strides[2] + columns_d[None, :], mask=known, other=0.0)
        keys_2 = keys_1
        if KEY_MAPS == 2:
            keys_2 = tl.load(key + key_strides[1] + lines * key_strides[2] + columns_d[None, :], mask=known, other=0.0)
        seen = exists[:, None] & (columns < keys)[None, :]
        if CAUSAL:
            distance = position[:, None] + (keys - queries) - columns[None, :]
            seen = seen & (distance >= 0)
            if WINDOW > 0:
                seen = seen & (distance < WINDOW)
        if HAS_MASK:
            shown = mask + batch * mask_strides[0] + (head * mask_strides[1] + position * mask_strides[2])[:, None]
            seen = seen & (tl.load(shown + columns[None, :] * mask_strides[3], mask=seen, other=0) != 0)
        scores_1 = tl.where(seen, product(query_1, tl.trans(keys_1), RAISE) * scale, NOTHING)
        scores_2 = tl.where(seen, product(query_2, tl.trans(keys_2), RAISE) * scale, NOTHING)
        highest_1, total_1, sums_1 = softmax_step(scores_1, values, highest_1, total_1, sums_1, RAISE)
        highest_2, total_2, sums_2 = softmax_step(scores_2, values, highest_2, total_2, sums_2, RAISE)

    line = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 2 * ROWS + rows
    tl.store(highest + line, highest_1)
    tl.store(highest + line + ROWS, highest_2)
    tl.store(totals + line, total_1)
    tl.store(totals + line + ROWS, total_2)
    written = (columns_v < VALUE_WIDTH)[None, :]
    tl.store(sums + line[:, None] * VALUE_WIDTH + columns_v[None, :], sums_1, mask=written)
    tl.store(sums + (line + ROWS)[:, None] * VALUE_WIDTH + columns_v[None, :], sums_2, mask=written)


@triton.jit
def _joined(sums, highest, totals, line, spans, columns, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_SPANS: tl.constexpr):  # fmt: skip
    """One map's output (dv,) of one row from all spans."""
    numbers = tl.arange(0, BLOCK_SPANS)
    lines = line + numbers * 2 * ROWS
    exist = numbers < spans
    tops = tl.load(highest + lines, mask=exist, other=NOTHING)
    top = tl.max(tops, 0)
    shrink = tl.exp2(tops - tl.where(top == NOTHING, 0.0, top))
    total = tl.sum(tl.load(totals + lines, mask=exist, other=0.0) * shrink, 0)
    inside = exist[:, None] & (columns < VALUE_WIDTH)[None, :]
    parts = tl.load(sums + lines[:, None] * VALUE_WIDTH + columns[None, :], mask=inside, other=0.0)
    return tl.sum(parts * shrink[:, None], 0) / tl.where(total == 0.0, 1.0, total)


@triton.jit
def join_kernel(
    sums, highest, totals, lam, out, lam_strides, out_strides, heads, value_heads, queries, spans,
    VALUE_WIDTH: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, BLOCK_SPANS: tl.constexpr,
):  # fmt: skip
    """Output (dv,) of one query of one head. Grid: batch × value heads, R · N rows."""
    row = tl.program_id(1)
    group = (tl.program_id(0) % value_heads).to(tl.int64)
    batch = (tl.program_id(0) // value_heads).to(tl.int64)
    head, position = group * (heads // value_heads) + row // queries, row % queries
    columns = tl.arange(0, BLOCK_DV)
    line = tl.program_id(0).to(tl.int64) * spans * 2 * ROWS + row
    first = _joined(sums, highest, totals, line, spans, columns, ROWS, VALUE_WIDTH, BLOCK_DV, BLOCK_SPANS)
    second = _joined(sums, highest, totals, line + ROWS, spans, columns, ROWS, VALUE_WIDTH, BLOCK_DV, BLOCK_SPANS)
    factor = tl.load(lam + batch * lam_strides[0] + head * lam_strides[1] + position * lam_strides[2])
    place = out + batch * out_strides[0] + head * out_strides[1] + position * out_strides[2] + columns
    tl.store(place, (first - factor * second).to(out.dtype.element_ty), mask=columns < VALUE_WIDTH)
