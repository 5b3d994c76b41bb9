"""The command that times attention and models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from antiphase.cli.console import finish, make_console, sayer
from antiphase.cli.options import DeviceOption, JsonOption, NewOutputOption, SeedOption


class Benchmark(StrEnum):
    """What ``antiphase benchmark`` can time."""

    attention = "attention"
    model = "model"
    calibration = "calibration"
    kernels = "kernels"


def benchmark(
    subject: Annotated[
        Benchmark,
        typer.Argument(
            help="What to time: the attention operator, complete models, calibration, or the native kernels beside "
            "what this machine reaches in a large product."
        ),
    ],
    output: NewOutputOption,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds (a few minutes).")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Time differential attention against softmax attention of the same size and other implementations, in paired runs.

    On a GPU the fused kernels (extra triton) are compared with each of PyTorch's backends; calibration and
    kernels are timed on CPUs only.

    Example: [bold]antiphase benchmark attention --quick --output runs/benchmark[/]
    """
    import torch

    from antiphase.base.errors import InputError
    from antiphase.base.folders.ownership import check_empty, only_one, unfinished
    from antiphase.lab.speed.attention import benchmark_attention
    from antiphase.lab.speed.calibration import benchmark_calibration
    from antiphase.lab.speed.kernels import benchmark_kernels
    from antiphase.lab.speed.model import benchmark_model
    from antiphase.lab.training.device import choose_device
    from antiphase.ops.implementations import why_no_kernels

    console = make_console(as_json=as_json)
    options: dict[str, Any] = {"quick": quick, "seed": seed, "say": sayer(console)}
    check_empty(output)
    with only_one(output), unfinished(output):
        chosen = str(choose_device(device))
        if subject in (Benchmark.calibration, Benchmark.kernels):
            if chosen != "cpu":
                raise InputError(f"--device {device}: {subject} is timed on CPUs only; use --device cpu")
            record = (benchmark_kernels if subject == Benchmark.kernels else benchmark_calibration)(**options)
        else:
            if chosen != "cpu" and not chosen.startswith("cuda"):
                raise InputError(f"--device {device}: benchmarks run on CUDA devices or on cpu")
            if chosen != "cpu" and (reason := why_no_kernels(torch.device(chosen))) is not None:
                raise InputError(f"--device {device}: {reason}; use --device cpu")
            timed = benchmark_attention if subject == Benchmark.attention else benchmark_model
            record = timed(**options, device=chosen)
        record.save(output)
        finish(console, record, output, as_json=as_json)
