"""The command line. Arguments are parsed first and the heavy libraries imported late, so ``--help`` is quick."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from antiphase.base.errors import (
    DIVERGED,
    BrokenRunError,
    DivergedError,
    InputError,
    Interrupted,
    complain,
    is_lack_of_memory,
    naming_fields,
    visible,
)
from antiphase.cli import benchmark, folder_commands, tools
from antiphase.cli.groups import late_group
from antiphase.cli.naming import flag_of

OWN: dict[str, Callable[..., None]] = {
    "convert": tools.convert, "benchmark": benchmark.benchmark, "report": tools.report, "build": tools.build,
    "env": tools.env,
}  # fmt: skip
"""Commands without a folder of their own."""
PANELS = {
    "See": ("look", "probe", "report"),
    "Train": ("compare", "train", "tune", "ablations", "scaling", "upcycle", "extend", "estimate", "reproduce"),
    "Measure and fix": ("evaluate", "calibrate", "benchmark"),
    "Convert": ("convert",),
    "Earlier models": ("classify", "predict", "translate", "study", "tokenize"),
    "This machine": ("env", "build"),
}
"""All commands under the headings of the help; the commonest stands first."""
NAMES = tuple(itertools.chain(*PANELS.values()))


def _made(name: str) -> Callable[[], Callable[..., None]]:
    """What makes a command."""
    return (lambda: OWN[name]) if name in OWN else folder_commands.COMMANDS[name]


app = typer.Typer(
    cls=late_group({name: _made(name) for name in NAMES if name not in folder_commands.GROUPS}, PANELS),
    name="antiphase",
    help="Noise-cancelling attention for PyTorch and Hugging Face.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _name in folder_commands.GROUPS:
    _panel = next(heading for heading, names in PANELS.items() if _name in names)
    app.add_typer(folder_commands.group(_name), name=_name, rich_help_panel=_panel)


FIRST_STEPS = """\
Noise-cancelling attention for PyTorch and Hugging Face.

See every attention map of a model, a local folder or a Hub name, on a text of yours:
  antiphase look MODEL --text "..." --output runs/look

Train a softmax and a differential model side by side, in minutes and without data:
  antiphase compare --preset demo --output runs/demo

Measure how well a model finds facts in a long text:
  antiphase evaluate needles MODEL --data FOLDER --output runs/needles

All commands: antiphase --help. What a command does: antiphase COMMAND --help.
"""
"""What ``antiphase`` prints without a command."""


@app.callback(invoke_without_command=True)
def _global(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from antiphase import __version__

        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS, nl=False)
        raise typer.Exit(2)


USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's exception for a flag that is missing or malformed. Typer brings click or its own copy, by its version; both
have this line of descent."""


ROOM = "make room, then repeat the command, with --resume where it has one"
REMEDIES = {
    errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EFBIG: ROOM, errno.ENAMETOOLONG: "give a shorter name",
    errno.EACCES: "check its permissions", errno.EPERM: "check its permissions", errno.EROFS: "choose another place",
    errno.EISDIR: "move the folder away", errno.ENOTDIR: "choose another place", errno.ELOOP: "choose another place",
    errno.EIO: "check the disk, then repeat the command, with --resume where it has one",
    errno.EMFILE: "raise the limit of open files (ulimit -n)", errno.ENFILE: "close other programs",
    errno.ENOMEM: "free memory, or lower data.workers, then repeat the command; finished parts are kept",
}  # fmt: skip
"""What to do about errors of the system that any file, read or written, may meet."""


def _words(given: list[str]) -> list[str]:
    """The words of a command: ``antiphase MODEL`` means ``antiphase look MODEL``."""
    is_model = bool(given) and given[0] not in NAMES and (Path(given[0]).exists() or "/" in given[0])
    return ["look", *given] if is_model and not given[0].startswith("-") else given


@naming_fields(flag_of)
def main() -> None:
    """Entry point. Bad input is one sentence and exit code 2, diverged training 3, an interruption with a checkpoint
    130.
    """
    if strange := next((word for word in sys.argv if any("\ud800" <= letter <= "\udfff" for letter in word)), None):
        _fail(f"the argument {strange!a} is not UTF-8; rename the file, or write the text as UTF-8", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal's encoding lacks, as for stderr
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # noqa: TID251  # no output holds it, and libraries fail on letters
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # code of the Hub, which transformers would fetch
    try:
        with _ctrl_c_stops():
            code = app(args=_words(sys.argv[1:]), standalone_mode=False, prog_name="antiphase")
    except InputError as error:
        _fail(str(error), 2)
    except DivergedError as error:
        _fail(str(error), DIVERGED)
    except BrokenRunError as error:
        _fail(f"{error}; mend that, then repeat the command with --resume", 1)
    except Interrupted as error:
        _fail(f"{error}; add --resume to the same command to continue", 130)
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        file, verb = str(error.filename or "a file"), "written" if REMEDIES[error.errno] == ROOM else "used"
        _fail(f"{file[:200]} cannot be {verb} ({error.strerror}); {REMEDIES[error.errno]}", 2)
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        wanted = re.search(r"allocate ([\d.]+ ?\w+)", str(error))
        much = f" (for one part alone {wanted[1]})" if wanted else ""
        _fail(f"the work needs more memory than there is{much}; choose smaller sizes or batches", 2)
    except USAGE_ERROR as error:
        _fail_usage(error)
    if code == 130:  # Ctrl-C while there was nothing that a checkpoint could save
        _fail("stopped", 130)
    sys.exit(code or 0)


@contextmanager
def _ctrl_c_stops() -> Iterator[None]:
    """One sentence also where what Ctrl-C interrupts raises another error instead of KeyboardInterrupt.

    Python 3.11 does while it makes a class (RuntimeError), safetensors while it reads a tensor (ValueError).
    """
    pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Interrupted:
        raise
    except (Exception, KeyboardInterrupt):  # whatever a library makes of the latter; anything else is raised again
        if pressed:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _fail("stopped", 130)
        raise
    finally:
        if is_default:  # pressed again, it would interrupt the sentence
            signal.signal(signal.SIGINT, signal.SIG_IGN if pressed else signal.default_int_handler)


LONGEST, END, WORD = 280, 80, 24
"""Characters of a message, of those at its end, which say what to do, and of a word that is not cut."""


def _whole_words(beginning: str) -> str:
    """The beginning of a text without its last word, which may be cut, unless that is long, such as a path."""
    before, space, word = beginning.rpartition(" ")
    return before if space and len(word) <= WORD else beginning


def _fail(message: str, code: int) -> NoReturn:
    shown = visible(" ".join(message.splitlines()))
    if len(shown) > LONGEST:
        shown = f"{_whole_words(shown[: LONGEST - END - 3])} … {_whole_words(shown[:-END:-1])[::-1]}"
    complain(shown)
    sys.exit(code)


def _fail_usage(error: Any) -> NoReturn:
    """Print one sentence on a missing or malformed flag; nothing if the help was printed already."""
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")  # Pydantic's words
    if not message:
        sys.exit(2)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "antiphase"
    _fail(f"{message[0].lower()}{message[1:]}; see {command} --help", 2)


signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `antiphase env | head` ends quietly
