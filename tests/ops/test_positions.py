"""Sinusoidal positions are the paper's formula, and moving on is a rotation."""

from __future__ import annotations

import math

import pytest
import torch

from antiphase.ops.positions import sinusoidal_positions


def test_every_entry_is_the_formula():
    """1706.03762, section 3.5."""
    found = sinusoidal_positions(50, 128)
    assert (found.shape, found.dtype) == ((50, 128), torch.float32)
    for position in (0, 1, 7, 49):
        for pair in (0, 1, 30, 63):
            angle = position / 10000 ** (2 * pair / 128)
            assert found[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert found[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_a_step_turns_each_pair_by_a_fixed_angle():
    rows = sinusoidal_positions(40, 6, base=100.0).double().unflatten(1, (3, 2))
    turned = torch.view_as_complex(rows[5:].contiguous()) / torch.view_as_complex(rows[:-5].contiguous())
    torch.testing.assert_close(turned, turned[:1].expand_as(turned), rtol=1e-5, atol=1e-5)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"must be even.*got 7"):
        sinusoidal_positions(3, 7)
