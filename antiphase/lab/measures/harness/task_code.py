"""Python code of lm-eval tasks (functions, metrics, templates), which runs only if the user allows it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jinja2.exceptions import SecurityError
from lm_eval import utils
from lm_eval.api import task
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import _factory, _yaml_loader

from antiphase.base.errors import InputError
from antiphase.base.limits import BoundError
from antiphase.base.templates import BoundedTemplates
from antiphase.lab.measures.harness.executing_code import OWN, executes

FLAG = "--trust-task-code"


@contextmanager
def task_code(*, trusted: bool) -> Iterator[None]:
    """Within the block, lm-eval runs only its own Python code that executes no text, unless tasks are trusted.

    It refuses functions named in YAML files outside lm-eval (``!function``, for settings and for whole tasks), those of
    lm-eval itself that can execute what rows or models say, whoever names them, files of tasks with ``unsafe_code``,
    which no other file can take back, and unknown metrics, which are scripts of the evaluate library. Templates are
    rendered in Jinja's sandbox; without it, ``{{ ''.__class__ }}`` gives access to every function of Python.

    Raises:
        InputError: inside the block, if there is other code.
    """
    if trusted:
        yield
        return
    sandbox = BoundedTemplates(undefined=utils.env.undefined, keep_trailing_newline=utils.env.keep_trailing_newline)
    sandbox.filters.update(utils.env.filters)
    with ExitStack() as stack:
        for home, name, value in (
            (_yaml_loader, "_import_func_in_yml", _own_functions(_yaml_loader._import_func_in_yml)),
            (_yaml_loader, "load_yaml", _safe_files(_yaml_loader.load_yaml)),  # the files that a file includes
            (_factory, "load_yaml", _safe_files(_factory.load_yaml)),
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
        if not folder.is_relative_to(OWN):
            raise InputError(
                f"the function {name} that a YAML file in {folder} names is Python; read it, then add {FLAG}"
            )
        parts = name.split(".")[:-1]
        beside, of_lm_eval = (place.joinpath(*parts).with_suffix(".py") for place in (folder, OWN.parent))
        module = next((path for path in (beside, of_lm_eval) if path.is_file()), None)
        reason = "a module outside lm-eval" if module is None else executes(module)
        if reason is not None:
            raise InputError(
                f"lm-eval's function {name} in {folder.relative_to(OWN)} may run what rows or the model say as code "
                f"({reason}); read the rows, then add {FLAG}"
            )
        return load(name, folder)

    return refuse


def _safe_files(load: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def refuse(path: str | Path, *, resolve_func: bool = True, **named: Any) -> dict[str, Any]:
        settings = load(path, resolve_func=resolve_func, **named)
        if resolve_func and settings.get("unsafe_code", False) is not False:  # otherwise only an index is made
            raise InputError(
                f"{path} says that its task runs what the model says as code (unsafe_code); read it, then add {FLAG}"
            )
        return settings

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
