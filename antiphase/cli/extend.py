"""The command that makes a trained model read longer contexts."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.console import finish, make_console, run_progress, sayer
from antiphase.cli.options import DataOption, OutputOption, ResumeOption, SetOption, ValidationOption


def extend(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a finished run.")],
    length: Annotated[int, typer.Option("--length", help="New context length in tokens.")],
    output: OutputOption,
    rope_theta: Annotated[
        float | None,
        typer.Option(
            "--rope-theta",
            help="RoPE base; default: raised so that the slowest channel turns as far over the new length as over the "
            "old.",
        ),
    ] = None,
    data: DataOption = None,
    validation: ValidationOption = None,
    long_share: Annotated[
        float | None,
        typer.Option(
            "--long-share",
            help="Share of the sequences that are each cut from inside one document.",
            show_default=False,
        ),
    ] = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Device: auto, cpu, cuda or cuda:0.", show_default=False)
    ] = None,
) -> None:
    """Continue training a finished run on longer sequences, with a raised RoPE base.

    Settings are those of MODEL's own training with a tenth of its steps, except what --set changes.
    Example: [bold]antiphase extend runs/one --length 1024 --validation novels --output runs/one-1024[/]
    """
    from antiphase.studies.extend import extension
    from antiphase.studies.training_run import train_run
    from antiphase.training.distributed import is_first_process

    given = [*(settings or []), *([f"training.device={device}"] if device is not None else [])]
    run = extension(
        model, length=length, rope_theta=rope_theta, data=data or [], validation=validation or [],
        long_share=long_share, overrides=given,
    )  # fmt: skip
    console = make_console(quiet=not is_first_process())
    sayer(console)(f"RoPE base {run.model.rope_theta:g}, {run.training.steps} steps of {length}-token sequences")
    with run_progress(console, run.training.steps) as report:
        record = train_run(run, output, resume=resume, report=report, say=sayer(console))
    if not console.quiet:
        finish(console, record, output)
