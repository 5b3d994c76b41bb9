"""Builds the native kernels with the package where there is a C++ compiler; without one the package works too.

``antiphase build`` builds them later, and ``antiphase env`` tells whether they are there.
"""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOME = Path(__file__).parent / "antiphase/ops/native"


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is hatchling's own
    """Puts the library beside its sources, and into a wheel for this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it gathers the files of a wheel, editable ones too."""
        build = _build_module()
        try:
            path = build.library_path() if build.is_current() else build.build()
        except (build.BuildError, OSError) as error:  # no compiler, or nowhere to write
            self.app.display_warning(f"installed without native kernels: {error}\nlater: antiphase build")
            return
        build_data["artifacts"].append(str(path.relative_to(Path(__file__).parent)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path.read_bytes())}"


def platform_tag(library: bytes) -> str:
    """The platform that a wheel with this library is for, as an index accepts it.

    On Linux with glibc, ``manylinux_2_X`` names the newest glibc whose symbols the library uses (PEP 600). It links to
    nothing else but the C++ and mathematics libraries that each such system has.
    """
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    versions = [tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)]
    if not platform.startswith("linux_") or not versions:
        return platform
    major, minor = max(versions)
    return platform.replace("linux", f"manylinux_{major}_{minor}", 1)


def _build_module() -> ModuleType:
    """By its path: the package itself needs torch, which a build does not have."""
    spec = importlib.util.spec_from_file_location("antiphase_build", HOME / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
