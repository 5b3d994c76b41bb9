"""Weights in 8 bits: never further from the weight than the docstring says, difference and row sum included."""

import numpy
import pytest

from antiphase.lab.measures.look.map_codes import decode, encode
from support.map_codes import error_bound

FP32 = 2e-7
"""Rounding of scale, square and product in fp32, relative to the largest weight."""


def softmax(scores):
    raised = numpy.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


@pytest.fixture(params=[0.0, 0.5, 2.0, 8.0, 30.0], ids=lambda spread: f"scores of spread {spread}")
def weights(request):
    """Softmax rows from uniform to nearly one-hot, (5, 2, 37, 251)."""
    return softmax(numpy.random.default_rng(3).normal(0.0, request.param, (5, 2, 37, 251)))


def test_no_weight_errs_more_than_its_bound(weights):
    codes, scales = encode(weights)
    assert (codes.dtype, scales.dtype, codes.shape, scales.shape) == (
        numpy.uint8, numpy.float32, weights.shape, (5, 2, 37),
    )  # fmt: skip
    error = numpy.abs(decode(codes, scales).astype(float) - weights)
    largest = weights.max(-1, keepdims=True)
    assert (error <= error_bound(weights) + FP32 * largest).all()
    assert error.max() < 0.004
    assert error[weights == largest].max() <= FP32, "the largest weight of a row is kept"


def test_the_bound_is_reached():
    """Half a step above the code: no smaller bound would hold."""
    codes = numpy.arange(255)
    weights = numpy.append(((codes + 0.499999) / 255) ** 2, 1.0)
    error = numpy.abs(decode(*encode(weights)).astype(float) - weights)[:-1]
    assert (error >= 0.99 * (error_bound(weights)[:-1] - 2 / 510**2)).all()
    assert (error[10:] >= 0.9 * error_bound(weights)[10:-1]).all()


def test_the_difference_of_two_maps_errs_at_most_both_bounds(weights):
    lam = numpy.linspace(0.2, 1.3, 37)[:, None]
    found = decode(*encode(weights)).astype(float)
    difference, expected = (both[:, 0] - lam * both[:, 1] for both in (found, weights))
    bound = error_bound(weights)
    assert (numpy.abs(difference - expected) <= bound[:, 0] + lam * bound[:, 1] + 2 * FP32).all()


def test_rows_still_sum_to_one_within_the_bound(weights):
    sums = decode(*encode(weights)).astype(float).sum(-1)
    largest = weights.max(-1)
    keys = weights.shape[-1]
    assert (numpy.abs(sums - 1) <= numpy.sqrt(keys * largest) / 255 + keys * largest / 510**2 + 1e-6).all()
    assert numpy.abs(sums - 1).max() < 0.02


def test_a_sink_leaves_the_other_weights_visible():
    """What equal steps lose: one key with 0.75, the others sharing the rest, each below half of 1/255."""
    row = numpy.full(251, 0.25 / 250)
    row[0] = 0.75
    found = decode(*encode(row))
    assert numpy.rint(255 * row[1:] / 0.75).max() == 0
    numpy.testing.assert_allclose(found, row, rtol=0.07)


def test_zeros_stay_zeros():
    codes, scales = encode(numpy.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    numpy.testing.assert_array_equal(decode(codes, scales), [[0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("wrong", [-0.1, numpy.nan, numpy.inf])
def test_values_that_are_not_softmax_weights_are_refused(wrong):
    with pytest.raises(ValueError, match="finite and 0 or more"):
        encode(numpy.array([0.5, wrong]))
