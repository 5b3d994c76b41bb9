"""No number comes from a model whose logits or attention are NaN or infinite: every command refuses it by name.

The weights are finite, so that the model loads; what they compute is not. Every text is longer than 16 tokens: with
fewer, PyTorch's fused causal attention makes finite numbers of such scores on processors with AVX-512.
"""

import importlib.util
import json
import re

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from antiphase import AntiphaseConfig
from antiphase.calibration.plan import CalibrationPlan
from antiphase.lab.text.tokenization import train_tokenizer
from support.models import save, small_llama

TEXT = (
    "The harbour lay quiet under a pale morning. Two boats, one red and one grey, rocked beside the pier. A gull "
    "walked along the wall, looked at the water, and flew away. By noon the market was full of voices and of bread.\n"
)
SUMS = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: rows.jsonl}}}}
test_split: test
output_type: {kind}
doc_to_text: "The harbour lay quiet under a pale morning, and two boats rocked beside the long grey pier at {{{{q}}}}:"
doc_to_target: a
"""
WORDS = "--data book.txt --samples 2"
COMMANDS = {
    "perplexity": f"evaluate perplexity MODEL {WORDS} --length 48",
    "long-context": f"evaluate long-context MODEL {WORDS} --length 48",
    "needles": f"evaluate needles MODEL {WORDS} --length 200 --needles 1 --depths 0",
    "allocation": f"evaluate allocation MODEL {WORDS} --length 200 --needles 1 --depths 0",
    "noise": f"evaluate noise MODEL {WORDS} --length 200 --needles 1 --times 1 --resamples 2",
    "outliers": f"evaluate outliers MODEL {WORDS} --length 48",
    "quantization": f"evaluate quantization MODEL {WORDS} --length 200 --needles 1 --queries 1 --bits 8",
    "cancellation": f"evaluate cancellation MODEL {WORDS} --length 600 --needles 1",
    "many-shot": "evaluate many-shot MODEL --task task.yaml --shots 1 --orders 0 --samples 4",
    "hallucination": "evaluate hallucination MODEL --data news.jsonl --samples 2 --max-new-tokens 3 --judge good",
    "judge": "evaluate hallucination good --data news.jsonl --samples 2 --max-new-tokens 3 --judge MODEL",
    "harness": "evaluate harness MODEL --include-path tasks --tasks choices --num-fewshot 0",
    "harness, generation": "evaluate harness MODEL --include-path tasks --tasks written --num-fewshot 0",
    "calibrate search": "calibrate search MODEL --task task.yaml --samples 20",
    "calibrate study": "calibrate study MODEL --task task.yaml --samples 20",
    "calibrate apply": "calibrate apply MODEL --task task.yaml --samples 30 --plan plan.json",
    "calibrate apply, text": "calibrate apply MODEL --text harbour --plan plan.json",
    "probe": "probe MODEL --data book.txt --length 48 --samples 2",
    "look": "look MODEL --text harbour,market",
}
BLIND = {
    "cancellation": ("hidden", "logits"),
    "probe": ("hidden", "logits"),
    "look": ("hidden", "logits"),
    "outliers": ("logits",),
}
"""What commands do not read: those that look at attention alone, nothing behind it."""


def spoil(model, where):
    """Weights at the edge of what fp32 holds."""
    layer = model.model.layers[0]
    tensors = {"attention": [layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight],
               "hidden": [layer.mlp.down_proj.weight, layer.mlp.up_proj.weight],
               "logits": [model.model.norm.weight, model.lm_head.weight]}[where]  # fmt: skip
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(torch.where(tensor < 0, -3e38, 3e38))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models ``good``, ``attention``, ``hidden`` and ``logits``, and the data of every command."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer([TEXT], 300)
    for name in ("good", "attention", "hidden", "logits"):
        torch.manual_seed(0)
        model = small_llama(tokenizer, max_position_embeddings=1500)
        if name != "good":
            spoil(model, name)
        save(model, tokenizer, folder / name)
    (folder / "book.txt").write_text(TEXT * 40)
    (folder / "rows.all").write_text("".join(f"{i % 2} word {i}\n" for i in range(60)))
    (folder / "task.yaml").write_text("template: cr\ndata: rows.all\n")
    rows = [
        {"document": f"It was {i}. A gull walked. Nobody spoke. All left.", "summary": f"It was {i}."} for i in range(9)
    ]
    (folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    CalibrationPlan({0: [0]}).save(folder / "plan.json")
    (folder / "rows.jsonl").write_text('{"q": "noon", "a": 1, "w": "red"}\n' * 4)
    (folder / "tasks").mkdir()
    (folder / "tasks" / "choices.yaml").write_text(
        SUMS.format(name="choices", kind="multiple_choice")
        + "doc_to_choice: ['red', 'grey']\nmetric_list: [{metric: acc}]\n"
    )
    (folder / "tasks" / "written.yaml").write_text(
        SUMS.format(name="written", kind="generate_until").replace("doc_to_target: a", "doc_to_target: w")
        + "generation_kwargs: {until: ['.'], max_gen_toks: 3}\nmetric_list: [{metric: exact_match}]\n"
    )
    return folder


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (name, part)
        for name in COMMANDS
        for part in ("attention", "hidden", "logits")
        if part not in BLIND.get(name, ())
    ],
)
def test_every_command_names_the_model(place, tmp_path, antiphase, command, where):
    if command.startswith("harness") and importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is an extra: pip install 'antiphase[harness]'")
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    code, _, err = antiphase(COMMANDS[command].replace("MODEL", where), "--output out")
    assert code == 2, err
    assert re.fullmatch(rf"antiphase: (MODEL|--judge) {where}\b[^\n]*\n", err), err
    assert re.search(r"NaN or infinite|not numbers|not a number|\bis (nan|-?inf)", err), err
    assert not (tmp_path / "out" / "record.json").exists()


def test_a_classifier_names_itself(tmp_path, antiphase):
    tokenizer = train_tokenizer([TEXT], 300)
    config = AntiphaseConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        model.score.weight.copy_(torch.where(model.score.weight < 0, -3e38, 3e38))
        model.model.norm.weight.fill_(1e9)
    save(model, tokenizer, tmp_path / "run")
    code, _, err = antiphase("predict run --text harbour")
    assert (code, err) == (2, "antiphase: RUN run: its logits are NaN or infinite, so nothing can be measured\n")
