"""What importing costs, and what is known afterwards; each in a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase

HEAVY = ("torch", "transformers", "numpy", "datasets", "matplotlib", "scipy")


def fresh(code, *arguments):
    """Run ``code`` in a new interpreter and return what it prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_loads_no_heavy_library():
    loaded = fresh("import antiphase, sys, json; dir(antiphase); print(json.dumps(sorted(sys.modules)))")
    assert "antiphase" in loaded
    assert not {"rich", "typer", "yaml", *HEAVY} & set(loaded)


def loaded_by(*arguments):
    """Modules that a command has imported at its end."""
    loaded = fresh(
        "import sys, json\n"
        f"sys.argv = ['antiphase', *{arguments!r}]\n"
        "from antiphase.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print(json.dumps(sorted(sys.modules)))"
    )
    assert "antiphase.cli" in loaded
    return set(loaded)


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["--version"], ["train", "--set", "a=1"]])
def test_help_and_mistakes_load_no_heavy_library(arguments):
    assert not set(HEAVY) & loaded_by(*arguments)


def test_help_imports_what_it_shows_and_little_else():
    """No reader of YAML, no asyncio, and no settings of other commands."""
    top, one = loaded_by("--help"), loaded_by("evaluate", "perplexity", "--help")
    assert not {"yaml", "asyncio"} & (top | one)
    assert "antiphase.lab.studies.compare" in top
    assert not {"antiphase.lab.measures.needles", "antiphase.lab.studies.calibrate.apply"} & top
    assert "antiphase.lab.measures.perplexity" in one
    assert not {"antiphase.lab.measures.needles", "antiphase.lab.studies.compare"} & one


def test_a_report_is_drawn_without_torch_and_transformers(tmp_path):
    record = Path(__file__).parents[1] / "records" / "demo.json"
    loaded = loaded_by("report", str(record), "--output", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").is_file()
    assert not {"torch", "transformers"} & loaded


def test_what_waits_for_a_module_runs_once_behind_its_code(tmp_path):
    """Whoever asks for the module before, and although its code fails the first time; its loader stays its own."""
    (tmp_path / "waited.py").write_text("import sys\nif sys.argv[1] == 'fails': raise OSError\nvalue = 3\n")
    found = fresh(
        "import importlib.util, json, sys\n"
        "from antiphase.models.first_use import after_import\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "seen = []\n"
        "after_import('waited', lambda: seen.append(sys.modules['waited'].value))\n"
        "assert 'value = 3' in importlib.util.find_spec('waited').loader.get_source('waited')\n"
        "try:\n    import waited\n"
        "except OSError:\n    assert seen == []\n"
        "sys.argv[1] = ''\n"
        "import waited\n"
        "assert 'value = 3' in waited.__loader__.get_source('waited') and waited.__spec__.loader is waited.__loader__\n"
        "importlib.reload(waited)\n"
        "after_import('waited', lambda: seen.append('at once'))\n"
        "print(json.dumps([seen, type(waited.__loader__).__name__]))",
        "fails",
        str(tmp_path),
    )
    assert found == [[3, "at once"], "SourceFileLoader"]


AUTO = """
config = transformers.AutoConfig.for_model("antiphase", hidden_size=16, num_hidden_layers=1, intermediate_size=16,
                                           num_attention_heads=4, vocab_size=11)
model = transformers.AutoModelForCausalLM.from_config(config)
llama = transformers.AutoConfig.for_model("llama", hidden_size=16, num_hidden_layers=1, intermediate_size=16,
                                          num_attention_heads=2, vocab_size=11)
llama = transformers.AutoModelForCausalLM.from_config(llama, attn_implementation="antiphase")
names = [type(config).__name__, type(model).__name__, llama.config._attn_implementation]
"""
ORDERS = (
    "import antiphase, transformers, json", "import transformers, antiphase, json",
    "import antiphase, json, transformers.models.auto.modeling_auto",
    "import json, transformers.models.auto.modeling_auto, antiphase",
    "import json, transformers.models.auto.configuration_auto, antiphase",
    "import json, transformers; transformers.AutoConfig; import antiphase",
    "import json, transformers; from antiphase import AntiphaseConfig",
    "import json; from antiphase.models import transformer; import transformers",
    "import json, antiphase; antiphase.AntiphaseForCausalLM; import transformers",
    "import json; from antiphase.lab.training import loop; import transformers",
    "import json, antiphase, transformers; transformers.LlamaForCausalLM",
    "import json, antiphase, transformers.modeling_layers", "import json, antiphase.models.attention, transformers",
    "import json, antiphase.models.registration, transformers",
)  # fmt: skip
EACH_AFRESH = """
import json, os, sys
import torch  # which all of them load, and which takes longest
orders, code = json.loads(sys.argv[1])
wrong = []
for order in orders:
    child = os.fork()
    if child == 0:
        found = {}
        exec(order + code, found)
        os._exit(0 if found["names"] == ["AntiphaseConfig", "AntiphaseForCausalLM", "antiphase"] else 1)
    if os.waitpid(child, 0)[1] != 0:
        wrong.append(order)
print(json.dumps(wrong))
"""


@pytest.mark.slow
def test_auto_classes_know_models_and_attention_whatever_is_imported_first():
    assert fresh(EACH_AFRESH, json.dumps([ORDERS, AUTO])) == []


def test_every_public_name_is_there_and_no_other():
    for name in antiphase.__all__:
        assert getattr(antiphase, name) is not None
    assert set(antiphase.__all__) <= set(dir(antiphase))
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        antiphase.bogus  # noqa: B018 – the access itself is what must fail
