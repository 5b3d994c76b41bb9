"""Masked language modelling with transformers' own collator: a softmax encoder beside a differential one.

Every sentence is six words and the same words in reverse order. So a masked word usually also occurs unmasked, on
either side, and an encoder that reads both sides can name it in about seven of eight cases.
"""

import torch
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

import antiphase
from antiphase.lab.lineage.data.vocabularies import train_words

WORDS = [
    "wind", "rain", "snow", "hail", "sun", "moon", "star", "cloud", "river", "stone", "field", "wood", "road", "wall",
]  # fmt: skip
STEPS, BATCH = 400, 64

tokenizer = train_words([" ".join(WORDS)], len(WORDS) + 2)
tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
generator = torch.Generator()


def batch() -> dict[str, torch.Tensor]:
    """Sentences with some words masked; ``labels`` are set only there."""
    drawn = torch.randint(len(WORDS), (BATCH, 6), generator=generator).tolist()
    sentences = [" ".join(WORDS[word] for word in [*row, *reversed(row)]) for row in drawn]
    return collate([tokenizer(sentence) for sentence in sentences])


for kind in ("softmax", "differential"):
    generator.manual_seed(0)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)
    torch.manual_seed(0)
    config = antiphase.VanillaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, attention_type=kind,
        norm_position="pre", pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_config(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(STEPS):
        loss = model(**batch()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        asked = batch()
        named = model(**asked).logits.argmax(-1)
    masked = asked["labels"] != -100
    right = (named == asked["labels"])[masked].float().mean()
    print(
        f"{kind}: {100 * right:.0f} % of {int(masked.sum())} masked words right, {100 / len(WORDS):.0f} % by guessing"
    )
