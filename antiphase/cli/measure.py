"""Commands that look into language models, and time them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from antiphase.cli.console import count_progress, finish, make_console, sayer
from antiphase.cli.options import DeviceOption, NewOutputOption, SeedOption


def probe(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a model.")],
    output: NewOutputOption,
    data: Annotated[list[str], typer.Option("--data", help="File, folder or Hub dataset with text. Repeatable.")],
    text_field: Annotated[str | None, typer.Option("--text-field", help="Column that holds the text.")] = None,
    length: Annotated[int, typer.Option("--length", help="Tokens in a sequence.")] = 512,
    samples: Annotated[int, typer.Option("--samples", help="Sequences.")] = 32,
    alpha: Annotated[float, typer.Option("--alpha", help="A sink receives more than alpha / N.")] = 5.0,
    device: DeviceOption = "auto",
) -> None:
    """Look at what attention does in a model: sinks by layer, head, position and token.

    Example: [bold]antiphase probe runs/demo/softmax-seed0 --data book.txt --output runs/probe[/]
    """
    from antiphase.studies.probe import ProbeRequest
    from antiphase.studies.probe import probe as run_probe

    console = make_console()
    request = ProbeRequest(
        name=model, paths=data, text_field=text_field, length=length, samples=samples, alpha=alpha, device=device
    )
    with count_progress(console, "sequences") as report:
        record = run_probe(request, output, say=sayer(console), report=report)
    finish(console, record, output)


def look(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or Hub name of a model.")],
    output: NewOutputOption,
    text: Annotated[str, typer.Option("--text", help="What to look at.")],
    target: Annotated[
        str | None, typer.Option("--target", help="What the decoder of an encoder–decoder writes.", show_default=False)
    ] = None,
    length: Annotated[int, typer.Option("--length", help="Most tokens; the page grows with their square.")] = 256,
    device: DeviceOption = "auto",
) -> None:
    """Look at one text through every layer and head: a record, and an interactive page that opens offline.

    Example: [bold]antiphase look runs/demo/differential-seed0 --text "The cat sat." --output runs/look[/]
    """
    from antiphase.report.look_page import write_look
    from antiphase.report.terminal import print_summary
    from antiphase.studies.look import LookRequest
    from antiphase.studies.look import look as run_look

    console = make_console()
    record = run_look(LookRequest(name=model, text=text, target=target, length=length, device=device), output)
    print_summary(record, console)
    page = write_look([record], output / "report.html")
    console.print(f"record: {output / 'record.json'}\npage:   {page}", highlight=False)


class Benchmark(StrEnum):
    """What ``antiphase benchmark`` can time."""

    attention = "attention"
    model = "model"
    calibration = "calibration"


def benchmark(
    subject: Annotated[Benchmark, typer.Argument(help="The attention operator, whole models, or calibration.")],
    output: NewOutputOption,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds: two minutes.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
) -> None:
    """Time differential attention beside softmax attention of equal size and other people's code, in paired runs.

    On a GPU the fused kernels (extra triton) stand against PyTorch's backends by name; calibration runs on processors.

    Example: [bold]antiphase benchmark attention --quick --output runs/benchmark[/]
    """
    import torch

    from antiphase.benchmarks.attention import benchmark_attention
    from antiphase.benchmarks.calibration import benchmark_calibration
    from antiphase.benchmarks.model import benchmark_model
    from antiphase.errors import InputError
    from antiphase.folders.held import check_empty, make_folder
    from antiphase.ops.api import why_no_kernels
    from antiphase.training.loop import choose_device

    check_empty(output)
    console = make_console()
    options: dict[str, Any] = {"quick": quick, "seed": seed, "say": sayer(console)}
    chosen = str(choose_device(device))
    if subject == Benchmark.calibration:
        if chosen != "cpu":
            raise InputError(f"--device {device}: calibration is timed on processors only; use --device cpu")
        make_folder(output)
        record = benchmark_calibration(**options)
    else:
        if chosen != "cpu" and not chosen.startswith("cuda"):
            raise InputError(f"--device {device}: the kernels serve CUDA devices, and the rest cpu")
        if chosen != "cpu" and (reason := why_no_kernels(torch.device(chosen))) is not None:
            raise InputError(f"--device {device}: {reason}; here --device cpu")
        make_folder(output)
        timed = benchmark_attention if subject == Benchmark.attention else benchmark_model
        record = timed(**options, device=chosen)
    record.save(output)
    finish(console, record, output)
