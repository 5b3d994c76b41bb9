"""``--chat-template``: tasks and needles asked through a model's chat template, as its library writes it by hand."""

import copy
import importlib.util
import json

import pytest
import torch
import yaml

from antiphase.base import trial
from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.hallucination.items import draw, load_items
from antiphase.lab.measures.needles.text import Generating
from antiphase.lab.scoring.likelihood import generated_tokens
from antiphase.lab.scoring.task_scores import log_probabilities
from antiphase.lab.text.tasks.tasks import load_task
from support.gguf import TEMPLATE, llama

STRIPPING = TEMPLATE.replace("message['content']", "message['content'] | trim")
ROWS = [("food", "bread and salt"), ("place", "a river"), ("food", "an apple"), ("place", "the hill")]


def with_template(tokenizer, template):
    chatting = copy.deepcopy(tokenizer)
    chatting.chat_template = template
    return chatting


@pytest.fixture
def folder(tmp_path, text_tokenizer):
    """Two models, one without a chat template, and a task."""
    model = llama(len(text_tokenizer))
    for name, template in (("chat", TEMPLATE), ("plain", None)):
        model.save_pretrained(tmp_path / name)
        with_template(text_tokenizer, template).save_pretrained(tmp_path / name)
    task = {"kind": "classification", "data": "rows.txt", "prompt": "What: {{ text }}\nKind:", "shots": 0}
    (tmp_path / "rows.txt").write_text("".join(f"{label} {text}\n" for label, text in 10 * ROWS))
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    return tmp_path


def by_hand(tokenizer, message):
    text = [{"role": "user", "content": message}]
    return tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=False)


def test_the_date_of_a_prompt_never_changes(folder, text_tokenizer):
    tokenizer = with_template(text_tokenizer, "{{ strftime_now('%d %b %Y, %H:%M') }}\n" + TEMPLATE)
    sample = load_task(str(folder / "task.yaml"), tokenizer, samples=1, chat=True).samples[0]
    assert tokenizer.decode(sample.prompt).startswith("26 July 2024\n")
    if importlib.util.find_spec("lm_eval") is not None:
        from antiphase.lab.measures.harness.lm_eval_adapter import ProjectLM

        model = ProjectLM(llama(len(text_tokenizer)), tokenizer)
        assert model.apply_chat_template([{"role": "user", "content": "a"}]).startswith("26 July 2024\n")
        assert tokenizer.chat_template.startswith("{{ strftime_now")


def test_a_chat_template_is_stopped_in_harness_too(text_tokenizer, monkeypatch):
    adapter = pytest.importorskip("antiphase.lab.measures.harness.lm_eval_adapter", exc_type=ImportError)
    monkeypatch.setattr(trial, "SECONDS", 0.3)
    tokenizer = with_template(text_tokenizer, "{{ 1 | round(-999999999) }}")
    model = adapter.ProjectLM(llama(len(text_tokenizer)), tokenizer)
    with pytest.raises(InputError, match=r"chat template cannot be used \(it takes longer than 0\.3 s\)"):
        model.apply_chat_template([{"role": "user", "content": "a"}])
    assert tokenizer.chat_template.startswith("{{ 1")


@pytest.mark.parametrize("template", [TEMPLATE, STRIPPING])
def test_a_prompt_is_the_one_that_the_library_writes_by_hand(folder, text_tokenizer, template):
    tokenizer = with_template(text_tokenizer, template)
    task = load_task(str(folder / "task.yaml"), tokenizer, samples=5, shots=2, chat=True)
    plain = load_task(str(folder / "task.yaml"), tokenizer, samples=5, shots=2)
    for sample, same in zip(task.samples, plain.samples, strict=True):
        message = tokenizer.decode(same.prompt)
        assert list(sample.prompt) == by_hand(tokenizer, message)
        assert [tokenizer.decode(option) for option in sample.options] == ["food", "place"]  # a line of its own
        parts = {name: tokenizer.decode(sample.prompt[start:stop]) for name, start, stop in sample.spans}
        shown, asked = message.rsplit("\n\n", 1)
        assert parts == {"demonstrations": f"{shown}\n\n", "question": asked}
        assert (sample.target, sample.row) == (same.target, same.row)


def test_a_label_is_scored_where_the_answer_begins(folder, text_tokenizer):
    tokenizer = with_template(text_tokenizer, TEMPLATE)
    model = llama(len(text_tokenizer))
    samples = load_task(str(folder / "task.yaml"), tokenizer, samples=3, chat=True).samples
    for sample, found in zip(samples, log_probabilities(model, samples), strict=True):
        scores = []
        for label in ("food", "place"):
            text = tokenizer.decode(sample.prompt) + label
            ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
            with torch.no_grad():
                likely = model(input_ids=ids).logits.log_softmax(-1)[0]
            places = range(len(sample.prompt), ids.shape[1])
            scores.append(sum(likely[place - 1, ids[0, place]] for place in places))
        torch.testing.assert_close(found, torch.stack(scores).log_softmax(0)[sample.target], atol=1e-4, rtol=1e-4)


def test_contexts_with_needles_are_messages(text_tokenizer):
    from antiphase.lab.text.haystacks import Cell, Haystack

    tokenizer = with_template(text_tokenizer, TEMPLATE)
    model = llama(len(text_tokenizer))
    text = "A river ran. The hill stood. " * 200
    cell = Cell(needles=2, queries=1, length=220, depth=0.5)
    contexts = Haystack([text], tokenizer).contexts(cell, 2, seed=0)
    outputs = Generating(model, tokenizer, chat=True)(contexts)
    prompts = [by_hand(tokenizer, context.text) for context in contexts]
    longest = max(len(tokens) for tokens in generated_tokens(model, prompts, longest=40))
    assert longest
    expected = [tokenizer.decode(tokens) for tokens in generated_tokens(model, prompts, longest=40)]
    assert all(written.startswith(output) for written, output in zip(expected, outputs, strict=True))


def test_texts_to_judge_are_asked_for_in_messages(tmp_path, text_tokenizer):
    tokenizer = with_template(text_tokenizer, TEMPLATE)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"document": f"A b {i}.", "summary": f"B {i}."}) + "\n" for i in range(4)))
    drawn = draw(load_items(str(path)), tokenizer, name="x", samples=3, seed=0, room=None, chat=True)
    assert drawn.prompts == [by_hand(tokenizer, item.prompt) for item in drawn.items]


COMMANDS = {
    "many-shot": "evaluate many-shot {} --task task.yaml --shots 1 --orders 0 --samples 10",
    "needles": "evaluate needles {} --data text.txt --length 200 --needles 2 --samples 2 --depths 0.5",
    "hallucination": "evaluate hallucination {} --data x.jsonl --judge chat --samples 3",
    "search": "calibrate search {} --task task.yaml --samples 30",
    "study": "calibrate study {} --task task.yaml --samples 30",
    "harness": "evaluate harness {} --tasks own --include-path tasks --num-fewshot 0",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_without_a_template_is_refused_in_one_sentence(folder, refused, command):
    (folder / "text.txt").write_text("A river ran. The hill stood. " * 200)
    (folder / "x.jsonl").write_text(
        "".join(json.dumps({"document": f"A {i}.", "summary": "B."}) + "\n" for i in range(9))
    )
    if command == "harness":
        write_harness_task(folder)
    pattern = "^antiphase: MODEL plain has no chat template; leave out --chat-template, or give an instruct model"
    refused(pattern, COMMANDS[command].format("plain"), "--chat-template --output out")


@pytest.mark.parametrize("command", ["many-shot", "needles", "harness"])
def test_a_model_with_one_is_measured_through_it(folder, antiphase, command):
    (folder / "text.txt").write_text("A river ran. The hill stood. " * 200)
    if command == "harness":
        write_harness_task(folder)
    for output, more in (("chat-out", "--chat-template"), ("plain-out", "")):
        code, _, err = antiphase(COMMANDS[command].format("chat"), more, "--output", output)
        assert code == 0, err
    with_it, without = Record.load(folder / "chat-out"), Record.load(folder / "plain-out")
    assert (with_it.config["chat_template"], without.config["chat_template"]) == (True, False)
    if command == "many-shot":  # the template's tokens
        tokens = [record.values["tasks"]["task"]["rows"][0]["tokens"] for record in (with_it, without)]
        assert tokens[0] > tokens[1]
    code, _, err = antiphase(COMMANDS[command].format("chat"), "--output plain-out --chat-template --resume")
    assert code == (0 if command == "harness" else 2), err  # whose folders take other settings, too
    assert command == "harness" or "--chat-template" in err


def write_harness_task(folder):
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed")
    rows = [{"q": text, "gold": int(label == "place")} for label, text in ROWS]
    (folder / "tasks").mkdir()
    (folder / "tasks" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "task": "own", "dataset_path": "json", "output_type": "multiple_choice", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(folder / "tasks" / "rows.jsonl")}},
        "doc_to_text": "What: {{q}}\nKind:", "doc_to_target": "gold", "doc_to_choice": ["food", "place"],
    }  # fmt: skip
    (folder / "tasks" / "own.yaml").write_text(yaml.safe_dump(tree))


def test_a_task_of_plain_text_has_no_message(folder, text_tokenizer):
    (folder / "text.txt").write_text("A river ran. The hill stood. " * 200)
    (folder / "go-on.yaml").write_text("{kind: continuation, data: text.txt}")
    tokenizer = with_template(text_tokenizer, TEMPLATE)
    with pytest.raises(InputError, match="a task of kind continuation is plain text; leave out --chat-template"):
        load_task(str(folder / "go-on.yaml"), tokenizer, chat=True)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no user') }}", r"cannot be used \(no user\)"),
        ("{{ messages | length }}", "changes the text"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_told(folder, text_tokenizer, template, said):
    with pytest.raises(InputError, match=said):
        load_task(str(folder / "task.yaml"), with_template(text_tokenizer, template), chat=True)


def test_a_device_map_and_a_device_exclude_each_other(folder, refused, monkeypatch):
    common = "evaluate perplexity chat --data rows.txt --output out"
    refused("--device cpu and --device-map auto are both given; give one", common, "--device cpu --device-map auto")
    refused("--device-map far is not a device; use auto, cpu, cuda", common, "--device-map far")
    monkeypatch.setattr("antiphase.models.sources.models.importlib.util.find_spec", lambda name: None)
    refused("--device-map needs the package accelerate; run pip install accelerate", common, "--device-map auto")
