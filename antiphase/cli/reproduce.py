"""The command that repeats the paper."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from antiphase.cli.console import job_progress, make_console, sayer
from antiphase.cli.options import (
    DataOption,
    DeviceOption,
    OutputOption,
    ResumeOption,
    SetOption,
    TaskCodeOption,
    ValidationOption,
)


def reproduce(
    output: OutputOption,
    scale: Annotated[str, typer.Option("--scale", help="Scale: tiny, small, medium or paper.")] = "tiny",
    data: DataOption = None,
    validation: ValidationOption = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Parts to run, e.g. needles,outliers; default: all.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Downstream tasks by lm-eval's names, comma-separated.")
    ] = None,
    include_path: Annotated[str | None, typer.Option("--include-path", help="Folder with your own tasks.")] = None,
    trust_task_code: TaskCodeOption = False,
    judge: Annotated[str | None, typer.Option("--judge", help="Model that judges summaries and answers.")] = None,
    judge_data: Annotated[
        list[str] | None, typer.Option("--judge-data", help="File with texts to summarise or to ask about. Repeatable.")
    ] = None,
    devices: Annotated[int, typer.Option("--devices", help="Number of GPUs in the fleet for --scale paper.")] = 64,
    device_flops: Annotated[
        float, typer.Option("--device-flops", help="Sustained operations per second of one of these GPUs.")
    ] = 4e14,
    resume: ResumeOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Repeat the Differential Transformer paper's experiments at any scale, and judge each of its claims.

    tiny is for two cores, small for one large GPU, medium for eight; paper only reports what its 3B models would take.
    Example: [bold]antiphase reproduce --scale tiny --data books/ --output runs/reproduce[/]
    """
    from antiphase.records import Record
    from antiphase.report.html import write_report
    from antiphase.report.terminal import print_summary
    from antiphase.studies.budget import Fleet, paper_budget
    from antiphase.studies.reproduce import reproduce as run_reproduce
    from antiphase.studies.reproduce_request import PARTS, ReproduceRequest, scale_preset
    from antiphase.studies.scales import estimate

    console = make_console()
    if scale == "paper":
        record = paper_budget(Fleet(devices, device_flops), output)
        shown = [record]
    else:
        changes = [*(settings or []), *([f"training.device={device}"] if device != "auto" else [])]
        parts = [part.strip() for part in only.split(",")] if only else PARTS
        request = ReproduceRequest(
            scale=scale, data=data or [], validation=validation or [], parts=parts, settings=changes,
            tasks=tasks.split(",") if tasks else [], include_path=include_path,
            trust_task_code=trust_task_code, judge=judge, judge_data=judge_data or [],
        )  # fmt: skip
        preset = scale_preset(request)
        told = estimate(scale, parts, preset, os.cpu_count() or 1)
        minutes = told["minutes"]
        takes = f"about {minutes:.0f} minutes here" if minutes is not None else f"{scale} is for a large GPU"
        console.print(
            f"{told['runs']} runs and {told['short_runs']} short ones: {told['tokens'] / 1e6:.0f}M tokens to train, "
            f"{takes}; then the evaluations",
            highlight=False,
        )
        with job_progress(console) as report:
            record = run_reproduce(request, output, resume=resume, say=sayer(console), report=report)
        folders = [folder for listed in record.values["parts"].values() for folder in listed]
        seed = preset.compare.seeds[0]
        first = [name for name in folders if "-seed" not in name or name.endswith(f"-seed{seed}")]
        shown = [record, *(Record.load(output / name) for name in first if not _other_seed(name, seed))]
    print_summary(record, console)
    page = write_report(shown, output / "report.html")
    console.print(f"record: {output / 'record.json'}\npage:   {page}", highlight=False)


def _other_seed(name: str, seed: int) -> bool:
    """Whether a folder such as needles/seed3 is of another seed than the one that is shown."""
    last = name.rpartition("/")[2]
    return last.startswith("seed") and last != f"seed{seed}"
