"""Measure attention sinks in a small model, search for heads to calibrate, and generate with the resulting plan.

After 300 steps the model has learned little, so this example only shows the calls; docs/calibration-results.md has
results.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import antiphase
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run

STEPS = ["model.attention_type=softmax", "training.steps=300"]

with tempfile.TemporaryDirectory() as folder:
    run = load_preset("demo", STEPS).run
    train_run(run, Path(folder) / "softmax", resume=False)
    model = AutoModelForCausalLM.from_pretrained(Path(folder) / "softmax").eval()
    tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "softmax")

# A prompt is a fact among filler words, asked for at the end. A sample is the prompt's token ids and the answer's id.
generator = torch.Generator().manual_seed(0)
samples = []
for _ in range(48):
    key, number = (int(torch.randint(0, limit, (1,), generator=generator)) for limit in (64, 100))
    filler = [f"w{int(word)}" for word in torch.randint(0, 200, (12,), generator=generator)]
    words = ["<eos>", *filler[:5], f"key{key}", f"n{number}", *filler[5:], f"key{key}"]
    samples.append((tokenizer.convert_tokens_to_ids(words), tokenizer.convert_tokens_to_ids(f"n{number}")))


def score(model: PreTrainedModel, samples: Sequence[Any]) -> torch.Tensor:
    """Log probability of each right answer after its prompt."""
    ids = torch.tensor([ids for ids, _ in samples])
    answers = torch.tensor([answer for _, answer in samples])
    return model(input_ids=ids).logits[:, -1].log_softmax(-1).gather(1, answers[:, None])[:, 0]


# With 16 tokens and the usual α of 5 the threshold α / N would be a third of all attention.
statistics = antiphase.attention_statistics(model, alpha=2.0, input_ids=torch.tensor([ids for ids, _ in samples]))
share = 100 * statistics.sink_share.mean((1, 2))
print(f"attention on sinks other than the first token, by layer: {', '.join(f'{value:.1f} %' for value in share)}")

plan = antiphase.search_calibration(model, score, samples, alpha=2.0, method="cached")
low, high = plan.scores["held_out_gain_interval"]
print(f"heads kept (layer: maps): {dict(plan.heads)}")
print(f"held-out log probability {plan.scores['held_out_before']:.3f} → {plan.scores['held_out_after']:.3f}, "
      f"gain {plan.scores['held_out_gain']:+.3f} [{low:+.3f} to {high:+.3f}]")  # fmt: skip

prompts, answers = torch.tensor([ids for ids, _ in samples]), torch.tensor([answer for _, answer in samples])
plain = model.generate(prompts, max_new_tokens=1, do_sample=False)[:, -1]
with torch.no_grad(), antiphase.calibrated(model, plan):
    with_plan = model.generate(prompts, max_new_tokens=1, do_sample=False)[:, -1]
print(f"right answers of {len(samples)} generated: {int((plain == answers).sum())} without the plan, "
      f"{int((with_plan == answers).sum())} with it")  # fmt: skip
