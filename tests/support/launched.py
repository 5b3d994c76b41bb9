"""`antiphase train` as processes of its own."""

import os
import subprocess
import sys


def command(preset, output, *overrides, launcher=("-m",)):
    words = [sys.executable, *launcher, "antiphase", "train", "--preset", str(preset), "--output", str(output)]
    return [*words, *(word for override in overrides for word in ("--set", override))]


def in_two_processes(preset, output, *overrides, further=()):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    return subprocess.run(
        [*command(preset, output, *overrides, launcher=launcher), *further],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
    )  # fmt: skip
