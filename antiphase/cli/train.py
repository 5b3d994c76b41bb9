"""Commands that train language models."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.console import (
    describe,
    finish,
    job_progress,
    make_console,
    page_writer,
    run_progress,
    sayer,
)
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
    numbers,
    overrides,
)


def compare(
    output: OutputOption,
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train softmax and differential models side by side, measure them, and show where they attend.

    Writes record.json, report.html and every model.
    Example: [bold]antiphase compare --preset demo --output runs/demo[/]
    """
    from antiphase.studies.compare import compare as run_compare

    chosen = chosen_preset(preset, settings, data, validation, seeds, device)
    console = make_console()
    describe(console, chosen)
    with job_progress(console) as report:
        record = run_compare(
            chosen, output, resume=resume, report=report, say=sayer(console), watch=page_writer(console, output)
        )
    finish(console, record, output)


def tune(
    output: OutputOption,
    learning_rates: Annotated[
        str, typer.Option("--learning-rates", help="Learning rates, comma-separated, e.g. 1e-3,2e-3,4e-3.")
    ],
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train both arms at every learning rate of one grid, so that neither is favoured by tuning.

    Example: [bold]antiphase tune --preset demo --learning-rates 1e-3,2e-3,4e-3,8e-3 --output runs/tune[/]
    """
    from antiphase.studies.tune import tune as run_tune

    chosen = chosen_preset(preset, settings, data, validation, seeds, device)
    rates = numbers("--learning-rates", learning_rates, float)
    console = make_console()
    describe(console, chosen)
    with job_progress(console) as report:
        record = run_tune(chosen, output, learning_rates=rates, resume=resume, report=report, say=sayer(console))
    finish(console, record, output)


def scaling(
    output: OutputOption,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Hidden sizes, e.g. 64,96,128,192.", show_default=False)
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="Numbers of steps, e.g. 200,400,800,1600.", show_default=False)
    ] = None,
    preset: PresetOption = "half-hour",
    data: DataOption = None,
    validation: ValidationOption = None,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train every arm at several sizes and numbers of steps, and fit scaling laws to the losses.

    Example: [bold]antiphase scaling --data book.txt --widths 64,96,128,192 --output runs/scaling[/]
    """
    from antiphase.studies.scaling import scaling as run_scaling

    chosen = chosen_preset(preset, settings, data, validation, seeds, device)
    console = make_console()
    grown = [numbers(flag, given, int) if given else [] for flag, given in (("--widths", widths), ("--steps", steps))]
    with job_progress(console) as report:
        record = run_scaling(
            chosen, output, widths=grown[0], steps=grown[1], resume=resume, report=report, say=sayer(console)
        )
    finish(console, record, output)


def upcycle(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a softmax model trained here.")],
    output: OutputOption,
    dex: Annotated[bool, typer.Option("--dex", help="Add an arm with DEX, the differential extension.")] = False,
    seeds: SeedsOption = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Continue training a softmax model on the same tokens: as it is, as differential V2, and as V2's control.

    Settings are those of MODEL's own training, except what --set changes.
    Example: [bold]antiphase upcycle runs/demo/softmax-seed0 --output runs/upcycle --set training.steps=500[/]
    """
    from antiphase.studies.upcycle import upcycle as run_upcycle
    from antiphase.studies.upcycle import upcycle_preset

    chosen = upcycle_preset(model, output, overrides(settings, seeds, device), dex=dex)
    console = make_console()
    describe(console, chosen)
    with job_progress(console) as report:
        record = run_upcycle(model, output, chosen, resume=resume, report=report, say=sayer(console))
    finish(console, record, output)


def train(
    output: OutputOption,
    preset: PresetOption = "demo",
    data: DataOption = None,
    validation: ValidationOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of weights and data order.", show_default=False)
    ] = None,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Device: auto, cpu, cuda or cuda:0.", show_default=False)
    ] = None,
) -> None:
    """Train one model, in several processes if started with torchrun.

    Example: [bold]antiphase train --preset demo --output runs/one --set model.attention_type=softmax[/]
    """
    from antiphase.studies.training_run import train_run
    from antiphase.training.distributed import is_first_process

    extra = [f"training.seed={seed}"] if seed is not None else []
    extra += [f"training.device={device}"] if device is not None else []
    chosen = chosen_preset(preset, [*(settings or []), *extra], data, validation, None, None)
    console = make_console(quiet=not is_first_process())
    with run_progress(console, chosen.run.training.steps) as report:
        record = train_run(chosen.run, output, resume=resume, report=report, say=sayer(console))
    if not console.quiet:
        finish(console, record, output)
