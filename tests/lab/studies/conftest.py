"""Models that several studies' tests share."""

import pytest
import torch
import yaml

from antiphase.lab.scoring.task_scores import log_probabilities
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import train_tokenizer
from support.models import save, small_llama

TEXTS = [f"{a} {b} {c}" for a in ("the", "a", "one") for b in ("glad", "sour") for c in ("day", "man", "log", "hen")]
ROWS = [f"{int('glad' in text)} {text}" for text in TEXTS]


@pytest.fixture(scope="module")
def calibration_model(tmp_path_factory):
    """A tiny Llama that tells glad from sour, its task, and the folder that holds both."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = train_tokenizer(ROWS * 3 + ["Review: Sentiment: negative positive"] * 9, 300)
    (folder / "data.txt").write_text("\n".join(ROWS) + "\n")
    (folder / "task.yaml").write_text(yaml.safe_dump({"template": "cr", "name": "cr", "data": "data.txt"}))
    torch.manual_seed(0)
    model = small_llama(
        tokenizer, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=80,
    )  # fmt: skip
    samples = [s for shots in (0, 1) for s in load_task(str(folder / "task.yaml"), tokenizer, shots=shots).samples]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = torch.tensor(1.0)
    while loss > 0.3:  # it can do the task, and is not yet sure of itself
        loss = -log_probabilities(model, samples).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(model, tokenizer, folder / "model")
    return folder
