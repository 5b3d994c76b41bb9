"""Attention of random inputs, and an implementation held against the reference: outputs and every gradient."""

import itertools

import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from antiphase import differential_attention
from antiphase.ops.shapes import positions_mask

NAMES = ("out", "query", "key", "value", "lam")


def inputs(batch, heads, groups, queries, keys, width, value_width, key_maps, dtype=torch.float64, maps=2):
    """Query (B, maps · H, N, d), key (B, key maps · G, M, d) and value (B, G, M, dv), which ask for gradients."""
    shapes = ((maps * heads, queries, width), (key_maps * groups, keys, width), (groups, keys, value_width))
    return [torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def in_full(*tensors):
    """The same in fp64, apart from what made them."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def cotangent(out):
    return torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(out.dtype)


def run(impl, query, key, value, lam, **options):
    """Output and the gradients of query, key, value and λ for a fixed cotangent."""
    out = differential_attention(query, key, value, lam, impl=impl, **options)
    return out, *torch.autograd.grad(out, (query, key, value, lam), cotangent(out))


def assert_equal_to_reference(impl, *tensors, rtol=1e-11, atol=1e-11, **options):
    expected = run("reference", *in_full(*tensors), **options)
    for name, one, other in zip(NAMES, run(impl, *tensors, **options), expected, strict=True):
        assert one.isfinite().all(), name
        torch.testing.assert_close(
            one.double(), other, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_errs_at_most_twice(found, eager, exact, name="out", dtype=None):
    """The tolerance rule: 2 × (eager of the same dtype + one rounding), both against fp64."""
    rounding = torch.finfo(dtype or found.dtype).eps / 2 * exact.abs().max()
    allowed = 2 * ((eager.double() - exact).abs().max() + rounding)
    assert (found.double() - exact).abs().max() <= allowed, name


def assert_keeps_the_tolerance_rule(impl, *tensors, **options):
    """Of output and every gradient, for tensors of one dtype and λ in fp32."""
    exact = run("reference", *in_full(*tensors), **options)
    eager, found = (run(way, *tensors, **options) for way in ("reference", impl))
    for name, one, other, true in zip(NAMES, found, eager, exact, strict=True):
        assert_errs_at_most_twice(one, other, true, name)


def assert_blind_rows_are_zero(impl, length):
    """A query and a whole sequence that see nothing give zeros, and have zero gradients."""
    tensors = inputs(2, 2, 2, length, length, 6, 5, 2)
    mask = torch.ones(2, 1, length, length, dtype=torch.bool)
    mask[0, :, 2], mask[1] = False, False
    lam = torch.rand((), dtype=torch.float64, requires_grad=True)
    out, *gradients = run(impl, *tensors, lam, attn_mask=mask, is_causal=True)
    for tensor in (out, gradients[0]):
        assert tensor[0, :, 2].count_nonzero() == tensor[1].count_nonzero() == 0
        assert tensor[0, :, 3].count_nonzero() > 0
    assert gradients[1][1].count_nonzero() == gradients[2][1].count_nonzero() == 0
    assert gradients[3].isfinite()


def assert_poison_stays(impl, length, place, poison, window):
    """A key that is not finite touches only queries that see it."""
    query, key, value = (t.detach() for t in inputs(1, 2, 2, length, length, 4, 5, 2))
    key[:, :, place] = poison
    out, expected = (
        differential_attention(query, key, value, 0.5, is_causal=True, sliding_window=window, impl=way)
        for way in (impl, "reference")
    )
    sees = torch.arange(length) >= place
    sees[place + (window or length) :] = False
    assert out[0, :, ~sees].isfinite().all()
    assert out[0, :, sees].isfinite().float().mean() < 0.2  # an infinite key has a score of -inf where all signs agree
    assert torch.equal(out.isfinite(), expected.isfinite())


class Largest(TorchDispatchMode):
    """Remembers the most entries of any tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result


def drawn_call(data, longest, widest):
    """Tensors, λ and options of any call: sizes up to ``longest`` and ``widest``, any mask, window and scale."""
    draw = data.draw
    groups, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, longest)), draw(st.integers(1, longest))
    widths, heads = (draw(st.integers(1, widest)) for _ in range(2)), groups * repeats
    tensors = inputs(batch, heads, groups, queries, keys, *widths, draw(st.sampled_from([1, 2])))
    lam, mask = (torch.rand([draw(st.sampled_from([1, n])) for n in (batch, heads, queries)]) for _ in range(2))
    return [*tensors, lam.double().requires_grad_()], {
        "attn_mask": draw(st.sampled_from([None, mask.unsqueeze(-1) * torch.rand(keys) > 0.25])),
        "is_causal": draw(st.booleans()), "sliding_window": draw(st.sampled_from([None, 1, 2, 5, 50])),
        "scale": draw(st.sampled_from([None, 0.1, 1.0])),
    }  # fmt: skip


def assert_documents_are_apart(impl, data, longest):
    """Packed sequences equal one call with a mask that separates them, in values and gradients."""
    draw, sizes = data.draw, st.integers(0, longest)
    documents = draw(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5))
    seen = {"is_causal": draw(st.booleans()), "sliding_window": draw(st.sampled_from([None, 1, 3]))}
    edges = [torch.tensor([0, *itertools.accumulate(d[side] for d in documents)]).int() for side in (0, 1)]
    queries, keys = int(edges[0][-1]), int(edges[1][-1])
    groups = draw(st.integers(1, 2))
    tensors = inputs(1, 2 * groups, groups, queries, keys, 3, 4, draw(st.sampled_from([1, 2])))
    tensors.append(torch.rand(2 * groups, queries, dtype=torch.float64, requires_grad=True))
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for (length, breadth), row, column in zip(documents, edges[0], edges[1], strict=False):
        own = positions_mask(length, breadth, device=mask.device, **seen)
        mask[row : row + length, column : column + breadth] = True if own is None else own
    expected = run("reference", *tensors, attn_mask=mask)
    found = run(impl, *tensors, cu_seqlens_q=edges[0], cu_seqlens_k=edges[1], **seen)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
