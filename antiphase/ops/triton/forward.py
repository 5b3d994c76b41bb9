"""Forward kernel: two online softmaxes in one sweep over keys and values; the difference is computed at the end.

The normalisers of both maps are known only after the last key, so there are two sums over values, one of the current
estimate of the difference and one of the second map: 2d + 4d multiply-adds per pair. Besides the output, backward needs
both log-sum-exps and the second map's output.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphase.ops.triton.primitives import (
    MINUS_INFINITY,
    at,
    both_maps,
    difference_step,
    initial_state,
    key_parts,
    load_rows,
    normalized,
    owner,
    product,
    store_rows,
    visible_pairs,
)


@triton.jit
def _sweep(
    start, stop, state, query_1, query_2, lambdas, key_1, key_2, value, key_stride, value_stride, rows, queries, keys,
    scale, mask, mask_strides,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
    CHECKED: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Add keys ``start`` to ``stop`` to the state of both softmaxes; unless CHECKED, every query sees all of them."""
    for first in tl.range(start, stop, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        values = load_rows(value, value_stride, columns, keys, BLOCK_DV, VALUE_WIDTH)
        keys_1 = load_rows(key_1, key_stride, columns, keys, BLOCK_D, WIDTH)
        keys_2 = keys_1
        if KEY_MAPS == 2:
            keys_2 = load_rows(key_2, key_stride, columns, keys, BLOCK_D, WIDTH)
        scores_1 = product(query_1, tl.trans(keys_1), RAISE) * scale
        scores_2 = product(query_2, tl.trans(keys_2), RAISE) * scale
        if CHECKED:
            seen = visible_pairs(
                rows[:, None], columns[None, :], queries, keys, mask, mask_strides, CAUSAL, WINDOW, HAS_MASK
            )
            scores_1 = tl.where(seen, scores_1, MINUS_INFINITY)
            scores_2 = tl.where(seen, scores_2, MINUS_INFINITY)
        state = difference_step(scores_1, scores_2, values, lambdas, state, RAISE)
    return state


@triton.jit(do_not_specialize=["all_queries", "all_keys"])
def forward_kernel(
    query, key, value, lam, mask, out, second, logsumexp, query_edges, key_edges,
    query_strides, key_strides, value_strides, lam_strides, mask_strides, out_strides,
    heads, value_heads, all_queries, all_keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, PACKED: tl.constexpr, SAVE: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Grid: (batch or sequences) × heads, blocks of queries."""
    head, batch, first_query, queries, first_key, keys = owner(
        heads, query_edges, key_edges, all_queries, all_keys, PACKED
    )
    # the last queries of a causal map have the most keys, so they start first
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    if first_row >= queries:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    group = head // (heads // value_heads)
    query = at(query, query_strides, batch, 2 * head, first_query)
    key = at(key, key_strides, batch, KEY_MAPS * group, first_key)
    value = at(value, value_strides, batch, group, first_key)
    query_1 = load_rows(query, query_strides[2], rows, queries, BLOCK_D, WIDTH)
    query_2 = load_rows(query + query_strides[1], query_strides[2], rows, queries, BLOCK_D, WIDTH)
    if HAS_MASK:
        mask += batch * mask_strides[0] + head * mask_strides[1]

    start, whole_start, whole_stop, stop = key_parts(
        first_row, queries, keys, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HAS_MASK
    )
    lambdas = tl.load(at(lam, lam_strides, batch, head, first_query + rows), mask=rows < queries, other=0.0)
    state = initial_state(BLOCK_M, BLOCK_DV)
    if WINDOW > 0:
        state = _sweep(
            start, whole_start, state, query_1, query_2, lambdas, key, key + key_strides[1], value,
            key_strides[2], value_strides[2], rows, queries, keys, scale, mask, mask_strides, WIDTH, VALUE_WIDTH,
            BLOCK_D, BLOCK_DV, BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, True, RAISE,
        )  # fmt: skip
    if not HAS_MASK:
        state = _sweep(
            whole_start, whole_stop, state, query_1, query_2, lambdas, key, key + key_strides[1], value,
            key_strides[2], value_strides[2], rows, queries, keys, scale, mask, mask_strides, WIDTH, VALUE_WIDTH,
            BLOCK_D, BLOCK_DV, BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, False, RAISE,
        )  # fmt: skip
    state = _sweep(
        whole_stop, stop, state, query_1, query_2, lambdas, key, key + key_strides[1], value, key_strides[2],
        value_strides[2], rows, queries, keys, scale, mask, mask_strides, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_DV,
        BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, True, RAISE,
    )  # fmt: skip

    highest_1, total_1, sums_1, highest_2, total_2, sums_2 = both_maps(state)
    out_1, lse_1 = normalized(highest_1, total_1, sums_1)
    out_2, lse_2 = normalized(highest_2, total_2, sums_2)
    difference = out_1 - lambdas[:, None] * out_2
    out = at(out, out_strides, batch, head, first_query)
    store_rows(out, out_strides[2], rows, queries, difference, BLOCK_DV, VALUE_WIDTH)
    if SAVE:
        second = at(second, out_strides, batch, head, first_query)
        store_rows(second, out_strides[2], rows, queries, out_2, BLOCK_DV, VALUE_WIDTH)
        line = logsumexp + (batch * heads + head) * 2 * all_queries + first_query + rows
        tl.store(line, lse_1, mask=rows < queries)
        tl.store(line + all_queries, lse_2, mask=rows < queries)
