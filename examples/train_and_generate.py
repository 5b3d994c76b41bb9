"""Train a small differential model on generated retrieval, load it as Hugging Face does, and let it go on."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import antiphase  # noqa: F401 – the Auto classes know the architecture afterwards
from antiphase.config import load_preset
from antiphase.studies.single import train_run

with tempfile.TemporaryDirectory() as folder:
    run = load_preset("demo", ["training.steps=60", "training.decay_steps=60", "training.evaluate_every=30"]).run
    record = train_run(run, Path(folder) / "run", resume=False)
    print(f"{record.values['parameters']:,} parameters, λ by layer {record.values['lambdas']}")
    print(f"held-out loss by step: {[(point['step'], round(point['loss'], 2)) for point in record.values['curve']]}")

    model = AutoModelForCausalLM.from_pretrained(Path(folder) / "run")
    tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "run")
    prompt = tokenizer("<eos> w1 key3 n7 w2 w5 key9 n1 w8 key3", return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    print("after sixty steps it goes on with:", tokenizer.decode(ids[0, -1]), "(the fact says n7)")
