"""The commands that convert checkpoints, draw reports, build the kernels and show the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from antiphase.base.files import one_line
from antiphase.cli.console import make_console, sayer
from antiphase.lab.settings.flags import DTYPE_HELP, check_dtype


class Format(StrEnum):
    """What ``antiphase report`` writes."""

    html = "html"
    csv = "csv"
    latex = "latex"
    markdown = "markdown"
    svg = "svg"
    pdf = "pdf"


class Target(StrEnum):
    """Formats that ``antiphase convert`` writes."""

    antiphase = "antiphase"
    llama = "llama"
    diffllama = "diffllama"


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Local folder, GGUF file or Hub name of a model.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to create.")],
    to: Annotated[
        Target | None,
        typer.Option(
            "--to",
            help="Format of the result; default: antiphase, or llama for a Llama's GGUF file whose attention stays.",
            show_default=False,
        ),
    ] = None,
    attention_type: Annotated[
        str | None,
        typer.Option(
            "--attention-type",
            help="Convert a softmax model to differential_v2 or differential (V1 without head norm), which compute the "
            "same function, or add the DEX extension (dex).",
            show_default=False,
        ),
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="With differential_v2: write its control instead, softmax attention of the same capacity."
        ),
    ] = False,
    dtype: Annotated[str | None, typer.Option("--dtype", help=DTYPE_HELP, show_default=False)] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="Folder or Hub name of the tokenizer of a model that has none.", show_default=False
        ),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Also write the modeling code: the result loads without antiphase.")
    ] = False,
) -> None:
    """Convert a Llama, Mistral, DiffLlama, Qwen2, Qwen3, OLMo 2, EXAONE 4, Gemma, GPT-NeoX, StableLM, StarCoder2,
    diff-mlx or Motif to antiphase, or antiphase to Llama or DiffLlama; upcycle a softmax model to differential V1 or
    V2; a GGUF file is dequantized (pip install 'antiphase\\[gguf]').

    Example: [bold]antiphase convert LLAMA_FOLDER runs/v2 --attention-type differential_v2[/]
    """
    from antiphase.models.checkpoints import convert as run_convert

    check_dtype(dtype)
    console = make_console()
    config = run_convert(
        source, target, to=None if to is None else to.value, attention_type=attention_type, control=control,
        dtype=dtype, tokenizer=tokenizer, portable=portable, say=sayer(console),
    )  # fmt: skip
    kind = getattr(config, "attention_type", None)
    console.print(f"written: {target} ({config.model_type}{f', {kind} attention' if kind else ''})", highlight=False)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders or record files.")],
    output: Annotated[Path, typer.Option("--output", help="The HTML file, or the folder of the other formats.")],
    format: Annotated[
        Format, typer.Option("--format", help="A page; files of every table (csv, latex, markdown) or figure.")
    ] = Format.html,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for the figures as PNG.", show_default=False)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="LAYER.HEAD", help="Of antiphase look: the head shown large.", show_default=False
        ),
    ] = None,
) -> None:
    """Make one self-contained HTML page from records; an interactive one if all records come from antiphase look. Or
    write their tables and figures as files, for a paper.

    Example: [bold]antiphase report runs/demo --output demo.html[/]
    Example: [bold]antiphase report runs/demo --format latex --output tables[/]
    """
    from antiphase.base.errors import InputError
    from antiphase.base.records import Record
    from antiphase.cli.terminal import Terminal
    from antiphase.lab.catalog import measurement_of
    from antiphase.lab.measures.look.tables import with_head
    from antiphase.lab.pages.figures import save_figures
    from antiphase.lab.pages.html import write_report
    from antiphase.lab.pages.reading import Run

    if format != Format.html and output.suffix == ".html":
        raise InputError(f"--output {output}: --format {format} writes files into a folder; name that")
    records = [Record.load(path) if head is None else with_head(Record.load(path), head) for path in runs]
    kinds = {record.kind for record in records}
    only = measurement_of(kinds.pop()) if len(kinds) == 1 else None
    page = None if only is None else only.presentation.page
    written = []
    with _showing(runs):
        if format == Format.html:
            written.append((page or write_report)(records, output))
        for name, record in zip(_folder_names(runs), records, strict=True):
            own = Path(name if len(records) > 1 else "")
            if format != Format.html:
                written += Run(record).save(output / own, format)
            if figures is not None:
                save_figures(record, figures / own)
    if not written:
        raise InputError(f"--format {format}: there are no figures; choose a format of tables, such as csv")
    Terminal(markup=False).print(f"written: {output}", highlight=False)


def _folder_names(runs: Sequence[Path]) -> list[str]:
    """A name for each record: that of its folder or file, all of them numbered where two would be equal."""
    names = [path.stem if path.suffix == ".json" else path.resolve().name for path in runs]
    return names if len(set(names)) == len(names) else [f"{place}-{name}" for place, name in enumerate(names, start=1)]


@contextmanager
def _showing(runs: Sequence[Path]) -> Iterator[None]:
    """What damaged values make the code that shows them raise, as an input error that names the records."""
    from antiphase.base.errors import InputError

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError) and error.field in ("output", "figures"):
            raise
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"RUN {', '.join(map(str, runs))}: the values of the record cannot be shown ({one_line(reason)}); bring "
            "the file back as it was written"
        ) from error


def build() -> None:
    """Compile the native attention kernels for this machine (half a minute; needs only a C++ compiler).

    Example: [bold]antiphase build[/]
    """
    from antiphase.base.errors import InputError
    from antiphase.ops.native.build import BuildError
    from antiphase.ops.native.build import build as compile_library

    console = make_console()
    with console.status("compiling"):
        try:
            path = compile_library()
        except BuildError as error:
            raise InputError(f"the native kernels were not built: {error}") from None
    console.print(f"written: {path}", highlight=False, soft_wrap=True)


def env() -> None:
    """Show versions, hardware and the attention kernels in use, for a bug report.

    Example: [bold]antiphase env[/]
    """
    import torch

    from antiphase.base.records import environment
    from antiphase.ops.implementations import why_no_kernels
    from antiphase.ops.native import library

    console = make_console()
    for name, value in environment().items():
        console.print(f"{name:>12}  {value}", highlight=False)
    console.print(f"{'cuda':>12}  {torch.version.cuda or 'none'}", highlight=False)
    on_gpu = "no CUDA device"
    if torch.cuda.is_available():
        on_gpu = why_no_kernels(torch.device("cuda")) or "triton"
    on_cpu = library.why_not_built() or library.kernels()
    for name, value in {"CPU kernels": on_cpu, "GPU kernels": on_gpu}.items():
        console.print(f"{name:>12}  {value}", highlight=False, soft_wrap=True)
