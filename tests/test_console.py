"""What the command line shows while it works."""

from io import StringIO
from types import SimpleNamespace

from rich.console import Console

from antiphase.cli.console import job_progress
from antiphase.studies.jobs import Job


def test_each_run_of_a_study_has_its_own_steps():
    """Short runs of the same name too, as ablations make them after a comparison."""
    written = StringIO()
    with job_progress(Console(file=written, force_terminal=True, width=120)) as report:
        for steps in (10, 4):
            settings = SimpleNamespace(training=SimpleNamespace(steps=steps))
            report(Job("softmax-seed0", "softmax", 0, settings), 4, {"loss": 1.0})
    assert "4/10" in written.getvalue()
    assert "4/4" in written.getvalue()
