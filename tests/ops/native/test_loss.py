"""Cross-entropy on the native kernels equals PyTorch's, in values and gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from antiphase.ops.layer import cross_entropies
from antiphase.ops.native import loss
from antiphase.ops.plain import plain_cross_entropies

INF = float("inf")


def drawn(rows, width, dtype=torch.float64, scale=5.0):
    logits = (scale * torch.randn(rows, width, dtype=torch.float64)).to(dtype).requires_grad_()
    targets = torch.randint(width, (rows,))
    targets[::5] = -100
    return logits, targets


def with_gradients(function, logits, targets):
    losses = function(logits, targets)
    cotangent = torch.sin(torch.arange(len(targets), dtype=torch.float64) + 1).to(losses.dtype)
    return losses, torch.autograd.grad(losses, logits, cotangent)[0]


@pytest.mark.usefixtures("kernels")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.sampled_from([1, 2, 127, 128, 129, 300]), width=st.integers(1, 70) | st.integers(1000, 2100))
def test_losses_and_gradients(rows, width):
    logits, targets = drawn(rows, width)
    torch.testing.assert_close(
        with_gradients(cross_entropies, logits, targets),
        with_gradients(plain_cross_entropies, logits, targets),
        rtol=1e-11,
        atol=1e-11,
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "width", "scale"), [(700, 33, 5.0), (40, 2048, 5.0), (12, 50257, 3.0), (40, 900, 60.0)]
)
def test_it_errs_no_more_than_twice_pytorchs(dtype, rows, width, scale):
    """Root mean squares over losses and gradients, against fp64. At a scale of 60 most losses are near 0."""
    logits, targets = drawn(rows, width, dtype, scale)
    targets[1::2] = logits[1::2].argmax(1)
    exact = logits.detach().double().requires_grad_()
    for fast, eager, true in zip(
        with_gradients(cross_entropies, logits, targets),
        with_gradients(plain_cross_entropies, logits, targets),
        with_gradients(plain_cross_entropies, exact, targets),
        strict=True,
    ):
        assert fast.dtype == eager.dtype
        errors = [(t.double() - true).square().mean().sqrt() for t in (fast, eager, true.to(fast.dtype))]
        assert errors[0] <= 2 * (errors[1] + errors[2])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [5, 16, 1040, 2500])
def test_infinite_logits_and_nan_as_in_pytorch(dtype, width):
    logits, targets = torch.randn(8, width).to(dtype), torch.zeros(8, dtype=torch.long)
    logits[0, : width - 1] = -INF  # the target too: an infinite loss
    logits[1, 1:] = -INF  # all but the target: no loss
    logits[2] = -INF
    logits[3, width // 2] = INF
    logits[4, width - 2] = float("nan")
    logits[5, 1] = float("nan")
    logits[5, 2:] = -INF
    logits[6, : width // 2] = -INF
    targets[6] = width - 1
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(
        cross_entropies(logits, targets), cross_entropy(wide, targets, reduction="none"), equal_nan=True
    )


@pytest.mark.usefixtures("kernels")
def test_logits_of_any_size_are_shifted_by_the_largest():
    logits = torch.tensor([[1e30, 1e30, -1e30], [-3e38, -3e38, -3e38], [88.0, 800.0, -800.0]], dtype=torch.float32)
    targets = torch.tensor([0, 2, 1])
    expected = torch.tensor([2.0, 3.0, 1.0]).log()
    torch.testing.assert_close(cross_entropies(logits, targets), expected)


@pytest.mark.usefixtures("kernels")
def test_gradcheck():
    logits, targets = drawn(5, 7)
    assert torch.autograd.gradcheck(lambda x: cross_entropies(x, targets), (logits,))
    assert torch.autograd.gradgradcheck(lambda x: cross_entropies(x, targets), (logits,))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_columns_that_are_hidden_or_far_below_have_no_gradient(dtype):
    logits, targets = drawn(7, 300, dtype)
    with torch.no_grad():
        logits[:, 5:200], logits[:, 200:], logits[:, 0] = -INF, -2000.0, 0.0
    targets[1:] = 1
    _, grad = with_gradients(cross_entropies, logits, targets)
    assert (grad[:, 5:] == 0).all()
    assert (grad[1:5, :5] != 0).any(1).all()


@pytest.mark.usefixtures("built")
def test_operators_are_what_pytorch_expects():
    logits, targets = drawn(4, 6, torch.float32)
    statistics = loss.cross_entropies(logits.detach(), targets)[1]
    torch.library.opcheck(loss.native_cross_entropies, (logits, targets))
    torch.library.opcheck(loss.native_cross_entropies_backward, (torch.ones(4), logits.detach(), targets, statistics))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_bits(dtype):
    logits, targets = drawn(900, 600, dtype)
    found = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        found.append(with_gradients(cross_entropies, logits, targets))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.usefixtures("kernels")
def test_memory_beside_the_logits_is_neither_read_nor_written():
    room = torch.full((40, 50), float("nan"), dtype=torch.float64)
    room[3:7, 10:33] = torch.randn(4, 23, dtype=torch.float64)
    targets = torch.tensor([0, 22, -100, 7])
    logits = room[3:7, 10:33].requires_grad_()
    torch.testing.assert_close(
        with_gradients(cross_entropies, logits, targets), with_gradients(plain_cross_entropies, logits, targets)
    )
    turned = torch.randn(23, 4, dtype=torch.float64).T.requires_grad_()
    torch.testing.assert_close(
        with_gradients(cross_entropies, turned, targets), with_gradients(plain_cross_entropies, turned, targets)
    )


@pytest.mark.usefixtures("built")
def test_what_does_not_fit_is_refused():
    logits = torch.randn(3, 8)
    for wrong in (8, -1, -101):
        with pytest.raises(IndexError, match="a target is neither from 0 to 7 nor -100"):
            loss.native_cross_entropies(logits, torch.tensor([0, 1, wrong]))
    with pytest.raises(ValueError, match=r"logits \(3, 8\) and targets \(2,\) in torch.int64 do not fit together"):
        loss.native_cross_entropies(logits, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"targets \(3,\) in torch.int32 do not fit"):
        loss.native_cross_entropies(logits, torch.tensor([0, 1, 2], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"takes fp32, bf16 and fp64, not torch\.float16"):
        loss.native_cross_entropies(logits.half(), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"the gradient of 3 losses is torch\.float32, not torch\.float64"):
        loss.native_cross_entropies_backward(
            torch.ones(3, dtype=torch.float64), logits, torch.zeros(3, dtype=torch.long), torch.ones(3, 2)
        )
    for wrong in (torch.ones(1, 2), torch.ones(3, 2, dtype=torch.float64), torch.ones(2, 3).T):
        with pytest.raises(ValueError, match=r"statistics are \(3, 2\), contiguous"):
            loss.native_cross_entropies_backward(torch.ones(3), logits, torch.zeros(3, dtype=torch.long), wrong)


def test_what_the_kernels_do_not_serve_goes_to_pytorch():
    """Half precision, derivatives under ``torch.func``, subclasses of tensors, and empty batches."""
    logits, targets = drawn(6, 9, torch.float16)
    torch.testing.assert_close(cross_entropies(logits, targets), plain_cross_entropies(logits, targets))
    assert cross_entropies(torch.randn(0, 9), torch.zeros(0, dtype=torch.long)).shape == (0,)
    wide, targets = drawn(3, 4)
    second = torch.func.hessian(lambda x: cross_entropies(x, targets).sum())(wide.detach())
    first = torch.func.hessian(lambda x: plain_cross_entropies(x, targets).sum())(wide.detach())
    torch.testing.assert_close(second, first)

    class Named(torch.Tensor):
        pass

    named = wide.detach().as_subclass(Named)
    assert type(cross_entropies(named, targets)) is Named
