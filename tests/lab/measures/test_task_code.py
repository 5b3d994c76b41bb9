"""Python that a folder of tasks brings along leaves its mark if it is trusted, and only then."""

import json
from contextlib import suppress

import pytest
import yaml

from antiphase.base.errors import InputError

pytest.importorskip("lm_eval", reason="lm-eval is an extra: pip install 'antiphase[harness]'")
from lm_eval import utils
from lm_eval.api import task as task_module
from lm_eval.tasks import _yaml_loader

from antiphase.lab.measures.harness import HarnessSettings, executing_code
from antiphase.lab.measures.harness import lm_eval_adapter as harness
from antiphase.lab.measures.harness.executing_code import OWN, executes
from antiphase.lab.measures.harness.lm_eval_adapter import TaskLibrary


@pytest.fixture
def folder(tmp_path):
    """Rows, and Python that leaves a mark as soon as it is read."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"q": f"{n}?", "answer": "yes"}) + "\n" for n in range(3)))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    mark = f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    (tasks / "code.py").write_text(
        f"{mark}\nclass Task:\n    task_name = 'plain'\n\ndef same(rows):\n    return rows\n"
    )
    (tasks / "measure").mkdir()
    (tasks / "measure" / "measure.py").write_text(mark)
    return tmp_path


def write(folder, lines="", name="plain.yaml", **fields):
    """A task of the folder; ``lines`` are appended as they stand, since plain YAML knows no functions."""
    settings = {
        "task": "plain", "dataset_path": "json", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}, "output_type": "generate_until",
        "doc_to_text": "{{q}}", "doc_to_target": "answer", "metric_list": [{"metric": "exact_match"}], **fields,
    }  # fmt: skip
    path = folder / "tasks" / name
    path.write_text(yaml.safe_dump(settings) + lines)
    return path


def function(folder):
    write(folder, "process_docs: !function code.same\n")
    return "plain"


def whole_task(folder):
    (folder / "tasks" / "plain.yaml").write_text("task: plain\nclass: !function code.Task\n")
    return "plain"


def included(folder):
    (folder / "tasks" / "base.txt").write_text("process_docs: !function code.same\n")
    write(folder, include="base.txt")
    return "plain"


def outside_the_folder(folder):
    (folder / "code.py").write_text((folder / "tasks" / "code.py").read_text())
    (folder / "base.yaml").write_text("process_docs: !function code.same\n")
    write(folder, include="../base.yaml")
    return "plain"


def file_by_its_path(folder):
    path = write(folder, "process_docs: !function code.same\n")
    return str(path.rename(folder / "tasks" / "alone.yml"))


def group(folder):
    write(folder)
    text = "group: several\ntask:\n- task: plain\n  process_docs: !function code.same\n"
    (folder / "tasks" / "several.yaml").write_text(text)
    return "several"


def metric(folder):
    write(folder, metric_list=[{"metric": str(folder / "tasks" / "measure"), "aggregation": "mean"}])
    return "plain"


def metric_by_evaluate(folder):
    path = str(folder / "tasks" / "measure")
    write(folder, metric_list=[{"metric": path, "hf_evaluate": True, "aggregation": "mean"}])
    return "plain"


def template(folder):
    write(folder, doc_to_text=f"{{{{ cycler.__init__.__globals__.os.mknod('{folder / 'mark'}') }}}}")
    return "plain"


def parts_of_lm_eval():
    """What is another within the block."""
    return [utils.env, task_module.get_metric, _yaml_loader._import_func_in_yml, _yaml_loader.load_yaml]


@pytest.mark.parametrize(("bring", "said"), [
    (function, "the function code.same that a YAML file in .*tasks names is Python; .* --trust-task-code"),
    (whole_task, "the function code.Task "), (included, "the function code.same "),
    (outside_the_folder, "the function code.same "), (file_by_its_path, "the function code.same "),
    (group, "the function code.same "), (metric, "the metric .*measure is not lm-eval's own"),
    (metric_by_evaluate, "the metric .*measure is not lm-eval's own"),
    (template, r"a template executes Python .*unsafe.*; read it, then add --trust-task-code"),
])  # fmt: skip
def test_python_of_a_folder_runs_only_if_it_is_trusted(folder, bring, said):
    name = bring(folder)
    before = parts_of_lm_eval()
    tasks = str(folder / "tasks")
    with pytest.raises(InputError, match=f"--tasks {name}: {said}"):
        TaskLibrary(tasks, defaults=False).load(name)
    assert not (folder / "mark").exists()
    assert parts_of_lm_eval() == before
    with suppress(InputError):  # some are no whole task; that they ran is what counts
        TaskLibrary(tasks, defaults=False, trust_task_code=True).load(name)
    assert (folder / "mark").exists()


def test_functions_and_metrics_of_lm_eval_itself_need_no_trust(folder):
    row = {"ind": 1, "activity_label": "Cooking", "ctx_a": "A man.", "ctx_b": "he", "endings": ["a", "b"], "label": "1"}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    files = {"data_files": {"validation": str(folder / "rows.jsonl")}}
    settings = {"include": str(OWN / "tasks" / "hellaswag" / "hellaswag.yaml"), "task": "mine", "dataset_path": "json",
                "dataset_kwargs": files, "training_split": None, "tag": None}  # fmt: skip
    (folder / "tasks" / "mine.yaml").write_text(yaml.safe_dump(settings))
    loaded = TaskLibrary(str(folder / "tasks"), defaults=False).load("mine")["tasks"]["mine"]
    assert loaded.eval_docs[0]["query"] == "Cooking: A man. He"  # what hellaswag's own function makes of the row


CRUX = {"code": "def f(x):\n    return x", "input": "1", "output": "1"}


@pytest.mark.parametrize("way", ["include", "group"])
def test_a_file_cannot_lower_what_a_task_of_lm_eval_says_of_itself(folder, way):
    (folder / "rows.jsonl").write_text(json.dumps(CRUX))
    own = {"unsafe_code": False, "dataset_path": "json", "dataset_name": None,
           "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}}  # fmt: skip
    included = {"include": str(OWN / "tasks" / "cruxeval" / "cruxeval_output.yaml"), "task": "crux", "tag": None}
    (folder / "tasks" / "crux.yaml").write_text(yaml.safe_dump(included | (own if way == "include" else {})))
    group = {"group": "several", "task": [{"task": "crux", **own}]}
    (folder / "tasks" / "several.yaml").write_text(yaml.safe_dump(group))
    with pytest.raises(InputError, match=r"--tasks several: lm-eval's function utils\.\w+ in tasks/cruxeval may run"):
        TaskLibrary(str(folder / "tasks"), defaults=False).load("several")
    assert TaskLibrary(str(folder / "tasks"), defaults=False, trust_task_code=True).load("several")["tasks"]


OF_LM_EVAL = {
    "executes": ("cruxeval/utils", "humaneval/utils", "humaneval_infilling/utils", "longproc/metrics", "mbpp/utils",
                 "noreval/ask_gec/errant", "score/math/math_grader", "score/math/utils_math"),
    "fetches code": ("babilong/common_utils", "ruler/common_utils", "ruler/niah_utils", "squadv2/task", "scrolls/task"),
    "reads pickles": ("tinyBenchmarks/agg_functions",),
}  # fmt: skip
"""Functions that run what rows or models say, or what a settings file names on the Hub, some through a module that
they import."""


@pytest.mark.parametrize("name", [name for names in OF_LM_EVAL.values() for name in names])
def test_modules_of_lm_eval_that_execute_text_are_found(name):
    path = OWN / "tasks" / f"{name}.py"
    if not path.is_file():
        pytest.skip("this version of lm-eval has no such module")
    assert executes(path) is not None


@pytest.mark.parametrize("name", ["hellaswag/utils", "piqa/utils", "bbh/zeroshot/utils", "ifeval/utils", "drop/utils"])
def test_modules_of_lm_eval_that_only_compute_need_no_trust(name):
    path = OWN / "tasks" / f"{name}.py"
    assert not path.is_file() or executes(path) is None


@pytest.mark.parametrize("line", [
    "exec(row['code'])", "run = eval\n", "import subprocess", "from os import system", "import os\nos.popen(row)",
    "import os\nos.execv(row, [])", "import evaluate", "import unheard_of", "from importlib import import_module",
    "load(name, trust_remote_code=True)", "load(name, trust_remote_code=row)", "from builtins import exec as f",
    "import builtins\nbuiltins.eval(row)", "from lm_eval.tasks.cruxeval import utils", "def late():\n    import pickle",
])  # fmt: skip
def test_ways_to_execute_text(tmp_path, line, monkeypatch):
    monkeypatch.setattr(executing_code, "OWN", tmp_path / "lm_eval")
    (tmp_path / "lm_eval" / "tasks" / "cruxeval").mkdir(parents=True)
    (tmp_path / "lm_eval" / "tasks" / "cruxeval" / "utils.py").write_text("exec('1')")
    path = tmp_path / "lm_eval" / "tasks" / "mine.py"
    path.write_text(line)
    assert executes(path) is not None
    harmless = (
        "import os, re",
        "from importlib.metadata import version",
        "re.compile('a')",
        "f(trust_remote_code=False)",
    )
    path.write_text("\n".join(harmless))
    executing_code._read.cache_clear()
    assert executes(path) is None


@pytest.mark.parametrize("fields", [{"unsafe_code": True}, {"include": "base.txt", "unsafe_code": False}])
def test_a_file_that_calls_itself_unsafe_is_refused_and_no_other_takes_that_back(folder, fields):
    (folder / "tasks" / "base.txt").write_text("unsafe_code: true\n")
    write(folder, **fields)
    with pytest.raises(InputError, match=r"--tasks plain: .* \(unsafe_code\); read it, then add --trust-task-code"):
        TaskLibrary(str(folder / "tasks"), defaults=False).load("plain")
    assert TaskLibrary(str(folder / "tasks"), defaults=False, trust_task_code=True).load("plain")["tasks"]


def test_a_group_that_calls_its_task_unsafe_is_refused(folder):
    write(folder)
    (folder / "tasks" / "several.yaml").write_text("group: several\ntask:\n- task: plain\n  unsafe_code: true\n")
    with pytest.raises(InputError, match=r"--tasks several: plain runs? what the model says"):
        TaskLibrary(str(folder / "tasks"), defaults=False).load("several")


def test_a_task_is_known_by_the_code_of_its_functions(folder):
    write(folder, "process_docs: !function code.same\n")

    def digest():
        library = TaskLibrary(str(folder / "tasks"), defaults=False, trust_task_code=True)
        return harness.digest(library.load("plain"))

    first = digest()
    assert digest() == first
    path = folder / "tasks" / "code.py"
    path.write_text(path.read_text().replace("return rows", "return rows.select(range(3))"))
    assert digest() != first


def test_metadata_reach_tasks_that_are_made_for_a_length(folder):
    """As RULER's, whose rows a function makes, for ``max_seq_lengths``."""
    made = """
from datasets import Dataset

def made(max_seq_lengths, **more):
    return {"test": Dataset.from_list([{"q": "x " * length, "answer": "yes"} for length in max_seq_lengths])}
"""
    (folder / "tasks" / "made.py").write_text(made)
    write(folder, "custom_dataset: !function made.made\n", dataset_path="", dataset_kwargs=None)

    def loaded(**metadata):
        library = TaskLibrary(str(folder / "tasks"), defaults=False, trust_task_code=True, metadata=metadata)
        return library.load("plain")

    (one,) = loaded(max_seq_lengths=[5, 7])["tasks"].values()
    assert [len(row["q"].split()) for row in one.eval_docs] == [5, 7]
    assert harness.digest(loaded(max_seq_lengths=[5, 7])) != harness.digest(loaded(max_seq_lengths=[5, 8]))


@pytest.mark.parametrize(("given", "said"), [
    ("{'a': 1}", "--metadata is no JSON .*, got \"{'a': 1}\""),
    ("[4096]", r"--metadata must be a JSON object, got '\[4096\]'"),
    ("[" * 20_000, "--metadata is no JSON"),
])  # fmt: skip
def test_metadata_that_are_no_object_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        HarnessSettings(names=["m"], metadata=given).check()
