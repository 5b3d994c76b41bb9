"""Which implementation serves a call: the choice of "auto", and what the kernels do not support."""

from __future__ import annotations

from importlib import util
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from antiphase.ops.native.library import why_not as why_not_native
from antiphase.ops.shapes import OTHERWISE

HAS_TRITON = util.find_spec("triton") is not None
DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
NO_TRITON = 'impl="triton" needs Triton, which is for Linux: pip install \'antiphase[triton]\', or use impl="blockwise"'


def resolve_implementation(impl: str, query: Tensor, key: Tensor, value: Tensor, value_width: int, scale: float) -> str:
    """Resolve "auto" to "native" or "triton" if these kernels support the call; return any other choice unchanged.

    Raises:
        ValueError: "native" was chosen explicitly but does not support the call; the message names an alternative.
    """
    if impl not in ("auto", "native"):
        return impl
    if impl == "auto" and query.is_cuda:
        return "triton" if runs_on_triton(query, key, value, value_width) else impl
    reason = why_not_native(query, scale)
    if impl == "native" and reason is not None:
        raise ValueError(reason)
    return "native" if reason is None else impl


def runs_on_triton(query: Tensor, key: Tensor, value: Tensor, value_width: int) -> bool:
    """Whether the Triton kernels support a call of any length and nothing that they do not have is asked of them."""
    if not HAS_TRITON or transforms_of(query, key, value) is not None:
        return False
    launch = launch_module()
    return launch.why_not(query, value_width) is None and max(query.shape[2], key.shape[2]) <= launch.LONGEST


def kernels_for(query: Tensor, value_width: int) -> ModuleType:
    """The module that launches the Triton kernels.

    Raises:
        ValueError: Triton is missing, or the kernels do not support such tensors; the message names an alternative.
    """
    if not HAS_TRITON:
        raise ValueError(NO_TRITON)
    launch = launch_module()
    reason = launch.why_not(query, value_width)
    if reason is not None:
        raise ValueError(reason)
    return launch


def why_no_kernels(device: torch.device) -> str | None:
    """Why ``impl="triton"`` does not run on a device, and what would work; None if it does."""
    if not HAS_TRITON:
        return NO_TRITON
    reason: str | None = launch_module().why_not_on(device)
    return reason


def launch_module() -> ModuleType:
    """The module that launches the Triton kernels, whose import needs Triton."""
    from antiphase.ops.triton import launch

    return launch


def step_module() -> ModuleType:
    """The module that launches the kernels of a decoding step."""
    from antiphase.ops.triton import few

    return few


def refuse_transforms(name: str, *tensors: Tensor) -> None:
    """Custom operators silently drop tangents, and under torch.func they fail with errors about PyTorch's internals.

    Raises:
        ValueError: one of these transforms is active.
    """
    found = transforms_of(*tensors)
    if found is not None:
        raise ValueError(f"the {name} implementation has no {found}; {OTHERWISE}")


def transforms_of(*tensors: Tensor) -> str | None:
    """Which transforms other than plain autograd are active; None if there are none."""
    if torch.compiler.is_compiling():
        return None
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        return "forward-mode derivatives"
    if any(level.key() in DERIVATIVES for level in torch._C._functorch.get_interpreter_stack() or ()):
        return "derivatives under torch.func"
    return None
