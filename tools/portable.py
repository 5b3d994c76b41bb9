"""Use portable checkpoints in a fresh environment without antiphase, and write down what it says.

    python -m tools.portable

Small V1 and V2 models are trained on the documentation of the Python language, which ships with Python, and written
with ``antiphase convert --portable``. A fresh environment gets torch, transformers, TRL and lm-eval at the versions of
``constraints.txt``, where it has them. There the models generate, are trained further by TRL and scored by
lm-eval. The record, ``records/portable.json``, has every command and its output; the transcript in
docs/share.md is made of it.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.base.records import Record
from tools.release import ROOT, bare_environment

CONSOLE = Console(highlight=False)
PAGE = ROOT / "docs/share.md"
MARK = "<!-- transcript portable -->\n"
PACKAGES = ("torch", "transformers[serving]", "trl", "lm-eval[hf]")
MODELS = {"v1": ("differential", ()), "v2": ("softmax", ("--attention-type", "differential_v2"))}
"""Attention of the trained model, and what else the conversion is asked for, by folder."""
PRESET = (
    "--preset", "demo", "--set", "training.steps=60", "--set", "evaluation.samples=4", "--set",
    "evaluation.curve_samples=4", "--set", "training.learning_rate=4e-3",
)  # fmt: skip
GENERATE = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("v1", trust_remote_code=True)
for folder in ("v1", "v2"):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids = tokenizer("The statement", return_tensors="pt").input_ids
    torch.manual_seed(0)
    out = model.generate(ids, max_new_tokens=16, do_sample=True, top_k=20)
    print(folder, model.config.attention_type, model.config._attn_implementation, repr(tokenizer.decode(out[0])))
"""
COMPARE = """\
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
for folder in ("v1", "v2"):
    given = load_file(f"{folder}-expected.safetensors")
    for backend in ("eager", "sdpa"):
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, attn_implementation=backend)
        with torch.no_grad():
            off = (model(given["ids"]).logits - given["logits"]).abs().max()
        print(f"{folder}, {backend}: largest difference of a logit {off:.1e}")
"""
TRAIN = """\
from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer
text = open("text.txt").read()
data = Dataset.from_dict({"text": [text[start : start + 400] for start in range(0, 40000, 400)]})
for folder in ("v1", "v2"):
    settings = SFTConfig(
        f"{folder}-tuned", packing=True, max_length=128, max_steps=10, logging_steps=1, learning_rate=1e-2, bf16=False,
        use_cpu=True, report_to=[], disable_tqdm=True, trust_remote_code=True,
        gradient_checkpointing=False, model_init_kwargs={"dtype": "float32", "trust_remote_code": True},
    )
    trainer = SFTTrainer(folder, args=settings, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    trainer.save_model()
    print(f"{folder}: loss {sum(losses[:3]) / 3:.2f} in the first three steps, {sum(losses[-3:]) / 3:.2f} in the last")
"""
LM_EVAL = (
    "lm_eval", "run", "--model", "hf", "--tasks", "next_word", "--include_path", "tasks", "--device", "cpu",
    "--batch_size", "4", "--model_args", "pretrained=v2-tuned,trust_remote_code=True,dtype=float32",
)  # fmt: skip

SERVE = ("transformers", "serve", "v1", "--trust-remote-code", "--device", "cpu")
"""Refused by transformers 5.23, which looks for the class of a served model in transformers itself."""


def main() -> int:
    """Train, convert, use, write the record and the transcript."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="antiphase-portable-") as scratch:
        folder = Path(scratch)
        make_models(folder)
        binaries = make_environment(folder)
        steps = [
            shown(folder, binaries, ("python", "-c", "import antiphase"), fails=True),
            shown(folder, binaries, ("python", "compare.py"), code=COMPARE),
            shown(folder, binaries, ("python", "generate.py"), code=GENERATE),
            shown(folder, binaries, ("python", "train.py"), code=TRAIN),
            shown(folder, binaries, LM_EVAL),
            shown(folder, binaries, SERVE, fails=True),
        ]
        versions = installed(binaries)
    values = {"steps": steps, "versions": versions}
    record = Record(kind="portable", values=values, seconds=time.perf_counter() - started)
    CONSOLE.print(str(record.save(ROOT / "records", "portable")))
    PAGE.write_text(with_transcript(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0


def with_transcript(page: str, record: Record) -> str:
    """The page with the transcript of the record in the block behind its mark."""
    assert MARK in page
    block = f"{MARK}```text\n{transcript(record)}```\n"
    return re.sub(re.escape(MARK) + r"(```text\n(?s:.*?)```\n)?", lambda _: block, page)


def transcript(record: Record) -> str:
    """Commands and what they printed."""
    return "".join(f"$ {step['command']}\n{step['output'].rstrip()}\n" for step in record.values["steps"])


def make_models(folder: Path) -> None:
    """Portable folders, the logits of their models in this package, text, and a task of lm-eval."""
    import torch
    from safetensors.torch import save_file

    import antiphase
    from antiphase.models.checkpoints import convert

    text = "\n\n".join(pydoc_data.topics.topics.values())
    (folder / "text.txt").write_text(text, encoding="utf-8")
    for name, (kind, words) in MODELS.items():
        run = [sys.executable, "-m", "antiphase", "train", *PRESET, "--set", f"model.attention_type={kind}"]
        subprocess.run([*run, "--data", "text.txt", "--output", f"run-{name}"], cwd=folder, check=True)
        chosen = words[1] if words else None
        convert(str(folder / f"run-{name}"), folder / name, attention_type=chosen, portable=True, say=CONSOLE.print)
        model = antiphase.AntiphaseForCausalLM.from_pretrained(folder / name)
        ids = torch.randint(3, model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            save_file({"ids": ids, "logits": model(ids).logits}, folder / f"{name}-expected.safetensors")
    sentences = [line for line in re.split(r"(?<=[.])\s+", text) if 40 < len(line) < 160][:40]
    rows = [{"text": line.rpartition(" ")[0], "word": line.rpartition(" ")[2]} for line in sentences]
    (folder / "tasks").mkdir()
    (folder / "tasks/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "next_word", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "tasks/rows.jsonl"}},
        "output_type": "loglikelihood", "test_split": "test", "doc_to_text": "{{text}}", "doc_to_target": " {{word}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }  # fmt: skip
    (folder / "tasks/next_word.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def make_environment(folder: Path) -> Path:
    """A fresh environment without this package; the folder of its programs."""
    binaries = folder / "environment/bin"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    pip = [str(binaries / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *PACKAGES], check=True, env=bare_environment())
    return binaries


def environment(folder: Path, binaries: Path) -> dict[str, str]:
    """Variables of the processes: their own cache, no network, and few words."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    home = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PATH": f"{binaries}:/usr/bin:/bin"}
    return bare_environment() | quiet | home | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "2"}


def shown(
    folder: Path, binaries: Path, command: tuple[str, ...], *, code: str | None = None, fails: bool = False
) -> dict[str, Any]:
    """Run a command; its words, what it printed on standard output (or said last, if it is to fail), and seconds."""
    if code is not None:
        (folder / command[1]).write_text(code, encoding="utf-8")
    started = time.perf_counter()
    done = subprocess.run(
        [str(binaries / command[0]), *command[1:]], cwd=folder, env=environment(folder, binaries), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    output = done.stderr.splitlines()[-1] if fails else done.stdout
    CONSOLE.print(f"$ {' '.join(command)}\n{output}", markup=False)
    words = " ".join(f'"{word}"' if " " in word else word for word in command)
    return {"command": words, "code": code, "output": output, "seconds": time.perf_counter() - started}


def installed(binaries: Path) -> dict[str, str]:
    """Versions in the environment."""
    done = subprocess.run(
        [str(binaries / "python"), "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    names = {name.partition("[")[0].replace("-", "_") for name in PACKAGES}
    rows = json.loads(done.stdout)
    return {row["name"]: row["version"] for row in rows if row["name"].replace("-", "_") in names}


if __name__ == "__main__":
    sys.exit(main())
