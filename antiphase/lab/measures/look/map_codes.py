"""Attention weights in 8 bits: for each row its largest weight, and for each key the square root of its ratio to that.

The square root is used because attention often has one large weight and hundreds of small ones. With 255 equal steps
the small ones would become 0, and a third of a row's mass could vanish; with the square root, a weight of a thousandth
of the largest is still eight steps above 0.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

STEPS = 255


def encode(weights: NDArray[numpy.floating]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.float32]]:
    """Codes (..., M) and scales (...) of softmax weights (..., M), 0 or more each.

    The scale m is the largest weight of the row, the code of w is round(255 √(w/m)). ``decode`` gives w back within

        √(w m)/255 + m/510²

    (below 0.004 for any weight, m/510² for a weight of 0, which is exact), a difference w - λw' of two within the sum
    of both bounds, the second times \\|λ\\|. A row of n keys that summed to one does so within √(n m)/255 + n m/510²
    (Cauchy and Schwarz; errors of both signs make it far less).

    Raises:
        ValueError: a weight that is negative or not finite.
    """
    if not bool(numpy.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError("attention weights must be finite and 0 or more: each map is stored, not their difference")
    scales = weights.max(axis=-1, initial=0.0)
    share = weights / numpy.where(scales > 0, scales, 1.0)[..., None]
    return numpy.rint(STEPS * numpy.sqrt(share)).astype(numpy.uint8), scales.astype(numpy.float32)


def sums_to_one(codes: NDArray[numpy.uint8], scales: NDArray[numpy.float32]) -> NDArray[numpy.bool_]:
    """Whether each row (...) may have summed to one: it does so within the bound of ``encode``."""
    keys = numpy.count_nonzero(codes, axis=-1)
    bound = numpy.sqrt(keys * scales) / STEPS + codes.shape[-1] * scales / (2 * STEPS) ** 2
    return numpy.asarray(numpy.abs(1 - decode(codes, scales).sum(-1)) <= bound)


def decode(codes: NDArray[numpy.uint8], scales: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    """Weights (..., M) in fp32 from the codes (..., M) and scales (...) of ``encode``."""
    return scales[..., None] * numpy.square(codes.astype(numpy.float32) / STEPS)
