"""Backward kernels: maps are recomputed from the saved log-sum-exps, in one sweep for keys and values, one for queries.

With the maps P1, P2, dP = dO Vᵀ and δi = rowsum(dO∘Oi), which a separate kernel computes: dV = (P1 - λP2)ᵀ dO; dS1 =
P1∘(dP - δ1); dS2 = -λP2∘(dP - δ2); dKi = dSiᵀ Qi s; dQi = dSi Ki s; dλ = -δ2. A program owns some keys and values and
loops over all queries that see them (8d multiply-adds per pair), or owns some queries and loops over the keys that they
see (6d). Nothing is added across programs, so results do not depend on the order in which these run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from antiphase.ops.triton.primitives import (
    at,
    key_parts,
    load_rows,
    owner,
    product,
    query_parts,
    store_rows,
    visible_pairs,
)


@triton.jit
def _line(base, first, rows, queries, beyond):
    """One number per row, ``beyond`` after the last row."""
    return tl.load(base + first + rows, mask=rows < queries, other=beyond)


@triton.jit
def _map(rows_tile, columns_tile, logsumexp, scale, RAISE: tl.constexpr):
    """One softmax map from its saved log-sum-exps, which are +inf, so that weights are 0, for rows that see no key."""
    return tl.exp2(product(rows_tile, tl.trans(columns_tile), RAISE) * scale - logsumexp)


@triton.jit(do_not_specialize=["queries"])
def deltas_kernel(
    grad, out, second, lam, deltas, grad_strides, out_strides, second_strides, lam_strides, heads, queries,
    VALUE_WIDTH: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """δ1 = rowsum(dO∘O) + λ δ2 and δ2 = rowsum(dO∘O2) of one block of queries of one head, (B, H, 2, N).

    Grid: batch × heads × blocks of queries.
    """
    blocks = tl.cdiv(queries, BLOCK_M)
    head = ((tl.program_id(0) // blocks) % heads).to(tl.int64)
    batch = (tl.program_id(0) // blocks // heads).to(tl.int64)
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    cotangent = at(grad, grad_strides, batch, head, 0)
    cotangent = load_rows(cotangent, grad_strides[2], rows, queries, BLOCK_DV, VALUE_WIDTH).to(tl.float32)
    place = at(out, out_strides, batch, head, 0)
    delta_1 = tl.sum(cotangent * load_rows(place, out_strides[2], rows, queries, BLOCK_DV, VALUE_WIDTH), 1)
    place = at(second, second_strides, batch, head, 0)
    delta_2 = tl.sum(cotangent * load_rows(place, second_strides[2], rows, queries, BLOCK_DV, VALUE_WIDTH), 1)
    lambdas = tl.load(at(lam, lam_strides, batch, head, rows), mask=rows < queries, other=0.0)
    line = deltas + (batch * heads + head) * 2 * queries + rows
    tl.store(line, delta_1 + lambdas * delta_2, mask=rows < queries)
    tl.store(line + queries, delta_2, mask=rows < queries)


@triton.jit
def _sweep_queries(
    start, stop, sums, keys_1, keys_2, values, columns, query, cotangent, lam, logsumexp, deltas, mask,
    query_strides, grad_strides, lam_strides, mask_strides, all_queries, queries, keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
    RAISE: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Add what queries ``start`` to ``stop`` contribute to the gradients of a block of keys and values.

    Unless CHECKED, all these queries see all keys of the block.
    """
    sum_1, sum_2, sum_values = sums
    for first in tl.range(start, stop, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        query_1 = load_rows(query, query_strides[2], rows, queries, BLOCK_D, WIDTH)
        query_2 = load_rows(query + query_strides[1], query_strides[2], rows, queries, BLOCK_D, WIDTH)
        outputs = load_rows(cotangent, grad_strides[2], rows, queries, BLOCK_DV, VALUE_WIDTH)
        infinity = float("inf")
        map_1 = _map(query_1, keys_1, _line(logsumexp, 0, rows, queries, infinity)[:, None], scale, RAISE)
        map_2 = _map(query_2, keys_2, _line(logsumexp, all_queries, rows, queries, infinity)[:, None], scale, RAISE)
        if CHECKED:
            seen = visible_pairs(
                rows[:, None], columns[None, :], queries, keys, mask, mask_strides, CAUSAL, WINDOW, HAS_MASK
            )
            map_1 = tl.where(seen, map_1, 0.0)
            map_2 = tl.where(seen, map_2, 0.0)
        map_2 = map_2 * tl.load(lam + rows * lam_strides[2], mask=rows < queries, other=0.0)[:, None]
        sum_values += product(tl.trans((map_1 - map_2).to(outputs.dtype)), outputs, RAISE)
        slopes = product(outputs, tl.trans(values), RAISE)
        scores_1 = map_1 * (slopes - _line(deltas, 0, rows, queries, 0.0)[:, None])
        scores_2 = map_2 * (_line(deltas, all_queries, rows, queries, 0.0)[:, None] - slopes)
        sum_1 += product(tl.trans(scores_1.to(query_1.dtype)), query_1, RAISE)
        if KEY_MAPS == 2:
            sum_2 += product(tl.trans(scores_2.to(query_2.dtype)), query_2, RAISE)
        else:
            sum_1 += product(tl.trans(scores_2.to(query_2.dtype)), query_2, RAISE)
    return sum_1, sum_2, sum_values


@triton.jit(do_not_specialize=["all_queries", "all_keys"])
def keys_kernel(
    query, key, value, lam, mask, grad, logsumexp, deltas, query_edges, key_edges, grad_key, grad_value,
    grad_key_strides, grad_value_strides, query_strides, key_strides, value_strides, lam_strides, mask_strides,
    grad_strides, heads, value_heads, all_queries, all_keys, scale, factor,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, PACKED: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values. Grid: (batch or sequences) × value heads, blocks of keys."""
    group, batch, first_query, queries, first_key, keys = owner(
        value_heads, query_edges, key_edges, all_queries, all_keys, PACKED
    )
    block_start = tl.program_id(1) * BLOCK_N
    if block_start >= keys:
        return
    columns = block_start + tl.arange(0, BLOCK_N)
    key = at(key, key_strides, batch, KEY_MAPS * group, first_key)
    value = at(value, value_strides, batch, group, first_key)
    keys_1 = load_rows(key, key_strides[2], columns, keys, BLOCK_D, WIDTH)
    keys_2 = keys_1
    if KEY_MAPS == 2:
        keys_2 = load_rows(key + key_strides[1], key_strides[2], columns, keys, BLOCK_D, WIDTH)
    values = load_rows(value, value_strides[2], columns, keys, BLOCK_DV, VALUE_WIDTH)
    sum_1 = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    sum_2 = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    sum_values = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    start, whole_start, whole_stop, stop = query_parts(
        block_start, queries, keys, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HAS_MASK
    )
    repeats = heads // value_heads

    for repeat in range(repeats):
        head = group * repeats + repeat
        asked = at(query, query_strides, batch, 2 * head, first_query)
        cotangent = at(grad, grad_strides, batch, head, first_query)
        lambdas = at(lam, lam_strides, batch, head, first_query)
        lines = (batch * heads + head) * 2 * all_queries + first_query
        shown = mask
        if HAS_MASK:
            shown = mask + batch * mask_strides[0] + head * mask_strides[1]
        sums = sum_1, sum_2, sum_values
        sums = _sweep_queries(
            start, whole_start, sums, keys_1, keys_2, values, columns, asked, cotangent, lambdas, logsumexp + lines,
            deltas + lines, shown, query_strides, grad_strides, lam_strides, mask_strides, all_queries, queries,
            keys, scale, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_DV, BLOCK_M, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK,
            RAISE, True,
        )  # fmt: skip
        if not HAS_MASK:
            sums = _sweep_queries(
                whole_start, whole_stop, sums, keys_1, keys_2, values, columns, asked, cotangent, lambdas,
                logsumexp + lines, deltas + lines, shown, query_strides, grad_strides, lam_strides,
                mask_strides, all_queries, queries, keys, scale, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_DV, BLOCK_M,
                KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, RAISE, False,
            )  # fmt: skip
        if WINDOW > 0:
            sums = _sweep_queries(
                whole_stop, stop, sums, keys_1, keys_2, values, columns, asked, cotangent, lambdas, logsumexp + lines,
                deltas + lines, shown, query_strides, grad_strides, lam_strides, mask_strides, all_queries,
                queries, keys, scale, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_DV, BLOCK_M, KEY_MAPS, CAUSAL, WINDOW,
                HAS_MASK, RAISE, True,
            )  # fmt: skip
        sum_1, sum_2, sum_values = sums

    grad_value = at(grad_value, grad_value_strides, batch, group, first_key)
    store_rows(grad_value, grad_value_strides[2], columns, keys, sum_values, BLOCK_DV, VALUE_WIDTH)
    grad_key = at(grad_key, grad_key_strides, batch, KEY_MAPS * group, first_key)
    store_rows(grad_key, grad_key_strides[2], columns, keys, sum_1 * factor, BLOCK_D, WIDTH)
    if KEY_MAPS == 2:
        grad_key += grad_key_strides[1]
        store_rows(grad_key, grad_key_strides[2], columns, keys, sum_2 * factor, BLOCK_D, WIDTH)


@triton.jit
def _sweep_keys(
    start, stop, sums, query_1, query_2, outputs, lambdas, logsumexp_1, logsumexp_2, delta_1, delta_2, rows, key, value,
    mask, key_strides, value_strides, mask_strides, queries, keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
    RAISE: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Add what keys ``start`` to ``stop`` contribute to the gradients of a block of queries."""
    sum_1, sum_2 = sums
    for first in tl.range(start, stop, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_1 = load_rows(key, key_strides[2], columns, keys, BLOCK_D, WIDTH)
        keys_2 = keys_1
        if KEY_MAPS == 2:
            keys_2 = load_rows(key + key_strides[1], key_strides[2], columns, keys, BLOCK_D, WIDTH)
        values = load_rows(value, value_strides[2], columns, keys, BLOCK_DV, VALUE_WIDTH)
        map_1 = _map(query_1, keys_1, logsumexp_1[:, None], scale, RAISE)
        map_2 = _map(query_2, keys_2, logsumexp_2[:, None], scale, RAISE)
        if CHECKED:
            seen = visible_pairs(
                rows[:, None], columns[None, :], queries, keys, mask, mask_strides, CAUSAL, WINDOW, HAS_MASK
            )
            map_1 = tl.where(seen, map_1, 0.0)
            map_2 = tl.where(seen, map_2, 0.0)
        slopes = product(outputs, tl.trans(values), RAISE)
        scores_1 = map_1 * (slopes - delta_1[:, None])
        scores_2 = map_2 * (delta_2[:, None] - slopes) * lambdas[:, None]
        sum_1 += product(scores_1.to(keys_1.dtype), keys_1, RAISE)
        sum_2 += product(scores_2.to(keys_2.dtype), keys_2, RAISE)
    return sum_1, sum_2


@triton.jit(do_not_specialize=["all_queries", "all_keys"])
def queries_kernel(
    query, key, value, lam, mask, grad, logsumexp, deltas, query_edges, key_edges, grad_query,
    grad_query_strides, query_strides, key_strides, value_strides, lam_strides, mask_strides, grad_strides,
    heads, value_heads, all_queries, all_keys, scale, factor,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEY_MAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, PACKED: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries. Grid as for the forward kernel."""
    head, batch, first_query, queries, first_key, keys = owner(
        heads, query_edges, key_edges, all_queries, all_keys, PACKED
    )
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    if first_row >= queries:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    group = head // (heads // value_heads)
    query = at(query, query_strides, batch, 2 * head, first_query)
    key = at(key, key_strides, batch, KEY_MAPS * group, first_key)
    value = at(value, value_strides, batch, group, first_key)
    grad = at(grad, grad_strides, batch, head, first_query)
    lines = (batch * heads + head) * 2 * all_queries + first_query
    query_1 = load_rows(query, query_strides[2], rows, queries, BLOCK_D, WIDTH)
    query_2 = load_rows(query + query_strides[1], query_strides[2], rows, queries, BLOCK_D, WIDTH)
    outputs = load_rows(grad, grad_strides[2], rows, queries, BLOCK_DV, VALUE_WIDTH)
    factors = tl.load(at(lam, lam_strides, batch, head, first_query + rows), mask=rows < queries, other=0.0)
    infinity = float("inf")
    logsumexp_1 = _line(logsumexp, lines, rows, queries, infinity)
    logsumexp_2 = _line(logsumexp, lines + all_queries, rows, queries, infinity)
    delta_1 = _line(deltas, lines, rows, queries, 0.0)
    delta_2 = _line(deltas, lines + all_queries, rows, queries, 0.0)
    if HAS_MASK:
        mask += batch * mask_strides[0] + head * mask_strides[1]
    sum_1 = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    sum_2 = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    start, whole_start, whole_stop, stop = key_parts(
        first_row, queries, keys, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HAS_MASK
    )
    sums = sum_1, sum_2
    if WINDOW > 0:
        sums = _sweep_keys(
            start, whole_start, sums, query_1, query_2, outputs, factors, logsumexp_1, logsumexp_2, delta_1, delta_2,
            rows, key, value, mask, key_strides, value_strides, mask_strides, queries, keys, scale, WIDTH, VALUE_WIDTH,
            BLOCK_D, BLOCK_DV, BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, RAISE, True,
        )  # fmt: skip
    if not HAS_MASK:
        sums = _sweep_keys(
            whole_start, whole_stop, sums, query_1, query_2, outputs, factors, logsumexp_1, logsumexp_2, delta_1,
            delta_2, rows, key, value, mask, key_strides, value_strides, mask_strides, queries, keys, scale, WIDTH,
            VALUE_WIDTH, BLOCK_D, BLOCK_DV, BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, RAISE, False,
        )  # fmt: skip
    sums = _sweep_keys(
        whole_stop, stop, sums, query_1, query_2, outputs, factors, logsumexp_1, logsumexp_2, delta_1, delta_2,
        rows, key, value, mask, key_strides, value_strides, mask_strides, queries, keys, scale, WIDTH, VALUE_WIDTH,
        BLOCK_D, BLOCK_DV, BLOCK_N, KEY_MAPS, CAUSAL, WINDOW, HAS_MASK, RAISE, True,
    )  # fmt: skip
    sum_1, sum_2 = sums
    grad_query = at(grad_query, grad_query_strides, batch, 2 * head, first_query)
    store_rows(grad_query, grad_query_strides[2], rows, queries, sum_1 * factor, BLOCK_D, WIDTH)
    grad_query += grad_query_strides[1]
    store_rows(grad_query, grad_query_strides[2], rows, queries, sum_2 * factor, BLOCK_D, WIDTH)
