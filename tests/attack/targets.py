"""The commands that are attacked: their inputs, and what of their results must be equal bit by bit."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRESET = """\
model: {hidden_size: 16, num_hidden_layers: 2, intermediate_size: 24, num_attention_heads: 4}
data: {sequence_length: 25, needles: 3, queries: 2, keys: 7, numbers: 9, fillers: 11, vocabulary_size: 300}
training: {steps: 40, batch_size: 6, learning_rate: 1e-2, warmup_steps: 3, precision: float32, log_every: 1,
  evaluate_every: 10, checkpoint_every: 4, device: cpu, threads: 1}
evaluation: {samples: 4, depths: [0.0, 1.0], validation_sequences: 8, curve_samples: 8}
compare: {seeds: [0], processes: 1}
"""
VOLATILE = {
    "seconds", "created", "command", "environment", "tokens_per_second", "sha256", "files", "versions", "train_seconds",
    "training_seconds", "samples_per_second", "sentences_per_second", "step_seconds", "written",
    "peak_memory", "peak_gpu_memory", "belongs_to",
}  # fmt: skip
"""Keys of JSON files whose values depend on the clock or the machine."""
OUT = "out"
"""What every command writes, in the folder where it runs."""


@dataclass(frozen=True)
class Target:
    """A command, with ``out`` as its output."""

    name: str
    words: tuple[str, ...]
    resumable: bool = True
    """Whether it takes ``--resume``; otherwise the same command is repeated."""
    processes: int = 1
    cold: bool = False
    """Whether it starts interpreters of its own or needs one; it is never forked."""

    def command(self, *, again: bool = False) -> list[str]:
        """The words after ``antiphase``; ``again``: after it was stopped."""
        return [*self.words, *(["--resume"] if again and self.resumable else [])]


def targets(inputs: Path) -> list[Target]:
    """The commands, on inputs that ``make_inputs`` has written."""
    preset, text, model = inputs / "tiny.yaml", inputs / "book.txt", inputs / "model"
    rows = inputs / "rows.txt"
    output = ("--output", OUT)
    held_out = (str(model), "--data", str(text), "--length", "32", "--samples", "8", *output)
    judged = (str(model), "--task", str(inputs / "task.yaml"), "--samples", "40", *output)
    return [
        Target("train", ("train", "--preset", str(preset), *output)),
        Target("train on text", (
            "train", "--preset", str(preset), "--data", str(text), "--set", "data.sequence_length=160", *output,
        )),
        Target("convert", ("convert", str(model), OUT), resumable=False),
        Target("report", ("report", str(inputs / "run"), "--output", f"{OUT}/page.html"), resumable=False),
        Target("evaluate perplexity", ("evaluate", "perplexity", *held_out)),
        Target("evaluate outliers", ("evaluate", "outliers", *held_out)),
        Target("evaluate needles", (
            "evaluate", "needles", str(inputs / "run"), "--samples", "4", "--depths", "0,1", *output,
        )),
        Target("probe", ("probe", *held_out)),
        Target("look", ("look", str(model), "--text", "the old boat sails", *output), resumable=False),
        Target("classify", (
            "classify", "--train", str(rows), "--model", "cnn", "--seeds", "0,1", "--set", "epochs=3", *output,
        )),
        Target("predict", ("predict", str(inputs / "classified"), "--file", str(rows), *output), resumable=False),
        Target("translate", (
            "translate", "--samples", "40", "--test-samples", "8", "--models", "differential", "--set", "epochs=2",
            *output,
        )),
        Target("extend", ("extend", str(inputs / "run"), "--length", "50", "--set", "training.steps=8", *output)),
        Target("calibrate search", ("calibrate", "search", *judged)),
        Target("calibrate study", ("calibrate", "study", *judged)),
        Target("compare", ("compare", "--preset", str(preset), *output), cold=True),
        Target("tune", (
            "tune", "--preset", str(preset), "--learning-rates", "1e-2", "--seeds", "0", "--set", "training.steps=8",
            *output,
        ), cold=True),
        Target("upcycle", (
            "upcycle", str(inputs / "softmax"), "--seeds", "1", "--set", "training.steps=8", *output,
        ), cold=True),
        Target("torchrun", ("train", "--preset", str(preset), *output), processes=2, cold=True),
    ]  # fmt: skip


def make_inputs(folder: Path) -> None:
    """Write text, labelled rows, a preset, a model with its tokenizer, and a finished run."""
    import torch

    from antiphase import AntiphaseConfig, AntiphaseForCausalLM
    from antiphase.lab.text.tokenization import train_tokenizer

    draw = random.Random(7)
    words = ["".join(draw.choices("abdeilmnorstu", k=draw.randint(1, 7))) for _ in range(150)]
    text = " ".join(" ".join(draw.choices(words, k=7)).capitalize() + "." for _ in range(900))
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(PRESET, encoding="utf-8")
    (folder / "book.txt").write_text(text, encoding="utf-8")
    (folder / "rows.txt").write_text("".join(f"{'AB'[i % 2]} {words[i]} {words[i + 1]}\n" for i in range(60)))
    tokenizer = train_tokenizer([text], 400)
    torch.manual_seed(0)
    config = AntiphaseConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        attention_type="softmax", max_position_embeddings=96, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AntiphaseForCausalLM(config).eval()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    _write_task(folder, model, tokenizer, [f"{words[i]} {words[i + 1]}" for i in range(60)])


def _write_task(folder: Path, model: Any, tokenizer: Any, texts: list[str]) -> None:
    """Write a task that the model solves: labels are its own answers, of two words that it says about equally often."""
    import torch

    with torch.no_grad():
        rows = [model(**tokenizer(f"{text} is", return_tensors="pt")).logits[0, -1] for text in texts]
    logits = torch.stack(rows)
    single = {
        word[1:]: index for word, index in tokenizer.get_vocab().items() if word[:1] == "Ġ" and word[1:].isalpha()
    }
    pairs = [(one, other) for one in sorted(single) for other in sorted(single) if one < other]
    first, second = min(pairs, key=lambda pair: abs(_says(logits, single, *pair).double().mean().item() - 0.5))
    answers = _says(logits, single, first, second)
    lines = [f"{'B' if answer else 'A'} {text}\n" for answer, text in zip(answers.tolist(), texts, strict=True)]
    (folder / "judged.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "task.yaml").write_text(
        f"name: judged\nkind: classification\ndata: judged.txt\nprompt: '{{{{ text }}}} is'\n"
        f"labels: {{A: '{first}', B: '{second}'}}\n",
        encoding="utf-8",
    )


def _says(logits: Any, single: dict[str, int], first: str, second: str) -> Any:
    return logits[:, single[second]] > logits[:, single[first]]


def result_of(here: Path) -> dict[str, str]:
    """Digest of each file that a command has written and that the clock does not change; pages by their presence.

    Of a run's checkpoints, only the last: which one is kept before it depends on the step at which the run was stopped.
    """
    found = {}
    older = [path for last in here.rglob("checkpoint") for path in sorted(last.glob("step-*"))[:-1]]
    for path in sorted((here / OUT).rglob("*")):
        name = path.relative_to(here / OUT).as_posix()
        if path.is_dir() or name.startswith("logs/") or path.name == ".lock" or path.parent in older:
            continue
        if path.suffix == ".json":
            content: Any = _steady(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            content = [_steady(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.suffix in (".html", ".png", ".sha256"):
            content = "there"
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[name] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return found


def leftovers(here: Path) -> list[str]:
    """Temporary files and folders that a command has left behind."""
    return sorted(path.relative_to(here).as_posix() for path in here.rglob("*.tmp"))


def _steady(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _steady(value) for key, value in tree.items() if key not in VOLATILE}
    return [_steady(value) for value in tree] if isinstance(tree, list) else tree


def fresh(folder: Path) -> Path:
    """An empty folder in which a command runs."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder
