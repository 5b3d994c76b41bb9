"""What a script that measures has: options, the clock, one record, and a sentence for input that cannot be used."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.base.errors import InputError, complain
from antiphase.base.folders.ownership import check_empty
from antiphase.base.records import Record

CONSOLE = Console(highlight=False)
Measure = Callable[[argparse.Namespace], Mapping[str, Any]]
"""From the options to the fields of the record: ``values``, and ``config`` and ``seeds`` if it has any."""


def script(doc: str | None, kind: str, measure: Measure, options: Mapping[str, Any], *, name: str = "") -> None:
    """Read the command line, measure, and write a record in the folder ``--output``; exit with 2 on bad input.

    Args:
        doc: the help.
        kind: of the record.
        options: by name; a number is the default of its type, a text the help of an argument that must be given, and a
            mapping holds what ``add_argument`` takes.
        name: of the record's file, in a folder that may hold others; by default that is new, and has ``record.json``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the record")
    for option, given in options.items():
        if isinstance(given, (int, float)):
            parser.add_argument(option, type=type(given), default=given, help=f"default: {given}")
        elif isinstance(given, str):
            needed: dict[str, Any] = {"required": True} if option.startswith("-") else {}
            parser.add_argument(option, help=given, **needed)
        else:
            parser.add_argument(option, **given)
    chosen, started = parser.parse_args(), time.perf_counter()
    chosen.output = chosen.output.resolve()
    try:
        if not name:
            check_empty(chosen.output)
        found = measure(chosen)
    except InputError as error:
        complain(str(error))
        sys.exit(2)
    record = Record(kind=kind, **found, seconds=time.perf_counter() - started)
    CONSOLE.print(f"written: {record.save(chosen.output, *filter(None, [name]))}", soft_wrap=True)
