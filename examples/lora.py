"""Adapt a differential model with LoRA (package peft), then merge the adapter into its weights."""

import torch
from peft import LoraConfig, get_peft_model

import antiphase

torch.manual_seed(0)
config = antiphase.AntiphaseConfig(
    attention_type="differential_v2", vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=8,
)  # fmt: skip
model = antiphase.AntiphaseForCausalLM(config)
ids = torch.randint(0, 100, (8, 24))

adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
adapted.print_trainable_parameters()
optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
for step in range(41):
    loss = adapted(input_ids=ids, labels=ids).loss
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

merged = adapted.merge_and_unload()
print(f"merged: {type(merged).__name__}, loss {merged(input_ids=ids, labels=ids).loss.item():.3f}")
