"""Settings become the command line that gives them."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from antiphase.base.records import finite
from antiphase.cli.commands import command_of
from antiphase.lab.catalog import every
from antiphase.lab.settings.flags import flags_of, kept_settings, words_of


def other_values(kind):
    """A value for every field that is not its default."""
    hints, own = get_type_hints(kind), {field.name: field for field in fields(kind)}
    found = {}
    for name, flag in flags_of(kind).items():
        hint = next((one for one in get_args(hints[name]) if one is not type(None)), None)
        one = hint if get_origin(hints[name]) is UnionType else hints[name]
        is_list = isinstance(get_origin(one), type) and issubclass(get_origin(one), Sequence)
        scalar = get_args(one)[0] if is_list else one
        values = {str: "-a b='c'", int: 7, float: 0.30000000000000004, bool: not own[name].default}
        value = flag.choices[-1] if flag.choices else values[scalar]
        found[name] = (value,) if is_list else value
        if scalar in (str, int, float) and is_list and not flag.choices:
            found[name] = (value, {str: "d", int: 11, float: 1e-7}[scalar])
        if flag.ranges:
            found[name] = (2, 5)
    return found


@pytest.mark.parametrize("kind", [found.settings for found in every()], ids=lambda kind: kind.__name__)
def test_words_give_the_settings_back(kind):
    seen = []
    app = typer.Typer()
    app.command()(command_of(kind, lambda settings, **given: seen.append(settings)))
    own = {field.name: field for field in fields(kind)}
    needed = {name: value for name, value in other_values(kind).items() if own[name].default is MISSING}
    for values in (other_values(kind), needed):
        given = kind(**values)
        output = [] if kind.folder == "optional" else ["--output=o"]
        result = CliRunner().invoke(app, [*output, *words_of(given)])
        assert result.exit_code == 0, result.output
        back = seen.pop()
        assert finite(kept_settings(back)) == finite(kept_settings(given))


def test_where_work_is_done_is_not_kept():
    from antiphase.lab.lineage.commands.classify import ClassifySettings

    kept = kept_settings(ClassifySettings(train=["a"], executor="ray", ray_address="h:1", job_cpus=2, job_gpus=0.5))
    assert kept == kept_settings(ClassifySettings(train=["a"]))
    assert "executor" not in kept
