"""Decoding steps as PyTorch operators in C: their tensors would take longer to read in Python than to attend to."""

from __future__ import annotations

from ctypes import c_void_p
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from antiphase.ops.dispatch import OPERATORS
from antiphase.ops.native.library import address_in_torch, library, threads_of_torch
from antiphase.ops.native.operators import empty_output

INTERFACE = (
    "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_dtype",
    "torch_get_const_data_ptr", "aoti_torch_get_data_ptr", "aoti_torch_empty_strided", "aoti_torch_copy_",
    "aoti_torch_delete_tensor_object", "torch_get_num_threads", "aoti_torch_library_init_impl", "torch_library_impl",
)  # fmt: skip
"""Functions of PyTorch's stable C interface, in the order of ``antiphase_torch`` of source/steps.cpp."""
REGISTERING = Lock()


def _operator(schema: str) -> torch._ops.OpOverload:
    """An operator whose kernel the compiled library registers at the first call."""
    OPERATORS.define(schema)
    name = schema.partition("(")[0]
    operator: torch._ops.OpOverload = getattr(torch.ops.antiphase, name).default

    def first_call(*args: Any) -> Any:
        if not all(arg.is_cpu and arg.layout == torch.strided for arg in args if isinstance(arg, Tensor)):
            raise RuntimeError(f"{name} takes dense tensors of processors alone")
        with REGISTERING:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"antiphase::{name}", "CPU"):
                _register()
        return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args)

    OPERATORS.impl(name, first_call, "CompositeExplicitAutograd")
    return operator


def _register() -> None:
    """Have the library register its kernels.

    Raises:
        RuntimeError: there is no library, or this build of PyTorch has no stable C interface.
    """
    found = library()
    if isinstance(found, str):
        raise RuntimeError(found)
    try:
        addresses = [*map(address_in_torch, INTERFACE), *threads_of_torch()]
    except AttributeError as error:
        raise RuntimeError(f"this build of PyTorch has no stable C interface: {error}") from None
    if found.antiphase_register((c_void_p * len(addresses))(*addresses)):
        raise RuntimeError("PyTorch refused the kernels of decoding steps")


native_attention_of_few = _operator(
    "native_attention_of_few(Tensor query, Tensor key, Tensor value, Tensor? lam, Tensor? mask, SymInt groups, "
    "bool is_causal, SymInt sliding_window, float scale) -> Tensor"
)
"""A few queries over many keys, not differentiable; arguments and result as in ``operators.attend``. A ``ValueError``
names what does not fit together.
"""


@torch.library.register_fake("antiphase::native_attention_of_few")
def _(
    query: Tensor, key: Tensor, value: Tensor, lam: Tensor | None, mask: Tensor | None, groups: int, *_: Any
) -> Tensor:
    return empty_output(query, value, lam, groups)


native_v1_step = _operator(
    "native_v1_step(Tensor query, Tensor key, Tensor value, Tensor q1, Tensor k1, Tensor q2, Tensor k2, Tensor weight, "
    "Tensor? mask, SymInt groups, bool is_causal, SymInt sliding_window, float scale, float initial, float eps, "
    "float factor) -> Tensor"
)
"""λ, attention of a few queries and the head norm, rounded once and not differentiable: (B, H, N, 2d).

Arguments as in ``native_attention_of_few``, ``layer.exponential_lambda`` and ``layer.normalize``, vectors contiguous.
"""


@torch.library.register_fake("antiphase::native_v1_step")
def _(query: Tensor, key: Tensor, value: Tensor, lam: Tensor, *rest: Any) -> Tensor:
    groups = rest[5]
    return empty_output(query, value, lam, groups)
