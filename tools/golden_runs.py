"""Small runs of most commands, always the same: their inputs, their order, and what each prints."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Container, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

PRESET = """\
model: {hidden_size: 16, num_hidden_layers: 2, intermediate_size: 24, num_attention_heads: 4}
data: {sequence_length: 25, needles: 3, queries: 2, keys: 7, numbers: 9, fillers: 11, vocabulary_size: 300}
training: {steps: 4, batch_size: 6, learning_rate: 1e-2, warmup_steps: 2, precision: float32, log_every: 1,
  evaluate_every: 4, checkpoint_every: 2, device: cpu, threads: 1}
evaluation: {samples: 4, depths: [0.0, 1.0], validation_sequences: 8, curve_samples: 8}
compare: {seeds: [0], processes: 1}
"""
TASK = "name: judged\nkind: classification\ndata: judged.txt\nprompt: '{{{{ text }}}} is'\nlabels: {{A: {}, B: {}}}\n"
SHORT = "--data book.txt --length 48 --samples 4"
HIDDEN = "--data book.txt --length 200 --samples 2 --needles"
TINY = "--set hidden_size=8 --set num_hidden_layers=1 --set epochs=1"
RUNS = {
    "compare": "compare --preset tiny.yaml",
    "train": "train --preset tiny.yaml --seed 3",
    "resume": "train --preset tiny.yaml --seed 3 --output train --resume",
    "text": "train --preset tiny.yaml --data book.txt --set data.sequence_length=200",
    "convert": "convert llama convert",
    "second": "convert llama second --attention-type differential_v2",
    "upcycle": "upcycle compare/softmax-seed0 --seeds 1",
    "perplexity": f"evaluate perplexity convert {SHORT}",
    "long-context": f"evaluate long-context second {SHORT}",
    "outliers": f"evaluate outliers second {SHORT}",
    "quantization": f"evaluate quantization second {HIDDEN} 1 --queries 1 --bits 8,4",
    "synthetic-needles": "evaluate needles train --samples 4 --depths 0,1",
    "needles": f"evaluate needles text {HIDDEN} 2 --depths 0,1 --against convert",
    "allocation": f"evaluate allocation second {HIDDEN} 2 --depths 0,1",
    "noise": f"evaluate noise second {HIDDEN} 1 --times 1 --resamples 2",
    "many-shot": "evaluate many-shot llama --task task.yaml --shots 1,2 --orders 2 --samples 4",
    "probe": f"probe llama {SHORT}",
    "look": "look second --text 'Dub malo. Sor 12 dib.'",
    "search": "calibrate search llama --task task.yaml --samples 40 --score probability",
    "apply": "calibrate apply llama --task task.yaml --samples 60 --plan search/plan.json",
    "classify": "classify --train rows.txt --model cnn,differential --set epochs=2",
    "predict": "predict classify --text 'A an' --text 'B bi'",
    "translate": f"translate --samples 12 --test-samples 5 {TINY}",
    "tokenize": "tokenize 'Dub malo. Sor 12 dib.' --data book.txt --vocabulary 300",
    "estimate": "estimate --preset paper --gpus 8",
    "report": "report compare perplexity needles many-shot probe search classify --output report/index.html",
    "taken": "convert llama convert",
    "misspelt": "train --preset tiny.yaml --set training.stpes=5",
    "diverged": "train --preset tiny.yaml --set training.learning_rate=1e30",
}
"""Commands in the order in which they run, by name, which is their folder too."""
LIBRARIES = (
    "torch", "transformers.models.llama.modeling_llama", "datasets", "matplotlib.pyplot", "scipy.stats",
    "antiphase.cli",
)  # fmt: skip
"""Imported once, which takes longer than most of the commands."""
RESUMED = ("record.json", "report.html", "checkpoint/step-00000004")
"""What is taken from ``train`` before ``resume``, as if it had been stopped after step 2."""


def folder_of(here: Path, name: str) -> Path:
    """Where a command leaves its results."""
    return here / ("train" if name == "resume" else name)


def run_all(here: Path, names: Container[str] = RUNS) -> Iterator[tuple[str, str]]:
    """Run commands one after the other in a folder; the name of each, and its exit code with what it has printed.

    Each runs in a copy of a process that has imported the libraries, and done nothing else.
    """
    for library in LIBRARIES:
        importlib.import_module(library)
    apart(make_inputs, here)
    for name, words in RUNS.items():
        if name not in names:
            continue
        if name == "resume":
            for done in RESUMED:
                path = here / "train" / done
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        output = [] if "--output" in words or words.startswith("convert ") else ["--output", name]
        code = apart(command, here, [*shlex.split(words), *output])
        printed = [(here / f"{stream}.log").read_text(encoding="utf-8") for stream in ("stdout", "stderr")]
        yield name, f"exit code {code}\n" + "\n".join(printed)


def apart(function: Callable[..., None], *arguments: Any) -> int | None:
    """Call a function in a process of its own; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def command(here: Path, words: list[str]) -> None:
    """Run a command in a folder; what it prints goes to files there."""
    from antiphase.cli import main as antiphase_main

    os.chdir(here)
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{stream}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["antiphase", *words]
    antiphase_main()


def make_inputs(here: Path) -> None:
    """Write a preset, text, labelled rows, a task and a Llama with its tokenizer, always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from antiphase.lab.text.tokenization import train_tokenizer

    os.chdir(here)
    draw = random.Random(7)
    words = ["".join(draw.choices("abdeilmnorstu", k=draw.randint(1, 7))) for _ in range(150)]
    text = " ".join(" ".join(draw.choices(words, k=7)).capitalize() + "." for _ in range(900))
    pairs = [f"{words[i]} {words[i + 1]}" for i in range(60)]
    tokenizer = train_tokenizer([text], 400)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=300, bos_token_id=0, eos_token_id=0, pad_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained("llama")
    tokenizer.save_pretrained("llama")
    # A task that the model solves: the labels are what it says, of two words that it says about equally often
    with torch.no_grad():
        logits = torch.stack([model(**tokenizer(f"{one} is", return_tensors="pt")).logits[0, -1] for one in pairs])
    known = {word[1:]: index for word, index in tokenizer.get_vocab().items() if re.fullmatch("Ġ[a-z]+", word)}

    def says(first: str, second: str) -> torch.Tensor:
        return logits[:, known[second]] > logits[:, known[first]]

    first, second = min(combinations(sorted(known), 2), key=lambda two: abs(says(*two).float().mean().item() - 0.5))
    judged = "".join(f"{'AB'[is_second]} {one}\n" for one, is_second in zip(pairs, says(first, second), strict=True))
    rows = "".join(f"{'AB'[i % 2]} {one}\n" for i, one in enumerate(pairs))
    task = TASK.format(first, second)
    contents = {"tiny.yaml": PRESET, "book.txt": text, "rows.txt": rows, "judged.txt": judged, "task.yaml": task}
    for name, content in contents.items():
        Path(name).write_text(content, encoding="utf-8")
