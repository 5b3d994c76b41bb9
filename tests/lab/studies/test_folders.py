"""A folder that another process works in is refused before anything in it, or beside it, is touched."""

import subprocess
import sys

import pytest

from antiphase.base.errors import InputError
from antiphase.calibration.plan import CalibrationPlan
from antiphase.lab.lineage.commands.classify.measure import ClassifySettings, classify
from antiphase.lab.lineage.commands.translate.measure import TranslateSettings, translate
from antiphase.lab.lineage.studies.dependency.measure import DependencySettings, dependency
from antiphase.lab.lineage.studies.gradients.measure import GradientsSettings, gradients
from antiphase.lab.lineage.studies.throughput.measure import ThroughputSettings, throughput
from antiphase.lab.measures.look.measure import LookSettings
from antiphase.lab.measures.look.measure import evaluate as look
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.ablations.measure import ablations
from antiphase.lab.studies.ablations.rows import ablation_preset
from antiphase.lab.studies.calibrate.apply.measure import ApplySettings, apply
from antiphase.lab.studies.calibrate.confirm.measure import ConfirmSettings, confirm
from antiphase.lab.studies.calibrate.search.measure import SearchSettings, search
from antiphase.lab.studies.calibrate.study.measure import CalibrationStudySettings, study
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.scaling.measure import scaling
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.studies.tune.measure import tune

WORKS = """
import filelock, pathlib, sys
folder = pathlib.Path(sys.argv[1])
lock = filelock.FileLock(folder / ".lock")
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
(folder / "made").write_text("by this process")
tokens = folder.with_name(folder.name + "-tokens")
tokens.mkdir()
(tokens / "x.tokens").write_text("by this process")
print("written", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process works, and ``held.write()``: let it write there and beside."""
    folder = tmp_path / "out"
    folder.mkdir()
    command = [sys.executable, "-c", WORKS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"

        class Held:
            path = folder
            written = False

            def write(self):
                if not self.written:
                    self.written = True
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "written\n"

        yield Held()
        process.communicate("\n")


@pytest.fixture
def preset(tiny_preset):
    return load_preset(str(tiny_preset))


COMMANDS = {
    "train": lambda output, preset: train_run(preset.run, output, resume=False),
    "compare": lambda output, preset: compare(preset, output),
    "tune": lambda output, preset: tune(preset, output, learning_rates=[1e-3]),
    "scaling": lambda output, preset: scaling(preset, output, widths=[16], steps=[]),
    "ablations": lambda output, preset: ablations(ablation_preset(preset, ["no-norm"])[0], output),
    "evaluate": lambda output, preset: evaluate(settings_of("perplexity", name="none"), output),
    "retrieval": lambda output, preset: evaluate(settings_of("needles", name="none"), output),
    "many-shot": lambda output, preset: evaluate(settings_of("many-shot", name="none", tasks=["none"]), output),
    "probe": lambda output, preset: evaluate(settings_of("probe", name="none", paths=["none"]), output),
    "look": lambda output, preset: look(LookSettings(name="none", text="a"), output),
    "search": lambda output, preset: search(SearchSettings(name="none", tasks=["none"]), output),
    "confirm": lambda output, preset: confirm(ConfirmSettings(name="none", tasks=["none"]), output),
    "study": lambda output, preset: study(CalibrationStudySettings(name="none", tasks=["none"]), output),
    "classify": lambda output, preset: classify(ClassifySettings(train=["none"]), output),
    "translate": lambda output, preset: translate(TranslateSettings(), output),
    "dependency": lambda output, preset: dependency(DependencySettings(), output),
    "throughput": lambda output, preset: throughput(ThroughputSettings(), output),
    "gradients": lambda output, preset: gradients(GradientsSettings(), output),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_command_leaves_what_another_process_makes(held, preset, monkeypatch, command):
    """It appears while the refused one looks, and is not taken for its own."""

    def prepare(*arguments, **words):
        held.write()
        raise InputError("no such text")

    for module in ("training_run", "grid"):
        monkeypatch.setattr(f"antiphase.lab.studies.{module}.prepare", prepare)
    for module in ("running", "context_runner"):
        monkeypatch.setattr(f"antiphase.lab.measures.{module}.load_model", prepare)
    for module in ("lab.measures.look.measure", "lab.studies.calibrate.measuring"):
        monkeypatch.setattr(f"antiphase.{module}.load_model", prepare)
    for module in ("dependency", "throughput", "gradients"):
        monkeypatch.setattr(f"antiphase.lab.lineage.studies.{module}.measure.train_words", prepare)
    with pytest.raises(InputError, match=f"output {held.path} is in use by another process"):
        COMMANDS[command](held.path, preset)
    held.write()
    assert (held.path / "made").is_file()
    assert (held.path.with_name("out-tokens") / "x.tokens").is_file()


def test_a_plan_is_not_applied_in_a_folder_in_use(held, tmp_path):
    CalibrationPlan({0: [0]}).save(tmp_path / "plan.json")
    request = ApplySettings(name="none", plan=str(tmp_path / "plan.json"), tasks=["none"])
    with pytest.raises(InputError, match="is in use by another process"):
        apply(request, held.path)


def test_a_folder_of_something_else_gets_no_lock(tmp_path, preset):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for command in COMMANDS.values():
        with pytest.raises(InputError, match="exists and "):
            command(tmp_path / "mine", preset)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
