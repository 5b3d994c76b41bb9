"""Many-shot learning in context, from request to record: ``antiphase evaluate many-shot``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphase.errors import InputError
from antiphase.evals.loading import LoadedModel, load_model
from antiphase.evals.many_shot import many_shot
from antiphase.evals.tasks import LabelledTask, load_labelled_task
from antiphase.records import Record, finite
from antiphase.training.loop import choose_device
from antiphase.training.run_folder import new_folder


@dataclass(frozen=True, kw_only=True)
class ManyShotRequest:
    """What ``antiphase evaluate many-shot`` was asked for."""

    name: str
    """Local folder or Hub name of a causal language model."""
    tasks: Sequence[str]
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    orders: int = 10
    samples: int = 200
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Raise an InputError for a value out of range; it names the flag."""
        if not self.tasks:
            raise InputError("--task is missing: a YAML file, for example with 'template: trec' and 'data: FILE'")
        if not self.shots or min(self.shots) < 0 or len(set(self.shots)) < len(self.shots):
            raise InputError(f"--shots must be different whole numbers from 0, got {', '.join(map(str, self.shots))}")
        if self.orders < 0 or self.orders == 1:
            raise InputError(f"--orders must be 0 or at least 2, got {self.orders}")
        if self.samples < 1:
            raise InputError(f"--samples must be at least 1, got {self.samples}")


def evaluate_many_shot(
    request: ManyShotRequest,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Accuracy over numbers and orders of examples on each task. Writes ``record.json`` in ``output``.

    Raises:
        InputError: a model or task that cannot be used, two tasks of one name, a folder that is not empty.
    """
    request.check()
    started = time.perf_counter()
    with new_folder(output):
        loaded = load_model(request.name, device=str(choose_device(request.device)))
        tasks = {}
        for name, (path, task) in _tasks(request, loaded).items():
            say(f"{name}: {len(task.labels)} labels")
            most = _most_examples(request, task)
            try:
                tasks[name] = many_shot(
                    loaded.model, task, shots=[count for count in request.shots if count <= most],
                    samples=request.samples, orders=request.orders, seed=request.seed, report=report,
                )  # fmt: skip
            except InputError as error:
                raise InputError(f"--task {path}: {error}") from None
            except ValueError as error:
                raise InputError(f"MODEL {request.name}: {error}") from error
            tasks[name]["too_few_rows"] = [count for count in request.shots if count > most]
        record = Record(
            kind="evaluate-many-shot",
            values=finite({"model": request.name, "tasks": tasks}),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def _tasks(request: ManyShotRequest, loaded: LoadedModel) -> dict[str, tuple[str, LabelledTask]]:
    """Path and task by name, all of them before anything is computed.

    Raises:
        InputError: a task that cannot be used or has too few rows, two tasks of one name.
    """
    longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    found: dict[str, tuple[str, LabelledTask]] = {}
    for path in request.tasks:
        task = load_labelled_task(path, loaded.tokenizer, seed=request.seed, longest=longest)
        name = task.settings.name
        if task.settings.kind != "classification":
            raise InputError(f"--task {path}: many-shot learning needs a classification, not {task.settings.kind}")
        if name in found:
            raise InputError(
                f"--task {path}: {found[name][0]} has the name '{name}' too; give one of them another, for example "
                f"'name: {name}-2'"
            )
        if len(task.rows) < request.samples:
            raise InputError(
                f"--task {path}: --samples {request.samples} is more than its {len(task.rows)} rows; lower it"
            )
        if _most_examples(request, task) < min(request.shots):
            beside = "" if task.has_own_examples else f" beside --samples {request.samples}"
            raise InputError(
                f"--task {path}: there are too few rows for --shots {min(request.shots)}{beside}; ask for fewer"
            )
        found[name] = path, task
    return found


def _most_examples(request: ManyShotRequest, task: LabelledTask) -> int:
    """How many examples there are rows for, beside those that are asked."""
    return len(task.pool) - (0 if task.has_own_examples else request.samples)
