"""Convert a DiffLlama and use it; upcycle a Llama to a differential V2 model of the same function and train that."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

from antiphase.models.checkpoints import convert

torch.manual_seed(0)
sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
ids = torch.randint(0, 200, (8, 32))

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)

    theirs = DiffLlamaForCausalLM(DiffLlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4)).eval()
    theirs.save_pretrained(folder / "diffllama")
    convert(str(folder / "diffllama"), folder / "ours")  # antiphase convert diffllama ours
    ours = AutoModelForCausalLM.from_pretrained(folder / "ours").eval()
    with torch.no_grad():
        difference = (ours(ids).logits - theirs(ids).logits).abs().max().item()
    print(f"DiffLlama as antiphase: {ours.config.attention_type}, largest difference of logits {difference:.1e}")
    print("greedy:", ours.generate(ids[:1, :5], max_new_tokens=5, do_sample=False)[0].tolist())

    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    llama.save_pretrained(folder / "llama")
    convert(str(folder / "llama"), folder / "v2", attention_type="differential_v2")
    v2 = AutoModelForCausalLM.from_pretrained(folder / "v2")
    with torch.no_grad():
        difference = (v2(ids).logits - llama(ids).logits).abs().max().item()
    print(f"Llama upcycled: {v2.config.attention_type}, largest difference of logits {difference:.1e}")

    optimizer = torch.optim.AdamW(v2.parameters(), lr=3e-3)
    for step in range(31):
        loss = v2(ids, labels=ids).loss
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
