"""Task files: short YAML, read into settings, on top of a shipped template where one is named.

``prompt`` is a Jinja template over a row's columns; ``target`` and ``choices`` are Jinja expressions. Shipped templates
hold everything but the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from antiphase.errors import InputError, nearest
from antiphase.reading.files import read_yaml
from antiphase.typed import build

NO_DATA = "data is missing: the file, folder or Hub dataset that the task reads"


@dataclass(kw_only=True)
class TaskSettings:
    """A task file."""

    kind: Literal["classification", "choice", "answer", "continuation", "needles"]
    """``classification``: one of the same labels for all rows; ``choice``: each row has its own; ``answer``: an open
    question; ``continuation``: how a passage of any text goes on, among passages from elsewhere in it; ``needles``:
    multi-needle retrieval in the text."""
    data: Any = None
    """File, folder or Hub dataset, or a mapping of labels to plain text files; relative to the task file."""
    name: str = ""
    split: str | None = None
    """Part of a .json file."""
    header: list[str] | None = None
    """Columns of a CSV file without a line that names them."""
    columns: dict[str, str] = field(default_factory=dict)
    """Further columns, each in a plain text file with one value a line."""
    prompt: str = ""
    """Jinja template of what the model reads."""
    target: str = "label"
    """Jinja expression: the label, the number of the right choice (from 0), or the right answers."""
    labels: dict[str, str] = field(default_factory=dict)
    """What is written for each label; empty: the labels of the data."""
    label_words: str = "{{ label }}"
    """Jinja template of what is written for a ``label``, where ``labels`` is empty."""
    choices: str = "choices"
    """Jinja expression: a list of texts."""
    delimiter: str = " "
    """Between prompt and answer."""
    demonstrations: Any = None
    """Where examples are taken from; None: from ``data``, and these are not asked."""
    demonstrations_split: str | None = None
    shots: int = 0
    """Examples before each prompt."""
    separator: str = "\n\n"
    """Between examples."""
    normalize: Literal["no", "tokens", "characters"] = "no"
    """By what log-likelihoods are divided before the best is taken."""
    metric: Literal["accuracy", "exact_match", "f1"] | None = None
    """None: accuracy where there are options, exact match for an open answer."""
    max_new_tokens: int = 16
    """Of an open answer, which also ends with the line."""
    needles: int | None = None
    """Facts in a sequence; None: 4, or as many as the model was trained with."""
    length: int | None = None
    """Tokens of a sequence with needles (None: 512, or as in the model's training) or of a passage (None: 96)."""
    continuation: int = 16
    """Tokens of a continuation."""
    offered: int = 4
    """Continuations to choose from."""


def template_names() -> list[str]:
    """Names of the shipped templates."""
    folder = resources.files("antiphase") / "presets" / "tasks"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_task(path: str, *, flag: str = "--task") -> tuple[TaskSettings, Path]:
    """The settings of a task file, and the folder that its paths start from.

    ``template: NAME`` in it takes the values of a shipped template (or of a file), but for what the file says itself.

    Raises:
        InputError: there is no such file, or it holds something else.
    """
    tree = _read_yaml(Path(path), flag)
    template = tree.pop("template", None)
    if template is not None:
        own = Path(path).parent / str(template)
        if own.is_file():
            base = _read_yaml(own, flag)
        elif template in template_names():
            text = (resources.files("antiphase") / "presets" / "tasks" / f"{template}.yaml").read_text("utf-8")
            base = yaml.safe_load(text)
        else:
            raise InputError(f"{flag} {path}: unknown template '{template}'{nearest(str(template), template_names())}")
        tree = {"name": str(template), **base, **tree}
    try:
        settings = build(TaskSettings, tree)
        _check(settings)
    except InputError as error:
        raise InputError(f"{flag} {path}: {error}") from None
    settings.name = settings.name or Path(path).stem
    return settings, Path(path).parent


def _read_yaml(path: Path, flag: str) -> dict[str, Any]:
    known = ", ".join(template_names())
    return read_yaml(path, flag, f"a task is a YAML file such as 'template: NAME' (one of {known}) and 'data: FILE'")


def _check(settings: TaskSettings) -> None:
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
