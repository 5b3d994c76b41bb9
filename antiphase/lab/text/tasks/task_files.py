"""Task files: short YAML files that are read into settings and may be based on a shipped template; or tables of texts
and labels, which are a task by themselves.

``prompt`` is a Jinja template over a row's columns; ``target`` and ``choices`` are Jinja expressions. Shipped templates
contain everything except the data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from antiphase.base.errors import InputError, nearest, within
from antiphase.base.files import read_yaml
from antiphase.base.typed import build
from antiphase.lab.text.files import kind_of
from antiphase.lab.text.labelled import labelled_rows, text_and_label

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
NO_DATA = "data is missing: the file, folder or Hub dataset that the task reads"


@dataclass(kw_only=True)
class TaskFileSettings:
    """The settings of a task file."""

    kind: Literal["classification", "choice", "answer", "continuation", "needles"]
    """``classification``: all rows share the same labels; ``choice``: each row has its own choices; ``answer``: an open
    question; ``continuation``: which passage of a text continues a given one; ``needles``: multi-needle retrieval in
    the text.
    """
    data: Any = None
    """File, folder or Hub dataset, or a mapping from labels to plain text files; relative to the task file."""
    name: str = ""
    split: str | None = None
    """Name of a split in a .json file."""
    header: list[str] | None = None
    """Column names of a CSV file without a header line."""
    encoding: Literal["utf-8", "latin-1"] = "utf-8"
    """Of plain text files: ``latin-1`` means that those which are not UTF-8 are Latin-1."""
    columns: dict[str, str] = field(default_factory=dict)
    """Further columns, each in a plain text file with one value per line."""
    prompt: str = ""
    """Jinja template of the prompt."""
    keep: str = "true"
    """Jinja expression: rows for which it is false are left out. Those that a template leaves out stay left out."""
    target: str = "label"
    """Jinja expression: the label, the 0-based index of the correct choice, or the correct answers."""
    labels: dict[str, str] = field(default_factory=dict)
    """Text for each label; empty means the labels of the data."""
    label_words: str = "{{ label }}"
    """Jinja template of the text for a ``label``, if ``labels`` is empty."""
    choices: str = "choices"
    """Jinja expression that gives a list of texts."""
    delimiter: str = " "
    """Text between prompt and answer."""
    demonstrations: Any = None
    """Where examples are taken from; None means from ``demonstrations_split`` of ``data``, or without such a split from
    rows of ``data`` that are not asked.
    """
    demonstrations_split: str | None = None
    """Name of the examples' split in a .json file."""
    shots: int = 0
    """Number of examples before each prompt."""
    separator: str = "\n\n"
    """Text between examples."""
    ask_shown: bool = False
    """Whether rows are asked whose text is among the examples: only where a label can be learned nowhere else."""
    normalize: Literal["no", "tokens", "characters"] = "no"
    """The unit of length by which log-likelihoods are divided before the best is chosen."""
    metric: Literal["accuracy", "exact_match", "f1"] | None = None
    """None means accuracy if there are options, and exact match for an open answer."""
    max_new_tokens: int = 16
    """Length limit of an open answer, which also ends at a line break."""
    needles: int | None = None
    """Number of facts in a sequence; None means 4 with ``data``, else that of the training."""
    length: int | None = None
    """Tokens in a sequence with needles (None: 512 with ``data``, else as in training) or in a passage (None: 96)."""
    continuation: int = 16
    """Tokens in a continuation."""
    offered: int = 4
    """Number of continuations to choose from."""


def template_names() -> list[str]:
    """Names of the shipped templates."""
    folder = resources.files("antiphase.lab") / "presets" / "tasks"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_task(path: str, columns: tuple[str | None, str | None] = (None, None)) -> tuple[TaskFileSettings, Path]:
    """The settings of a task file, and the folder to which its paths are relative. A table is classified by its label.

    ``template: NAME`` in the file takes the values that it does not set from a shipped template (or another file).

    Args:
        columns: those of a table's texts and labels; None means one with a usual name.

    Raises:
        InputError: the file is missing or is not a task file, or it names its columns itself.
    """
    if kind_of(Path(path)) in TABLES:
        return _of_table(Path(path), columns), Path(path).parent
    if any(columns):
        raise InputError(f"--task {path}: --text-field and --label-field are for tables; a task file names its columns")
    tree = _read_yaml(Path(path))
    template = tree.pop("template", None)
    if template is not None:
        own = Path(path).parent / str(template)
        if own.is_file():
            base = _read_yaml(own)
        elif template in template_names():
            text = (resources.files("antiphase.lab") / "presets" / "tasks" / f"{template}.yaml").read_text("utf-8")
            base = yaml.safe_load(text)
        else:
            unknown = f"unknown template '{template}'{nearest(str(template), template_names())}"
            raise InputError(unknown, field="task", path=path)
        if "keep" in base and isinstance(tree.get("keep"), str):
            tree["keep"] = f"({base['keep']}) and ({tree['keep']})"
        tree = {**base, **tree}
    with within("task", path):
        settings = build(TaskFileSettings, tree)
        _check(settings)
    settings.name = settings.name or Path(path).stem
    return settings, Path(path).parent


def _of_table(path: Path, columns: tuple[str | None, str | None]) -> TaskFileSettings:
    """The task of naming the label of each text in a table."""
    rows = labelled_rows(str(path), field="task")
    text, label = text_and_label(rows, *columns)
    if strange := next((name for name in (text, label) if not name.isidentifier()), None):
        raise InputError(f"{rows[0].place}: the column {strange!r} has no name that a template takes", "rename it")
    prompt = f"{{{{ {text} }}}}\nLabel:"
    return TaskFileSettings(kind="classification", name=path.stem, data=path.name, prompt=prompt, target=label)


def place_of(folder: Path, given: Any) -> str:
    """A path in a task file, relative to that file; a name without such a file stays unchanged (a Hub dataset)."""
    local = os.path.join(folder, str(given))
    return local if os.path.exists(local) else str(given)  # unlike pathlib's, also where no name is so long


def _read_yaml(path: Path) -> dict[str, Any]:
    known = ", ".join(template_names())
    return read_yaml(path, "task", f"a task is a YAML file such as 'template: NAME' (one of {known}) and 'data: FILE'")


def _check(settings: TaskFileSettings) -> None:
    for name, number, least in (
        ("shots", settings.shots, 0),
        ("max_new_tokens", settings.max_new_tokens, 1),
        ("needles", settings.needles, 1),
        ("length", settings.length, 16),
        ("continuation", settings.continuation, 1),
        ("offered", settings.offered, 2),
    ):
        if number is not None and number < least:
            raise InputError(f"{name} must be at least {least}, got {number}")
    if settings.kind == "needles":
        return
    if settings.data is None:
        raise InputError(NO_DATA)
    if settings.kind == "continuation":
        return
    if not settings.prompt.strip():
        raise InputError("prompt is missing: a Jinja template such as 'Question: {{ text }}\\nType:'")
    has_options = settings.kind in ("classification", "choice")
    if settings.metric is not None and (settings.metric == "accuracy") != has_options:
        raise InputError(f"metric {settings.metric} does not fit the kind {settings.kind}")
