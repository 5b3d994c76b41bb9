"""What libraries raise for files that they cannot read, as one sentence that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassError
from safetensors import SafetensorError

from antiphase.base.errors import InputError, is_lack_of_memory, named

UNREADABLE = (OSError, ValueError, KeyError, ImportError, SafetensorError, StrictDataclassError)
"""What transformers raises for files that it cannot use."""
IMPOSSIBLE = (*UNREADABLE, TypeError, AttributeError, AssertionError, ArithmeticError, LookupError, NotImplementedError,
              RecursionError)  # fmt: skip
"""What a configuration whose values do not fit together makes its own class raise."""


@contextmanager
def usable_config(name: str, field: str) -> Iterator[None]:
    """What a configuration makes its class raise, as an input error that names the model."""
    try:
        yield
    except IMPOSSIBLE as error:
        reason = first_line(error)
        if not isinstance(error, InputError | StrictDataclassError):
            reason = f"{type(error).__name__}: {reason}"
        raise InputError(f"its config.json cannot be used ({reason})", field=field, path=name) from None


@contextmanager
def asking_hub(name: str, field: str) -> Iterator[None]:
    """What the Hub's client raises, as an input error that names the model."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{named(field, name)}: there is no such folder, and no such model could be read from the Hub "
            f"({first_line(error)})",
            "check the name",
        ) from error


@contextmanager
def loading(failure: str, remedy: str = "") -> Iterator[None]:
    """What a library says of a file that it cannot read, as an input error: ``failure``, the reason, ``remedy``."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not (isinstance(error, IMPOSSIBLE) or is_of_tokenizers(error) or is_lack_of_memory(error)):
            raise
        raise InputError(f"{failure} ({first_line(error)})", remedy) from error


def is_of_tokenizers(error: BaseException) -> bool:
    """Whether the Rust side of tokenizers raised this: Exception itself, or a panic, which is no Exception."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def first_line(error: object) -> str:
    """What a library says first; of a configuration whose values do not fit together, what it says of them."""
    if isinstance(error, StrictDataclassClassValidationError):
        return first_line(str(error).partition("\n")[2])
    found = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return found.rstrip(".: ")
