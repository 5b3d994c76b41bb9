"""The portable kernels on another kind of processor, emulated: they compute there what they compute here. It needs a
cross compiler and an emulator (Debian, Ubuntu: ``apt install g++-aarch64-linux-gnu qemu-user``), but no PyTorch for it.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from antiphase.ops.native import build, library

PROGRAM = Path(__file__).parent / "portable.cpp"
PROCESSORS = {
    "aarch64": ("aarch64-linux-gnu-g++", "qemu-aarch64"),
    "riscv64": ("riscv64-linux-gnu-g++", "qemu-riscv64"),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
"""In the order of problem.h."""
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Largest difference as a share of a part's largest number; in bf16, of a rounding that falls to the other side."""


def parts(printed):
    """Tensors of what the program wrote."""
    found = []
    while printed:
        dtype, size = torch.frombuffer(bytearray(printed[:16]), dtype=torch.int64).tolist()
        found.append(torch.frombuffer(bytearray(printed[16 : 16 + size]), dtype=DTYPES[dtype]))
        printed = printed[16 + size :]
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    if (reason := library.why_not_built()) is not None or (reason := build.why_no_compiler()) is not None:
        pytest.skip(reason)
    program = tmp_path_factory.mktemp("here") / "portable"
    linked = [str(build.library_path()), f"-Wl,-rpath,{build.library_path().parent}"]
    subprocess.run(["g++", *build.FLAGS, f"-I{build.SOURCE}", str(PROGRAM), *linked, "-o", str(program)], check=True)
    return parts(subprocess.run([str(program)], capture_output=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_portable_kernels_compute_the_same(here, tmp_path, processor):
    compiler, emulator = PROCESSORS[processor]
    for tool in (compiler, emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    sources = [str(PROGRAM), *(str(build.SOURCE / name) for name in ("kernel.cpp", "library.cpp"))]
    named = ["-DANTIPHASE_KIND=portable", '-DANTIPHASE_SOURCES="emulated"', f"-I{build.SOURCE}"]
    program = tmp_path / "portable"
    subprocess.run([compiler, *build.FLAGS, *named, "-static", *sources, "-o", str(program)], check=True)
    there = parts(subprocess.run([emulator, str(program)], capture_output=True, check=True).stdout)
    assert len(there) == len(here) == 3 * 4 * 13
    for own, other in zip(here, there, strict=True):
        assert own.dtype == other.dtype
        assert own.isfinite().all()
        largest = own.abs().max().item()
        torch.testing.assert_close(other, own, rtol=0, atol=TOLERANCES[own.dtype] * largest)
