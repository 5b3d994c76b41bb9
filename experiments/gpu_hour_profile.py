"""Stage ``profile`` of ``gpu_hour.py``: which kernels take the time of a training step, by model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from antiphase.lab.speed.model import OURS, OURS_V2, SOFTMAX, Setting, models_of, training_step
from experiments.gpu_hour_kernels import model_setting
from experiments.gpu_hour_stage import Kept, Stage

STEPS, WARM_UP = 3, 3
SHOWN = 40
"""Number of kernels in the record, the slowest first."""
LONGEST_NAME = 160


def profile_steps(stage: Stage) -> int:
    """Profile a training step of softmax attention, V1 and V2 at the longest sequences; returns 1 if one is missing."""
    kept = Kept(stage)
    setting = model_setting(stage)
    found = {name: kept(name, partial(_profiled, stage, setting, name)) for name in (SOFTMAX, OURS, OURS_V2)}
    done = {name: rows for name, rows in found.items() if rows is not None}
    kept.save("gpu-hour-profile", {"models": done}, {"sizes": setting.sizes, "tokens": setting.tokens, "steps": STEPS})
    for name, rows in done.items():
        stage.say(f"{name}: {sum(row['milliseconds'] for row in rows):.1f} ms in {len(rows)} kernels")
        for row in rows[:8]:
            stage.say(f"  {row['milliseconds']:8.3f} ms, {row['calls']} calls: {row['kernel'][:80]}")
    return int(len(done) < len(found))


def _profiled(stage: Stage, setting: Setting, name: str) -> list[dict[str, Any]]:
    model = models_of(0, setting, stage.device)[name]
    length = setting.lengths[-1]
    ids = torch.randint(0, setting.sizes["vocab_size"], (max(1, setting.tokens // length), length))
    return kernels_of(training_step(model, ids.to(stage.device), is_half=setting.is_half), stage.device)


def kernels_of(run: Callable[[], object], device: str) -> list[dict[str, Any]]:
    """Milliseconds and calls of a step by kernel (on a CPU, by operator), the slowest first."""
    is_gpu = torch.device(device).type == "cuda"
    kind = torch.profiler.ProfilerActivity.CUDA if is_gpu else torch.profiler.ProfilerActivity.CPU
    for _ in range(WARM_UP):
        run()
    with torch.profiler.profile(activities=[kind]) as found:
        for _ in range(STEPS):
            run()
        if is_gpu:
            torch.cuda.synchronize()
    rows = [
        {
            "kernel": event.key[:LONGEST_NAME],
            "calls": event.count // STEPS,
            "milliseconds": (event.self_device_time_total if is_gpu else event.self_cpu_time_total) / 1000 / STEPS,
        }
        for event in found.key_averages()
    ]
    return sorted(rows, key=lambda row: -row["milliseconds"])[:SHOWN]
