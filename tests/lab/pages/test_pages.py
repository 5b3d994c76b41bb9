"""The code on the pages: Python is run, page by page, and commands are parsed as the command line parses them."""

import re
import shlex

import pytest
import torch
import typer.main
from transformers import LlamaConfig, LlamaForCausalLM

import antiphase
from support.paths import ROOT

PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
STANDING_FOR = {"N": "2", "R": "2", "M": "2", "C": "2", "T": "2"}
"""Numbers for the letters in commands."""


def blocks(page, kind):
    """Contents of the fenced blocks of a kind."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language == kind]


def commands(page):
    """The words after ``antiphase`` in each command of a page's blocks."""
    found = []
    for text in [*blocks(page, ""), *blocks(page, "bash")]:
        for line in text.replace("\\\n", " ").splitlines():
            command = re.match(
                r"(?:[A-Z_]+=\S+ )*(?:torchrun .*? -m |\S*python3? -m |srun .*)?antiphase (.*)", line.strip()
            )
            if command:
                found.append(shlex.split(command[1], comments=True))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_on_a_page_runs(page, tiny_model, text_tokenizer, tmp_path, monkeypatch):
    """With the tensors and models that the text has spoken of."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 8}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(text_tokenizer), **sizes))
    for place, model in (("some/llama", llama), ("runs/demo/differential-seed0", tiny_model())):
        model.save_pretrained(tmp_path / place)
        text_tokenizer.save_pretrained(tmp_path / place)
    ids = torch.randint(3, len(text_tokenizer), (2, 9))
    model = LlamaForCausalLM.from_pretrained("some/llama", attn_implementation="eager")
    names = {
        "antiphase": antiphase, "model": model, "ids": ids, "mask": torch.ones_like(ids),
        "answer": torch.arange(9).expand(2, 9) == 4, "inputs": {"input_ids": ids, "max_new_tokens": 2},
        "query": torch.randn(1, 4, 6, 8), "key": torch.randn(1, 4, 6, 8), "value": torch.randn(1, 2, 6, 16),
        "samples": [ids[:1], ids[1:]], "tokenizer": text_tokenizer,
        "score": lambda model, samples: torch.stack([model(one).logits[0, -1, 5] for one in samples]),
    }  # fmt: skip
    for text in blocks(page, "python"):
        exec(compile(text, page.name, "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_on_a_page_are_understood(page):
    """Names, flags and the types of values; what commands do is for their own tests."""
    from antiphase.cli import app

    for words in commands(page):
        command = typer.main.get_command(app)
        context = command.make_context("antiphase", [STANDING_FOR.get(word, word) for word in words])
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            if rest in (["--help"], ["-h"]):
                break
            context = command.make_context(name, rest, parent=context)


def test_every_page_with_commands_has_some_that_are_parsed():
    assert sum(len(commands(page)) for page in PAGES) > 60
    assert {page.stem for page in PAGES if commands(page)} >= {"README", "train", "evaluate", "calibration", "cluster"}
