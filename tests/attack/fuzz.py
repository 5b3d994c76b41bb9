"""Damaged files for every reader, drawn by Hypothesis: each is accepted, or refused by ``InputError``, and soon."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from attack.readers import READERS, Reader, copy_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from antiphase.base.errors import InputError
from antiphase.base.memory import peak_memory, restart_peak

SECONDS, GROWTH = 5.0, 1 << 30
"""Bounds of a call: processor time, and bytes that the process may grow by."""
VALUES = (
    None, True, False, 0, -1, 1, 3, 1.5, -0.0, 10**6, 1 << 31, 1 << 63, 10**30, 1e308, float("nan"), float("inf"), "",
    "x", "0", "\ud800", "\x00", "../x", "/", "é" * 300, "{{ x }}", "[bold]", [], [[]], [1], [None], ["x"], {}, {"a": 1},
    {"": None}, [[[[[[]]]]]], "float32", "1e400", "9" * 5000,
)  # fmt: skip
"""What takes the place of a value in a tree."""
BYTES = (
    b"", b"\x00", b"\xff", b"\n", b"\r", b"{", b"[" * 2000, b"]", b'"', b":", b"-", b"9" * 5000, b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"&a [*a]", b"!!python/object:os.system x", b"\\ud800", b"NaN", b"1e999", b"\x7f" + b"\xff" * 7,
)  # fmt: skip
"""What takes the place of bytes."""
EDITS = st.one_of(
    st.tuples(st.just("bytes"), st.floats(0, 1), st.integers(0, 30), st.sampled_from(BYTES) | st.binary(max_size=9)),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("bits"), st.floats(0, 1), st.integers(0, 7)),
    st.tuples(st.just("value"), st.floats(0, 1), st.sampled_from(VALUES)),
    st.tuples(st.just("key"), st.floats(0, 1), st.text(max_size=5) | st.none()),
    st.tuples(st.just("gone")),
)
"""Of a file: bytes replaced, the end cut off, a stretch repeated, a bit turned, a value or key of its tree changed."""
DAMAGE = st.tuples(st.floats(0, 1), st.lists(EDITS, min_size=1, max_size=4))
"""Which file of the folder, by its place in the list, and what is done to it."""


class _SlowError(BaseException):
    """A call took too long."""


def all_readers(
    folder: Path,
    count: int,
    number: int,
    only: str | None = None,
    kept: Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]] = lambda name, make: make(),
) -> list[dict[str, Any]]:
    """``count`` inputs for each reader, each reader in a process of its own; a row for each.

    ``kept`` gives the row of a reader, made now or in an earlier sitting.
    """
    folder.mkdir(parents=True)
    return [
        kept(name, functools.partial(in_process, name, folder / str(index), count, number))
        for index, name in enumerate(READERS)
        if only in (None, name)
    ]


def in_process(name: str, folder: Path, count: int, number: int) -> dict[str, Any]:
    """The inputs of one reader, in a forked process, which a crash may end."""
    folder.mkdir()
    pid = os.fork()
    if not pid:
        try:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)  # of libraries, with their progress bars
            os.dup2(log, 1)
            os.dup2(log, 2)
            (folder / "row.json").write_text(json.dumps(fuzzed(name, folder, count, number)))
        except BaseException:  # noqa: BLE001 – a forked process must not go on
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if (folder / "row.json").is_file():
        row = json.loads((folder / "row.json").read_text())
    else:
        said = (folder / "log").read_text(errors="replace")[-300:]
        row = {"reader": name, "tries": 0, "refused": 0, "wrong": [f"{name}: the process died: {said}"]}
    words = f"{name}: {row['tries']} tries, {row['refused']} refused, {len(row['wrong'])} wrong"
    print(words, flush=True)  # noqa: T201 – progress
    for line in row["wrong"]:
        print(f"LOST {line}", flush=True)  # noqa: T201 – progress
    shutil.rmtree(folder)
    return row


def fuzzed(name: str, folder: Path, count: int, number: int) -> dict[str, Any]:
    """Give a reader ``count`` damaged folders; how many it refused, and each kind of what went wrong once."""
    reader, whole, here = READERS[name], folder / "whole", folder / "here"
    whole.mkdir()
    reader.make(whole)
    copy_of(whole, here)
    truth = repr(reader.read(here))
    found = {"tries": 0, "refused": 0}
    wrong: dict[str, str] = {}
    signal.signal(signal.SIGPROF, _too_slow)

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(DAMAGE)
    def examine(damage: tuple[float, list[tuple[Any, ...]]]) -> None:
        copy_of(whole, here)
        damaged(here, damage)
        found["tries"] += 1
        fault = judged(reader, here, truth, found)
        if fault is not None:
            wrong.setdefault(fault.partition(": ")[0], f"{fault}, by {damage!r}"[:600])

    examine()
    return {"reader": name, **found, "wrong": [f"{name}: {fault}" for fault in wrong.values()]}


def judged(reader: Reader, here: Path, truth: str, found: dict[str, int]) -> str | None:
    """What is wrong with how a reader takes a folder."""
    restart_peak()
    before = peak_memory() or 0
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        given_back = reader.read(here)
    except InputError as error:
        found["refused"] += 1
        if not str(error).strip():
            return "an empty message"
    except _SlowError:
        return f"more than {SECONDS:g} s at {_place()}"
    except Exception as error:  # noqa: BLE001 – any error is what is looked for
        return f"{type(error).__name__} in {_place()}: {str(error)[:60]!r}"
    else:
        if reader.sealed and repr(given_back) != truth:
            return "something else than was written is accepted"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = (peak_memory() or 0) - before
    return f"grows by {grown >> 20} MiB" if grown > GROWTH else None


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise _SlowError


def _place() -> str:
    """Our innermost line of the error that is being handled, and the innermost of all."""
    lines = [line for line in traceback.format_exc().splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/antiphase/" in line and "/attack/" not in line and "site-packages" not in line]
    short = [line.strip().split(", ", 1) for line in (own[-1:] or lines[-1:]) + lines[-1:]]
    return " < ".join(f"{Path(file[6:-1]).name} {where}" for file, where in short)


# ------------------------------------------------------------------------------------------ damage


def damaged(folder: Path, damage: tuple[float, list[tuple[Any, ...]]]) -> None:
    """Harm one file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = files[min(int(damage[0] * len(files)), len(files) - 1)]
    for edit in damage[1]:
        if edit[0] == "gone":
            path.unlink()
            return
        path.write_bytes(edited(path.read_bytes(), path.suffix, edit))


def edited(content: bytes, suffix: str, edit: tuple[Any, ...]) -> bytes:
    """The content of a file after one edit."""
    kind, place = edit[0], int(edit[1] * len(content))
    if kind == "bytes":
        return content[:place] + edit[3] + content[place + edit[2] :]
    if kind == "cut":
        return content[:place]
    if kind == "repeat":
        return content[:place] + content[place : place + 40] * edit[2] + content[place:]
    if kind == "bits":
        return (
            content[:place] + bytes(byte ^ (1 << edit[2]) for byte in content[place : place + 1]) + content[place + 1 :]
        )
    try:
        if suffix in (".yaml", ".yml"):
            return yaml.safe_dump(_changed(yaml.safe_load(content), edit), sort_keys=False).encode(
                "utf-8", "surrogatepass"
            )
        if suffix == ".jsonl":
            lines = content.decode().splitlines()
            index = int(edit[1] * len(lines)) % len(lines)
            lines[index] = json.dumps(_changed(json.loads(lines[index]), edit))
            return ("\n".join(lines) + "\n").encode()
        if suffix == ".safetensors":
            size = int.from_bytes(content[:8], "little")
            header = json.dumps(_changed(json.loads(content[8 : 8 + size]), edit)).encode()
            return len(header).to_bytes(8, "little") + header + content[8 + size :]
        return json.dumps(_changed(json.loads(content), edit)).encode()
    except (ValueError, RecursionError, ZeroDivisionError, yaml.YAMLError, OverflowError):
        return content  # no tree, or no longer one


def _changed(tree: Any, edit: tuple[Any, ...]) -> Any:
    """A tree with one value or key changed; the place is a share of all values, in the order of a walk."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        pairs = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        for key, value in pairs:
            places.append((node, key))
            walk(value)

    walk(tree)
    if not places:
        return edit[2] if edit[0] == "value" else tree
    node, key = places[min(int(edit[1] * len(places)), len(places) - 1)]
    if edit[0] == "value":
        node[key] = edit[2]
    elif edit[2] is None or isinstance(node, list):
        del node[key]
    else:
        node[edit[2]] = node.pop(key)
    return tree
