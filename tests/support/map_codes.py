"""What the docstring of ``map_codes.encode`` says on errors, as a formula."""

import numpy


def error_bound(weights):
    """Of each weight (..., M) that was coded and decoded, without fp32 rounding."""
    scales = weights.max(axis=-1, keepdims=True)
    return numpy.sqrt(weights * scales) / 255 + scales / 510**2
