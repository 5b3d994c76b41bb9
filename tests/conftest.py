"""What all tests share: where the golden files lie, one thread so that results repeat, and no limits of time."""

import os
import random
import re
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import antiphase
from antiphase.ops.native import build, library
from support.grids import mark_slow

ROOT = Path(__file__).parent.parent

# No test fails because the machine is busy
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser):
    parser.addoption(
        "--native-library", type=Path, help="native kernels built with build.SANITIZED or build.EMULATED, to be tested"
    )


def pytest_configure(config):
    """Put another library in the place of the built one."""
    path = config.getoption("--native-library")
    if path is not None:
        (found,) = (
            mark for flags in (build.SANITIZED, build.EMULATED)
            if (mark := build.fingerprint(flags)).encode() in path.read_bytes()
        )  # fmt: skip
        library.library_path = lambda: path
        library.fingerprint = lambda: found


def pytest_collection_modifyitems(items):
    mark_slow(items)


@pytest.fixture(autouse=True)
def _one_seed():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _signals_count():
    """A shell ignores Ctrl-C for what it starts in the background, and nohup a closed terminal; the tests of stops and
    their runs need both.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def shared():
    """The folder with text beside the checkout; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared with text is absent")
    return folder


@pytest.fixture
def golden():
    """A reader of golden files: tensors, in fp64, and metadata by name; skips where the file is absent."""
    from safetensors import safe_open

    def read(name):
        folders = (ROOT / "tests" / "golden", ROOT.parent / "shared" / "golden")
        path = next((path for folder in folders if (path := folder / f"{name}.safetensors").is_file()), None)
        if path is None:
            pytest.skip(f"{name}.safetensors of ../shared/golden is absent")
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key).double() for key in file.keys()}, file.metadata()  # noqa: SIM118 – no mapping

    return read


@pytest.fixture
def golden_folder():
    """A golden model by name: its folder, and what other people's code computed; skips where it is absent."""
    from safetensors.torch import load_file

    def read(name):
        folder = ROOT.parent / "shared" / "golden" / name
        if not folder.is_dir():
            pytest.skip(f"{name} of ../shared/golden is absent")
        return folder, load_file(folder / "golden.safetensors")

    return read


@pytest.fixture(name="antiphase")
def _command_line(monkeypatch, capsys, tmp_path):
    """``antiphase("train --output", folder)`` → code, stdout, stderr; strings are split into words, lists are not."""

    from antiphase.cli import main

    def run(*arguments):
        words = []
        for part in arguments:
            words += part.split() if isinstance(part, str) else part if isinstance(part, list) else [str(part)]
        monkeypatch.setattr("sys.argv", ["antiphase", *words])
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()  # drop what the test printed before, such as transformers' progress bars
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return run


@pytest.fixture
def refused(antiphase, tmp_path):
    """Run a command that must be refused, in one sentence that matches, and leave the disk as it was."""

    def listing():
        files = tmp_path.rglob("*")
        return {path.relative_to(tmp_path): path.read_bytes() if path.is_file() else None for path in files}

    def run(pattern, *arguments):
        before = listing()
        code, _, err = antiphase(*arguments)
        assert code == 2, err
        assert re.fullmatch(r"antiphase: [^\n]+\n", err), err
        assert "Traceback" not in err
        assert re.search(pattern, err), err
        assert listing() == before
        return err

    return run


@pytest.fixture(params=[0o027, 0o002])
def umask(request):
    """The permissions that new files lack during the test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def tiny_config():
    """A factory of small configurations: ``tiny_config("softmax", num_hidden_layers=1)``."""

    def build(attention_type="differential", **fields):
        sizes = {
            "vocab_size": 61, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 96, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
        return antiphase.AntiphaseConfig(attention_type=attention_type, **{**sizes, **fields})

    return build


@pytest.fixture
def tiny_model(tiny_config):
    """A factory of small models in evaluation mode, every parameter random and large enough to matter."""
    from support.models import randomize

    def build(attention_type="differential", *, kind=None, **fields):
        return randomize((kind or antiphase.AntiphaseForCausalLM)(tiny_config(attention_type, **fields)))

    return build


@pytest.fixture
def any_model(tiny_model):
    """A small model by name: a kind of attention of this package, or a family of ``support.models``."""
    from support.models import FOREIGN, PADDING_COUNTS, foreign_model

    def build(name):
        if name in PADDING_COUNTS:
            return foreign_model(name, "eager")
        return foreign_model(name, "sdpa") if name in FOREIGN else tiny_model(name)

    return build


@pytest.fixture(scope="session")
def tiny_preset_text():
    """A preset of two narrow layers and twenty steps that trains within a second."""
    return TINY_PRESET


@pytest.fixture
def tiny_preset(tmp_path, tiny_preset_text):
    """The same as a file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_preset_text, encoding="utf-8")
    return path


TINY_PRESET = """\
model: {hidden_size: 16, num_hidden_layers: 2, intermediate_size: 24, num_attention_heads: 4}
data: {sequence_length: 25, needles: 3, queries: 2, keys: 7, numbers: 9, fillers: 11, vocabulary_size: 300}
training:
  steps: 20
  batch_size: 6
  learning_rate: 1e-2
  warmup_steps: 3
  precision: float32
  log_every: 1
  evaluate_every: 5
  checkpoint_every: 5
  device: cpu
  threads: 1
evaluation: {samples: 4, depths: [0.0, 1.0], validation_sequences: 8, curve_samples: 8}
compare: {seeds: [0, 1], processes: 2}
"""


@pytest.fixture(scope="session")
def generated_text():
    """Sentences of made-up words, always the same."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abdeilmnorstu", k=draw.randint(1, 7))) for _ in range(150)]
    sentences = [" ".join(draw.choices(words, k=draw.randint(3, 11))).capitalize() + "." for _ in range(900)]
    return " ".join(sentences)


@pytest.fixture
def book(tmp_path, generated_text):
    """The same as a file."""
    path = tmp_path / "book.txt"
    path.write_text(generated_text, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def text_tokenizer(generated_text):
    """A small byte-level BPE tokenizer of that text, in which every digit is a token."""
    from antiphase.lab.text.tokenization import train_tokenizer

    return train_tokenizer([generated_text], 400)
