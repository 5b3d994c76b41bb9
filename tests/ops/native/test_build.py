"""Building the library, and what is said where it is missing, broken or of another version."""

import shutil
import subprocess
import sys

import pytest
import torch

from antiphase import differential_attention
from antiphase.ops.native import build, library, steps


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The library is looked for in an empty folder."""
    path = tmp_path / build.LIBRARY
    monkeypatch.setattr(library, "library_path", lambda: path)
    library.library.cache_clear()
    yield path
    library.library.cache_clear()


def attend(impl):
    tensor = torch.ones(1, 2, 3, 4)
    return differential_attention(tensor, tensor, tensor[:, :1], 0.5, impl=impl)


def test_without_a_library_auto_works_and_native_says_what_to_do(elsewhere):
    assert attend("auto").shape == (1, 1, 3, 4)
    with pytest.raises(ValueError, match=r'not built .*run `antiphase build`, or use impl="blockwise"'):
        attend("native")


def test_a_broken_file_is_named(elsewhere):
    elsewhere.write_bytes(b"not a library")
    with pytest.raises(ValueError, match=r"cannot be loaded .*run `antiphase build`"):
        attend("native")


def test_a_pytorch_without_the_stable_interface_is_named(monkeypatch, built):
    monkeypatch.setattr(steps, "INTERFACE", ("no_such_function",))
    with pytest.raises(RuntimeError, match=r"no stable C interface: .*no_such_function"):
        steps._register()


def test_a_program_of_operators_loads_the_library_at_its_first_call(built):
    call = (
        "import torch; from antiphase import differential_attention; t = torch.ones(1, 2, 1, 4);"
        "few = torch.ops.antiphase.native_attention_of_few;"
        "print(few(t, t, t[:, :1], torch.tensor(0.25), None, 1, True, 0, 0.5).sum().item())"
    )
    assert subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout == "3.0\n"
    dense = torch.ones(1, 2, 1, 4)
    with pytest.raises(RuntimeError, match="dense tensors"):
        steps.native_attention_of_few(dense, dense.to_sparse(), dense, None, None, 2, True, 0, 0.5)
    gpu, elsewhere = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), torch.ones(1, 2, 1, 4, device="meta")
    with pytest.raises(RuntimeError, match="dense tensors of processors"):
        steps.native_attention_of_few.redispatch(gpu, *[elsewhere] * 3, None, None, 1, True, 0, 0.5)


def compiled(source, target):
    if (reason := build.why_no_compiler()) is not None:
        pytest.skip(reason)
    target.with_suffix(".c").write_text(source)
    compiler = next(filter(shutil.which, build.COMPILERS))
    source_file = str(target.with_suffix(".c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", source_file, "-o", str(target)], check=True)


@pytest.mark.parametrize("source", ["int other;", 'const char *antiphase_sources(void) { return "others"; }'])
def test_a_library_of_another_version_is_refused_by_a_sentence(elsewhere, source):
    compiled(source, elsewhere)
    with pytest.raises(ValueError, match=r"of another version .*run `antiphase build`"):
        attend("native")


def test_the_library_is_that_of_these_sources_until_one_changes(tmp_path, monkeypatch):
    if library.why_not_built() is not None:
        pytest.skip("the native kernels are not built")
    other = shutil.copytree(build.SOURCE, tmp_path / "source")
    monkeypatch.setattr(build, "SOURCE", other)
    assert build.is_current()
    (other / "few.h").write_text("// changed")
    assert not build.is_current()


def test_without_a_compiler_the_build_says_which_tool_is_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler .*apt install g\+\+"):
        build.build(tmp_path / build.LIBRARY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("compiler", "message"), [("false", "false failed"), ("/no/such", "CXX names, /no/such, cannot be found")]
)
def test_a_compiler_that_fails_is_named_and_the_library_stays(monkeypatch, tmp_path, compiler, message):
    target = tmp_path / build.LIBRARY
    target.write_text("as it was")
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(build.BuildError, match=message):
        build.build(target)
    assert target.read_text() == "as it was"


@pytest.mark.slow
def test_a_build_gives_a_library_that_loads(elsewhere):
    if (reason := build.why_no_compiler()) is not None:
        pytest.skip(reason)
    build.build(elsewhere)
    assert attend("native").shape == (1, 1, 3, 4)


@pytest.mark.parametrize("lacks", [0, 1])
def test_tiles_that_the_system_refuses_are_named(monkeypatch, lacks):
    class Library:
        def antiphase_kernels(self):
            return library.KERNELS.index("AVX-512 BF16")

        def antiphase_lacks(self):
            return lacks

    monkeypatch.setattr(library, "library", Library)
    assert library.kernels().startswith("AVX-512 BF16")
    assert ("the system refuses" in library.kernels()) == bool(lacks)


@pytest.mark.slow
def test_kernels_that_a_processor_only_claims_to_run_are_not_chosen(request, monkeypatch):
    if (reason := build.why_no_compiler()) is not None or (reason := library.why_not_built()) is not None:
        pytest.skip(reason)
    honest, bears = library.kernels().partition(",")[0], build.fingerprint(build.LYING)
    elsewhere = request.getfixturevalue("elsewhere")
    monkeypatch.setattr(library, "fingerprint", lambda: bears)
    build.build(elsewhere, build.LYING)
    assert attend("native").shape == (1, 1, 3, 4)
    assert library.kernels().partition(",")[0] == honest
    assert ("claims" in library.kernels()) >= (honest in ("AVX2", "AVX-512"))
    assert honest != "AMX" or "claims" not in library.kernels()
