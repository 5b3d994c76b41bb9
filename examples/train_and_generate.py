"""Train a small softmax and a small differential model on synthetic retrieval, and generate with one of them."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import antiphase  # noqa: F401 – registers the models with the Auto classes
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run

STEPS = ["training.steps=60", "training.evaluate_every=30"]

with tempfile.TemporaryDirectory() as folder:
    for kind in ("softmax", "differential"):
        run = load_preset("demo", [*STEPS, f"model.attention_type={kind}"]).run
        record = train_run(run, Path(folder) / kind, resume=False)
        curve = [(point["step"], round(point["loss"], 2)) for point in record.values["curve"]]
        print(f"{kind}: {record.values['parameters']:,} parameters, held-out loss by step {curve}")
        print(f"  λ by layer: {record.values['lambdas']}")

    model = AutoModelForCausalLM.from_pretrained(Path(folder) / "differential")
    tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "differential")
    prompt = tokenizer("<eos> w1 key3 n7 w2 w5 key9 n1 w8 key3", return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    print("after 60 steps it answers:", tokenizer.decode(ids[0, -1]), "(right is n7)")
