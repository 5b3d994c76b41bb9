"""Decoding kernels: a few queries over many keys, which are split into spans so that every multiprocessor reads a part.

Keys and values are read once each, in the layout of the cache. There, V1 values are stored as halves: heads 2i and 2i+1
are the two halves of value head i. Each span writes the highest scores, totals and sums of both maps, and a second
kernel combines them. The sums are those of ``difference_step``, so that rounding errors cancel where the maps do.

In a V1 layer the same two kernels also compute λ from its four vectors and normalize the heads' outputs: for one query,
separate operations take longer to launch than to run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphase.ops.triton.primitives import (
    MINUS_INFINITY,
    both_maps,
    difference_step,
    exponential_lambda,
    initial_state,
    load_rows,
    product,
    visible_pairs,
)


@triton.jit(do_not_specialize=["queries", "keys", "span"])
def span_kernel(
    query, key, value, lam, q1, k1, q2, k2, mask, sums,
    query_strides, key_strides, value_strides, lam_strides, mask_strides,
    heads, value_heads, queries, keys, span, scale, initial,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, PARTS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, OF_LAYER: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """One span of keys of one value head. Grid: batch × value heads, spans.

    Row ``repeat · queries + position`` is one query of one of the R heads; ROWS is their number, padded. ``sums`` is
    fp32 and contiguous: the sums (B, G, spans, 2, ROWS, dv), then highest scores and totals (B, G, spans, 2, ROWS). λ
    is in ``lam`` or, OF_LAYER, computed from four vectors and ``initial``.
    """
    group = (tl.program_id(0) % value_heads).to(tl.int64)
    batch = (tl.program_id(0) // value_heads).to(tl.int64)
    repeats = heads // value_heads
    row = tl.arange(0, ROWS)
    exist = row < repeats * queries
    known = tl.minimum(row, repeats * queries - 1)  # rows beyond the last repeat it and are not stored
    position, head = known % queries, group * repeats + known // queries
    asked = query + batch * query_strides[0] + 2 * head * query_strides[1]
    asked = (asked + position * query_strides[2])[:, None]
    query_1 = load_rows(asked, 0, row, ROWS, BLOCK_D, WIDTH)
    query_2 = load_rows(asked + query_strides[1], 0, row, ROWS, BLOCK_D, WIDTH)
    if OF_LAYER:
        lambdas = tl.zeros((ROWS,), tl.float32) + exponential_lambda(q1, k1, q2, k2, initial, WIDTH, BLOCK_D)
    else:
        lambdas = tl.load(lam + batch * lam_strides[0] + head * lam_strides[1] + position * lam_strides[2])
    shown = mask
    if HAS_MASK:
        shown = (mask + batch * mask_strides[0] + head * mask_strides[1])[:, None]
    key += batch * key_strides[0] + KEY_MAPS * group * key_strides[1]
    value += batch * value_strides[0] + PARTS * group * value_strides[1]
    part = VALUE_WIDTH // PARTS
    columns_v = tl.arange(0, BLOCK_DV)
    value_columns = (columns_v // part) * value_strides[1] + columns_v % part
    inside = (columns_v < VALUE_WIDTH)[None, :]

    state = initial_state(ROWS, BLOCK_DV)
    start = tl.program_id(1) * span
    for first in tl.range(start, tl.minimum(start + span, keys), BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        place = value + columns.to(tl.int64)[:, None] * value_strides[2] + value_columns[None, :]
        values = tl.load(place, mask=(columns < keys)[:, None] & inside, other=0.0)
        keys_1 = load_rows(key, key_strides[2], columns, keys, BLOCK_D, WIDTH)
        keys_2 = keys_1
        if KEY_MAPS == 2:
            keys_2 = load_rows(key + key_strides[1], key_strides[2], columns, keys, BLOCK_D, WIDTH)
        seen = visible_pairs(
            position[:, None], columns[None, :], queries, keys, shown, mask_strides, CAUSAL, WINDOW, HAS_MASK
        )
        scores_1 = tl.where(seen, product(query_1, tl.trans(keys_1), RAISE) * scale, MINUS_INFINITY)
        scores_2 = tl.where(seen, product(query_2, tl.trans(keys_2), RAISE) * scale, MINUS_INFINITY)
        state = difference_step(scores_1, scores_2, values, lambdas, state, RAISE)

    highest_1, total_1, sums_1, highest_2, total_2, sums_2 = both_maps(state)
    lines = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * 2 * ROWS
    highest, totals = sums + lines * VALUE_WIDTH, sums + lines * (VALUE_WIDTH + 1)
    line = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 2 * ROWS + row
    tl.store(highest + line, highest_1, mask=exist)
    tl.store(highest + line + ROWS, highest_2, mask=exist)
    tl.store(totals + line, total_1, mask=exist)
    tl.store(totals + line + ROWS, total_2, mask=exist)
    stored = exist[:, None] & inside
    tl.store(sums + line[:, None] * VALUE_WIDTH + columns_v[None, :], sums_1, mask=stored)
    tl.store(sums + (line + ROWS)[:, None] * VALUE_WIDTH + columns_v[None, :], sums_2, mask=stored)


@triton.jit
def _joined(sums, highest, totals, line, spans, columns, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_SPANS: tl.constexpr):  # fmt: skip
    """One map's output (dv,) for one row, from all spans."""
    numbers = tl.arange(0, BLOCK_SPANS)
    lines = line + numbers * 2 * ROWS
    exist = numbers < spans
    tops = tl.load(highest + lines, mask=exist, other=MINUS_INFINITY)
    top = tl.max(tops, 0)
    shrink = tl.exp2(tops - tl.where(top == MINUS_INFINITY, 0.0, top))
    total = tl.sum(tl.load(totals + lines, mask=exist, other=0.0) * shrink, 0)
    inside = exist[:, None] & (columns < VALUE_WIDTH)[None, :]
    parts = tl.load(sums + lines[:, None] * VALUE_WIDTH + columns[None, :], mask=inside, other=0.0)
    return tl.sum(parts * shrink[:, None], 0) / tl.where(total == 0.0, 1.0, total)


@triton.jit(do_not_specialize=["queries", "spans"])
def join_kernel(
    sums, lam, q1, k1, q2, k2, weight, out, lam_strides, out_strides, heads, value_heads, queries, spans,
    initial, eps, factor,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SPANS: tl.constexpr, OF_LAYER: tl.constexpr,
):  # fmt: skip
    """Output (dv,) for one query of one head; OF_LAYER, normalized. Grid: batch × value heads, R · N rows."""
    row = tl.program_id(1)
    group = (tl.program_id(0) % value_heads).to(tl.int64)
    batch = (tl.program_id(0) // value_heads).to(tl.int64)
    head, position = group * (heads // value_heads) + row // queries, row % queries
    columns = tl.arange(0, BLOCK_DV)
    lines = tl.num_programs(0).to(tl.int64) * spans * 2 * ROWS
    highest, totals = sums + lines * VALUE_WIDTH, sums + lines * (VALUE_WIDTH + 1)
    line = tl.program_id(0).to(tl.int64) * spans * 2 * ROWS + row
    first = _joined(sums, highest, totals, line, spans, columns, ROWS, VALUE_WIDTH, BLOCK_DV, BLOCK_SPANS)
    second = _joined(sums, highest, totals, line + ROWS, spans, columns, ROWS, VALUE_WIDTH, BLOCK_DV, BLOCK_SPANS)
    if OF_LAYER:
        difference = first - exponential_lambda(q1, k1, q2, k2, initial, WIDTH, BLOCK_D) * second
        shrink = factor / tl.sqrt(tl.sum(difference * difference, 0) / VALUE_WIDTH + eps)
        difference = difference * shrink * tl.load(weight + columns, mask=columns < VALUE_WIDTH, other=0.0)
    else:
        lambdas = tl.load(lam + batch * lam_strides[0] + head * lam_strides[1] + position * lam_strides[2])
        difference = first - lambdas * second
    place = out + batch * out_strides[0] + head * out_strides[1] + position * out_strides[2] + columns
    tl.store(place, difference.to(out.dtype.element_ty), mask=columns < VALUE_WIDTH)
