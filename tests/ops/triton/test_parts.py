"""Which keys and queries a sweep checks: none that it need not see, and no pair unchecked that is hidden."""

from random import Random

import pytest
import torch

launch = pytest.importorskip("antiphase.ops.triton.launch", reason="Triton is not installed", exc_type=ImportError)

import triton  # noqa: E402 – it may be missing
import triton.language as tl  # noqa: E402 – as above

from antiphase.ops.triton.primitives import key_parts, query_parts  # noqa: E402 – it needs Triton

pytestmark = pytest.mark.skipif(
    not launch.INTERPRETED, reason="arithmetic on whole numbers, for which every case would be compiled"
)


@triton.jit
def edges_kernel(
    out, first, queries, keys, OF_KEYS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """The four edges of a block's parts."""
    if OF_KEYS:
        a, b, c, d = key_parts(first, queries, keys, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HAS_MASK)
    else:
        a, b, c, d = query_parts(first, queries, keys, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HAS_MASK)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


def visible(queries, keys, is_causal, window):
    distance = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if is_causal:
        seen = distance >= 0
    return seen & (distance < window) if window else seen


@pytest.mark.parametrize("of_keys", [True, False])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_parts_hold_every_visible_pair_and_the_whole_part_no_hidden_one(of_keys, seed):
    random, whole = Random(seed), 0
    for _ in range(25):
        queries, keys = random.randint(1, 70), random.randint(1, 70)
        rows, columns = random.choice((8, 16)), random.choice((8, 16))
        is_causal, has_mask = random.random() < 0.8, random.random() < 0.2
        window = random.choice((0, 1, 5, 20, 50)) if is_causal else 0
        seen = visible(queries, keys, is_causal, window)
        seen = seen if of_keys else seen.T  # (rows of the block, what it sweeps)
        block, step = (rows, columns) if of_keys else (columns, rows)
        for first in range(0, len(seen), block):
            out = torch.empty(4, dtype=torch.int32)
            edges_kernel[(1,)](out, first, queries, keys, of_keys, rows, columns, is_causal, window, has_mask)
            start, whole_start, whole_stop, stop = out.tolist()
            assert 0 <= start <= whole_start <= whole_stop
            own = seen[first : first + block]
            assert not own[:, :start].any()
            assert not own[:, max(start, stop) :].any()
            assert own[:, whole_start:whole_stop].all()
            assert start % step == 0
            assert whole_start >= whole_stop or (whole_start % step == 0 and (whole_stop % step == 0 or not of_keys))
            assert window or whole_start == start or not of_keys  # only a window hides the first keys
            assert window or whole_stop >= stop or of_keys  # and the last queries
            assert of_keys or whole_start >= whole_stop or first + block <= keys
            assert not has_mask or whole_start >= whole_stop
            whole += max(0, whole_stop - whole_start)
            for place in range(start, stop, step):  # nothing is swept in vain, or checked in vain
                pairs = own[:, place : place + step]
                assert pairs.any()
                is_whole = pairs.all() and pairs.shape == (block, step)
                assert has_mask or not is_whole or whole_start <= place < whole_stop
    assert whole > 0
