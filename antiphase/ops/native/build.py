"""Builds the library from its sources with the system's C++ compiler, using only Python's standard library."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY = "libantiphase.so"
SOURCE = Path(__file__).parent / "source"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno",
         "-fno-trapping-math", "-pthread", "-Wno-psabi")  # fmt: skip
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512")
EMULATED = ("-DANTIPHASE_EMULATED_TILES",)
"""Extra flags of a test library that emulates AMX tiles in plain C++, for processors without them."""
LYING = ("-DANTIPHASE_LYING",)
"""Extra flags of a test library to which every processor claims to have all instructions."""
SANITIZED = (*EMULATED, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g")
"""Extra flags of a test library that also stops at invalid addresses and undefined arithmetic."""
ENTRIES = ("library", "steps")
"""Sources that are compiled once, for every processor."""
COMPILERS = ("g++", "clang++", "c++")


class BuildError(Exception):
    """The library could not be built; the message says what is missing."""


def library_path() -> Path:
    """Where the library is, or would be once built."""
    return Path(__file__).parent / LIBRARY


def is_current() -> bool:
    """Whether the library exists and was built from these sources; ``hatch_build.py`` asks."""
    path = library_path()
    return path.is_file() and fingerprint().encode() in path.read_bytes()


def fingerprint(extra: tuple[str, ...] = ()) -> str:
    """Digest of sources, platform and flags. The library stores its own and is only used if it matches."""
    digest = hashlib.sha256(repr((FLAGS, kernels_of_machine(), sysconfig.get_platform(), extra)).encode())
    for path in sorted([*SOURCE.glob("*.h"), *SOURCE.glob("*.cpp")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def kernels_of_machine() -> dict[str, tuple[str, ...]]:
    """Compiler flags by kernel name, for the kernels that exist for this machine's architecture."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"portable": ()}
    pairs = (*AVX512, "-mavx512bf16")
    tiles = {"amx": (*pairs, "-mamx-tile", "-mamx-bf16")} if platform.system() == "Linux" else {}
    return {"portable": (), "avx2": ("-mavx2", "-mfma"), "avx512": AVX512, "avx512bf16": pairs, **tiles}


def why_no_compiler() -> str | None:
    """Why nothing can be built here, and what to do; None if it can."""
    if os.name != "posix":
        return f"the native kernels are for Linux and macOS, this is {platform.system()}"
    compiler = _compiler()
    if compiler is not None and shutil.which(compiler[0]) is None:
        return f"the C++ compiler that CXX names, {compiler[0]}, cannot be found"
    if compiler is None:
        return "there is no C++ compiler (g++ or clang++); on Debian and Ubuntu: apt install g++"
    return None


def build(target: Path | None = None, extra: tuple[str, ...] = ()) -> Path:
    """Compile the library to its usual place, or to ``target``, replacing an older one.

    ``extra`` are further compiler flags. The library is written to a temporary file and renamed, so that no process
    ever loads a partial file.

    Raises:
        BuildError: there is no compiler, it failed (with its output), or the target cannot be written.
    """
    reason = why_no_compiler()
    if reason is not None:
        raise BuildError(reason)
    compiler = _compiler()
    assert compiler is not None
    target = target or library_path()
    kernels, bears = kernels_of_machine(), fingerprint(extra)
    if "amx" in kernels and not _knows(compiler, kernels["amx"]):  # not supported by GCC before 11
        del kernels["amx"]
    if "amx" in kernels:
        extra = (*extra, "-DANTIPHASE_TILES")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        commands = [
            [*compiler, *FLAGS, *flags, *extra, f"-DANTIPHASE_KIND={name}", "-c",
             str(SOURCE / "kernel.cpp"), "-o", str(folder / f"{name}.o")]
            for name, flags in kernels.items()
        ]  # fmt: skip
        for name in ENTRIES:
            commands.append([*compiler, *FLAGS, *extra, f'-DANTIPHASE_SOURCES="{bears}"', "-c",
                             str(SOURCE / f"{name}.cpp"), "-o", str(folder / f"{name}.o")])  # fmt: skip
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        linked = folder / LIBRARY
        # The portable kernels come first: the linker takes code that objects share from the first, and that must run
        # everywhere.
        objects = [str(folder / f"{name}.o") for name in (*kernels, *ENTRIES)]
        _run([*compiler, "-shared", "-pthread", *extra, "-o", str(linked), *objects])
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(linked, beside)
            beside.replace(target)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise BuildError(f"{target} cannot be written: {error.strerror}") from None
    return target


def _compiler() -> list[str] | None:
    """$CXX, possibly with arguments, as in every build tool, or the first of the usual compilers."""
    named = os.environ.get("CXX")  # noqa: TID251  # the compiler's own variable, not a setting of ours
    return shlex.split(named) if named else next(([name] for name in COMPILERS if shutil.which(name)), None)


def _knows(compiler: list[str], flags: tuple[str, ...]) -> bool:
    """Whether a compiler accepts such flags, tried on an empty file."""
    command = [*compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise BuildError(f"{command[0]} failed:\n{done.stderr.strip()[-2000:]}")
