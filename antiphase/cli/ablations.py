"""The command that asks what each part of differential attention is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.console import describe, finish, job_progress, make_console, sayer
from antiphase.cli.options import (
    DataOption,
    DeviceOption,
    OutputOption,
    PresetOption,
    ResumeOption,
    SeedsOption,
    SetOption,
    ValidationOption,
    chosen_preset,
)


def ablations(
    output: OutputOption,
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", help="Variants to train, comma-separated, e.g. no-norm,gated.", show_default=False),
    ] = None,
    rivals: Annotated[bool, typer.Option("--rivals", help="Also train V2, its ablations, and rival methods.")] = False,
    frequent: Annotated[
        int,
        typer.Option(
            "--frequent", help="Pairs that occur more often than this in the training text do not count as AR-hits."
        ),
    ] = 5,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train ablations of differential attention and rival methods, and split each loss into AR-hits and other tokens.

    Example: [bold]antiphase ablations --preset half-hour --data book.txt --seeds 0,1,2,3,4 --output runs/ablations[/]
    """
    from antiphase.studies.ablations import ablation_preset
    from antiphase.studies.ablations import ablations as run_ablations

    names = [name.strip() for name in rows.split(",")] if rows else []
    chosen, left_out = ablation_preset(
        chosen_preset(preset, settings, data, validation, seeds, device), names, rivals=rivals
    )
    console = make_console()
    describe(console, chosen)
    for name, why in left_out.items():
        console.print(f"without {name}: {why}", highlight=False)
    with job_progress(console) as report:
        record = run_ablations(
            chosen, output, left_out=left_out, frequent=frequent, resume=resume, report=report, say=sayer(console)
        )
    finish(console, record, output)
