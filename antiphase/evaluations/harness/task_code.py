"""Python code of lm-eval tasks (functions, metrics, templates), which runs only if the user allows it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lm_eval.api.metrics
from jinja2.exceptions import SecurityError
from lm_eval import utils
from lm_eval.api import task
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import _yaml_loader

from antiphase.errors import InputError
from antiphase.reading.limits import BoundError
from antiphase.reading.templates import BoundedTemplates

FLAG = "--trust-task-code"
OWN = Path(lm_eval.__file__).resolve().parent


@contextmanager
def task_code(*, trusted: bool) -> Iterator[None]:
    """Within the block, lm-eval runs only its own Python code, unless tasks are trusted; lm-eval has no such option.

    It refuses functions named in YAML files outside lm-eval (``!function``, for settings and for whole tasks), and
    unknown metrics, which are scripts of the evaluate library. Templates are rendered in Jinja's sandbox; without it,
    ``{{ ''.__class__ }}`` gives access to every function of Python.

    Raises:
        InputError: inside the block, if there is code that is not lm-eval's own.
    """
    if trusted:
        yield
        return
    sandbox = BoundedTemplates(undefined=utils.env.undefined, keep_trailing_newline=utils.env.keep_trailing_newline)
    sandbox.filters.update(utils.env.filters)
    with ExitStack() as stack:
        for home, name, value in (
            (_yaml_loader, "_import_func_in_yml", _own_functions(_yaml_loader._import_func_in_yml)),
            (task, "get_metric", _known_metrics(task.get_metric)),
            (utils, "env", sandbox),
        ):
            stack.callback(setattr, home, name, getattr(home, name))
            setattr(home, name, value)
        try:
            yield
        except BoundError as error:
            raise InputError(f"a template of the tasks is not usable: {error}; choose other tasks") from None
        except SecurityError as error:
            raise InputError(f"a template executes Python ({error}); read it, then add {FLAG}") from None


def _own_functions(load: Callable[[str, Path], Any]) -> Callable[[str, Path], Any]:
    def refuse(name: str, folder: Path) -> Any:
        if folder.is_relative_to(OWN):
            return load(name, folder)
        raise InputError(f"the function {name} that a YAML file in {folder} names is Python; read it, then add {FLAG}")

    return refuse


def _known_metrics(load: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(name: str, from_evaluate: bool = False) -> Any:
        if not from_evaluate and name in metric_registry:
            return load(name)
        raise InputError(
            f"the metric {name} is not lm-eval's own but a script of the evaluate library; read it, then add {FLAG}"
        )

    return refuse


def identity(function: Any) -> str:
    """A function by name and, unless it is lm-eval's own, by its file; other values as text."""
    name = str(getattr(function, "__qualname__", function))
    code = getattr(function, "__code__", None)
    if code is None or Path(code.co_filename).is_relative_to(OWN) or not Path(code.co_filename).is_file():
        return name
    return f"{name} {hashlib.sha256(Path(code.co_filename).read_bytes()).hexdigest()}"
