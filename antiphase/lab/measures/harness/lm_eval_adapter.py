"""Downstream tasks through EleutherAI's lm-eval, used as a library (2410.05258, section 3.1; tables 1 and 8)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from datasets.exceptions import DatasetsError
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from jinja2 import TemplateError
from lm_eval.api import task as task_module
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, NonFiniteError, nearest
from antiphase.lab.measures.harness import MeasuredTask, TaskMetric
from antiphase.lab.measures.harness.task_code import FLAG, identity, task_code
from antiphase.lab.scoring.beginnings import is_padded
from antiphase.lab.scoring.likelihood import check_logits
from antiphase.lab.scoring.probes import generates
from antiphase.lab.statistics.intervals import wilson_interval
from antiphase.lab.text.tokenization import chat_written, undated

VERSION: str = lm_eval.__version__
MAIN_METRICS = ("acc", "exact_match", "f1")
"""The first of these that a task has is its main metric, unless ``PUBLISHED_METRICS`` names another."""
PUBLISHED_METRICS = {"hellaswag": "acc_norm"}
"""Main metrics of the paper's tables if not accuracy: for HellaSwag they have lm-eval's ``acc_norm``, as its row of
OpenLLaMA-3B-v2 shows in comparison with that model's own card.
"""

PLACES = ("dataset_path", "dataset_name", "dataset_kwargs")
"""Settings for the location of a task's rows, which do not affect results; the rows themselves are compared."""


PARTS = ("versions", "n-shot", "n-samples", "results", "samples")
"""What lm-eval finds, each by the name of the task."""


class TaskLibrary:
    """The tasks of lm-eval, and those in a folder of the user."""

    def __init__(
        self,
        include_path: str | None = None,
        *,
        defaults: bool = True,
        trust_task_code: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            include_path: folder with YAML files of tasks, which take precedence over lm-eval's own.
            defaults: whether to load lm-eval's own tasks; reading their thousands of files takes seconds.
            trust_task_code: whether Python code of tasks may run (``task_code``).
            metadata: for every task, such as the lengths for which RULER's are made.

        Raises:
            InputError: a file in the folder is not YAML.
        """
        self.trust_task_code = trust_task_code
        try:
            with task_code(trusted=trust_task_code):
                self.manager = TaskManager(
                    include_path=include_path, include_defaults=defaults, metadata=dict(metadata or {})
                )
        except (yaml.YAMLError, OSError, ValueError) as error:
            raise InputError(f"--include-path {include_path}: {_line(error)}") from None

    def load(self, name: str) -> dict[str, Any]:
        """Load a task, or the tasks of a group, with their data.

        Raises:
            InputError: there is no task of this name, its data is not available, or it contains Python code that is not
                trusted.
        """
        if name not in self.manager.all_tasks and not Path(name).is_file():
            raise InputError(f"--tasks: lm-eval knows no task '{name}'{nearest(name, self.manager.all_tasks)[:200]}")
        try:
            with _quiet(), task_code(trusted=self.trust_task_code):
                loaded = dict(self.manager.load([name]))
        except InputError as error:
            raise InputError(f"--tasks {name}: {error}") from None
        except (OSError, DatasetsError) as error:  # OSError: also raised by the Hub's client without a network
            raise InputError(
                f"--tasks {name}: its data cannot be loaded ({_line(error)}); connect to the network, or name tasks of "
                "your own with --include-path"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, TemplateError, yaml.YAMLError, ImportError) as error:
            raise InputError(f"--tasks {name}: its settings cannot be used ({_line(error)})") from None
        unsafe = [own for own, task in loaded["tasks"].items() if getattr(task, "UNSAFE_CODE", False)]
        if unsafe and not self.trust_task_code:  # set by a group
            raise InputError(
                f"--tasks {name}: {', '.join(unsafe)} run what the model says as code (unsafe_code); read them, then "
                f"add {FLAG}"
            )
        return loaded


class ProjectLM(HFLM):
    """lm-eval's own model class for a loaded model; it counts truncated requests and shows no progress bars."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: str = "8") -> None:
        with _quiet():  # lm-eval pads every batch
            size = batch_size if is_padded(model) else "1"
            super().__init__(pretrained=model, backend="causal", tokenizer=tokenizer, batch_size=size)
        self.writes = generates(model)
        self.requests = 0
        self.cut = 0
        """Number of requests truncated at the beginning because they exceed the model's context."""
        self.report: Callable[[float], None] = lambda share: None
        self.is_called = False
        """Whether the model is running. It stays True after an error in the model, but not in the task."""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """As in HFLM, with the date that all prompts here have, and within the bounds of templates.

        Raises:
            InputError: the template cannot be used.
        """
        own = self.tokenizer.chat_template
        self.tokenizer.chat_template = undated(self.tokenizer.get_chat_template())
        write = super().apply_chat_template
        try:
            return chat_written(lambda: str(write(chat_history, add_generation_prompt)))
        finally:
            self.tokenizer.chat_template = own

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """As in HFLM."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """As in HFLM."""
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """As in HFLM.

        Raises:
            InputError: the model's generation writes something else than the model itself.
        """
        if not self.writes:
            raise InputError(
                f"MODEL: {type(self.model).__name__} generates something else with a cache, so lm-eval's tasks that "
                "generate cannot be measured; name tasks whose answers are scored"
            )
        self.requests += len(requests)
        return super().generate_until(requests, disable_tqdm=True)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """As in HFLM: token ids and masks (B, L) of prompts, of which the last ``left_truncate_len`` tokens stay."""
        ids, mask = super().tok_batch_encode(strings, padding_side, None, truncation)
        if left_truncate_len is not None:
            self.cut += int((mask.sum(1) > left_truncate_len).sum())
            ids, mask = ids[:, -left_truncate_len:], mask[:, -left_truncate_len:]
        return ids, mask

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, override_bs: int | None = None) -> Any:
        self.requests += len(requests)
        self.cut += sum(len(before) + len(after) > self.max_length + 1 for _, before, after in requests)
        self._seen = 0
        found = super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)
        if any(likely != likely for likely, _ in found):
            self.is_called = True
            raise NonFiniteError("its logits are not numbers")
        return found

    def _model_call(self, inps: Any, *arguments: Any, **named: Any) -> Any:
        self.is_called = True
        self._seen = getattr(self, "_seen", 0) + len(inps)
        if self.requests:
            self.report(min(1.0, self._seen / self.requests))
        logits = super()._model_call(inps, *arguments, **named)
        self.is_called = False
        return logits

    def _model_generate(self, *arguments: Any, **named: Any) -> Any:
        self.is_called = True
        tokens = super()._model_generate(*arguments, logits_processor=LogitsProcessorList([_checked]), **named)
        self.is_called = False
        return tokens


def measure(
    model: ProjectLM,
    tasks: dict[str, Any],
    *,
    shots: int,
    limit: float | None = None,
    seed: int = 1234,
    trust_task_code: bool = False,
    chat: bool = False,
) -> list[MeasuredTask]:
    """Scores on one task, or on each task of a group.

    Args:
        tasks: result of ``TaskLibrary.load``, not yet used.
        shots: number of examples before each prompt; a task that fixes it at 0 keeps 0, as with lm-eval's own command.
        limit: number of rows per task, or a share of them if below 1.
        seed: seed for drawing examples; 1234 is lm-eval's default.
        trust_task_code: as for ``TaskLibrary``.
        chat: whether lm-eval asks through the model's chat template, examples and question in one message.

    Returns:
        One row per task.

    Raises:
        InputError: there are too few rows for the examples, or rows do not fit the task's template.
        NonFiniteError: logits are not finite.
        Exception: any error of the model itself, unchanged, because it is a bug and not the task's fault.
    """
    for task in tasks["tasks"].values():
        if task.get_config("num_fewshot") != 0:
            task.set_config(key="num_fewshot", value=shots)
        task.set_fewshot_seed(seed=seed)
    model.requests = model.cut = 0
    model.is_called = False
    with _quiet():
        try:
            with task_code(trusted=trust_task_code):
                found = lm_eval.evaluate(
                    lm=model, task_dict=tasks, limit=limit, bootstrap_iters=1000, log_samples=True,
                    apply_chat_template=chat, confirm_run_unsafe_code=trust_task_code,
                )  # fmt: skip
        except (TemplateError, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError) as error:
            if model.is_called:
                raise
            raise InputError(f"--tasks {', '.join(tasks['tasks'])}, {shots} examples: {_line(error)}") from error
    cut = model.cut / model.requests if model.requests else 0.0
    return [
        _measured(task, name, {part: found[part].get(name) for part in PARTS}, cut)
        for name, task in tasks["tasks"].items()
    ]


def digest(tasks: Mapping[str, Any]) -> str:
    """SHA-256 of the rows and settings of tasks, including rows for examples; identifies a result."""
    hashed = hashlib.sha256()
    for name, task in sorted(tasks["tasks"].items()):
        settings = {key: value for key, value in task.dump_config().items() if key not in PLACES}
        hashed.update(f"{name} {task.VERSION} {json.dumps(settings, sort_keys=True, default=identity)}".encode())
        for documents in (task.eval_docs, task.fewshot_docs() or ()):
            hashed.update(b"rows")
            for document in documents:
                hashed.update(json.dumps(document, sort_keys=True, default=str).encode())
    return hashed.hexdigest()


def _measured(task: Any, name: str, found: Mapping[str, Any], cut: float) -> MeasuredTask:
    samples, version = found["samples"], found["versions"]
    metrics: dict[str, TaskMetric] = {}
    scores: dict[str | None, list[float]] = {}
    for key, value in found["results"].items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or isinstance(value, str):
            continue
        label = metric if kind == "none" else f"{metric} ({kind})"
        each = [
            float(sample[metric]) for sample in samples if sample.get("filter") == kind and _is_number(sample, metric)
        ]
        stderr = found["results"].get(f"{metric}_stderr,{kind}")
        counted = bool(each) and set(each) <= {0.0, 1.0}
        interval = list(wilson_interval(round(sum(each)), len(each))) if counted else None
        metrics[label] = TaskMetric(value, None if isinstance(stderr, str) else stderr, interval)
        scores[label] = each
    wanted = (PUBLISHED_METRICS.get(name), *MAIN_METRICS)
    main = next((metric for metric in wanted if metric in metrics), next(iter(metrics), None))
    guess, constant = _guesses(task, samples)
    return MeasuredTask(
        task=name, version=None if version is None else str(version), shots=found["n-shot"],
        samples=found["n-samples"]["effective"], cut=cut, metric=main, metrics=metrics, scores=scores.get(main, []),
        guess_rate=guess, constant_rate=constant,
    )  # fmt: skip


def _is_number(sample: Mapping[str, Any], metric: str) -> bool:
    return isinstance(sample.get(metric), (int, float)) or hasattr(sample.get(metric), "item")


def _guesses(task: Any, samples: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Accuracy of choosing uniformly, and of the most common position: systems that do not know the question."""
    if task.OUTPUT_TYPE != "multiple_choice" or not samples:
        return None, None
    both = 2 if "acc_mutual_info" in samples[0]["metrics"] else 1  # each choice is also scored without the question
    guess = sum(both / len(sample["arguments"]) for sample in samples) / len(samples)
    targets = [sample["target"] for sample in samples]
    if not all(isinstance(target, int) for target in targets):
        return guess, None
    return guess, Counter(targets).most_common(1)[0][1] / len(targets)


def _checked(input_ids: Tensor, logits: Tensor) -> Tensor:
    """Check a step's logits, because generation would choose a token from invalid ones; return them unchanged."""
    check_logits(logits)
    return logits


@contextmanager
def _quiet() -> Iterator[None]:
    """Make lm-eval log only errors and show no progress bars, for which it has no option."""
    logger, bar = logging.getLogger("lm_eval"), task_module.tqdm
    level, drawn = logger.level, not are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    disable_progress_bars()
    task_module.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        task_module.tqdm = bar
        if drawn:
            enable_progress_bars()


def _line(error: BaseException) -> str:
    """The error on one line."""
    words = " ".join(str(error).split()).rstrip(".")
    return words or type(error).__name__
