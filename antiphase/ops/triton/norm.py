"""Kernels of RMSNorm and λ, forward and backward: what PyTorch does in several kernels each."""

from __future__ import annotations

import triton
import triton.language as tl

from antiphase.ops.triton.primitives import dot, exponential_lambda


@triton.jit
def _rows(base, rows, columns, count, WIDTH: tl.constexpr):
    """Rows of a contiguous tensor in fp32, with zeros beyond ``count`` and WIDTH."""
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    return tl.load(base + place, mask=inside, other=0.0).to(tl.float32), place, inside


@triton.jit(do_not_specialize=["count"])
def norm_kernel(tensor, weight, out, count, eps, factor, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Normalize ROWS rows of ``count``. Grid: blocks of rows."""
    columns = tl.arange(0, BLOCK)
    rows, place, inside = _rows(tensor, tl.program_id(0) * ROWS + tl.arange(0, ROWS), columns, count, WIDTH)
    scale = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(tl.float32) * factor
    shrink = 1.0 / tl.sqrt(tl.sum(rows * rows, 1) / WIDTH + eps)
    tl.store(out + place, (rows * shrink[:, None] * scale[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def norm_backward_kernel(
    grad, tensor, weight, grad_tensor, grad_weight, count, eps, factor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of every row, and one row of sums for the weight's, (programs, WIDTH) in fp32. Grid: any number."""
    columns = tl.arange(0, BLOCK)
    scale = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(tl.float32) * factor
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        numbers = first + tl.arange(0, ROWS)
        rows, place, inside = _rows(tensor, numbers, columns, count, WIDTH)
        slopes, _, _ = _rows(grad, numbers, columns, count, WIDTH)
        # rows beyond the last are zero, and would divide 0 by 0 with ε = 0
        shrink = tl.where(numbers < count, 1.0 / tl.sqrt(tl.sum(rows * rows, 1) / WIDTH + eps), 0.0)
        normalized = rows * shrink[:, None]
        sums += tl.sum(slopes * normalized, 0)
        slopes = slopes * scale[None, :]
        along = tl.sum(slopes * normalized, 1) / WIDTH
        found = (slopes - normalized * along[:, None]) * shrink[:, None]
        tl.store(grad_tensor + place, found.to(grad_tensor.dtype.element_ty), mask=inside)
    tl.store(grad_weight + tl.program_id(0) * WIDTH + columns, sums * factor, mask=columns < WIDTH)


@triton.jit
def lambda_kernel(q1, k1, q2, k2, out, initial, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """λ, one number. Grid: 1."""
    tl.store(out, exponential_lambda(q1, k1, q2, k2, initial, WIDTH, BLOCK))


@triton.jit
def _slope(first, second, factor, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of ``factor`` · exp(first · second) with respect to both vectors, one after the other."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    slope = factor * tl.exp(dot(first, second, WIDTH, BLOCK))
    tl.store(out + columns, slope * tl.load(second + columns, mask=inside).to(tl.float32), mask=inside)
    tl.store(out + WIDTH + columns, slope * tl.load(first + columns, mask=inside).to(tl.float32), mask=inside)


@triton.jit
def lambda_backward_kernel(q1, k1, q2, k2, grad, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of all four vectors, (4, d) in fp32. Grid: 1."""
    slope = tl.load(grad)
    _slope(q1, k1, slope, out, WIDTH, BLOCK)
    _slope(q2, k2, -slope, out + 2 * WIDTH, WIDTH, BLOCK)
