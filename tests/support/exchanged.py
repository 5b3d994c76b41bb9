"""A script for torchrun: models whose sequences the processes divide, against the same models in one process.

python exchanged.py CASES OUTPUT: cases as JSON objects with ``fields`` of the configuration, ``implementation`` and
``packed``; writes for each the largest difference of the logits and of the gradients, relative to the largest number.
Flex attention is tried in fp32 without gradients. PyTorch 2.13 computes it wrongly for fewer than 32 keys where it is
compiled for a processor without AVX-512, so the sequences are longer.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist

import antiphase
from antiphase.layers.exchange import Exchange

ROWS, LENGTH, WORDS = 3, 48, 61


def differences(case, exchange):
    torch.manual_seed(3)
    config = antiphase.AntiphaseConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **case["fields"])
    model = antiphase.AntiphaseForCausalLM(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.set_attn_implementation(case["implementation"])
    if case.get("recompute"):
        model.gradient_checkpointing_enable()
    model.train()
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
    factors = torch.randn(ROWS, LENGTH, WORDS, generator=generator, dtype=torch.float64)
    positions = torch.arange(LENGTH)[None].expand(ROWS, -1)
    if case["packed"]:  # texts of 10, 22 and 16 tokens in each row, none of which ends where a process does
        positions = torch.cat([torch.arange(size) for size in (10, 22, 16)])[None].expand(ROWS, -1)
    named = {"input_ids": ids, "position_ids": positions, "use_cache": False}

    if case["implementation"] == "flex_attention":  # PyTorch has neither gradients nor fp64 for it on a CPU
        model.eval().float()
        with torch.no_grad():
            whole, part = model(**named).logits, model(**named, exchange=exchange).logits
        return {"logits": difference(exchange.own(whole), part)}

    whole = model(**named).logits
    (whole * factors).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()

    part = model(**named, exchange=exchange).logits
    (part * exchange.own(factors)).sum().backward()
    worst = {"logits": difference(exchange.own(whole), part)}
    for name, parameter in model.named_parameters():
        dist.all_reduce(parameter.grad)
        worst["gradients"] = max(worst.get("gradients", 0.0), difference(expected[name], parameter.grad))
    return worst


def difference(one, other):
    return ((one - other).abs().max() / one.abs().max()).item()


def main():
    cases, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    exchange = Exchange(dist.group.WORLD.group_name, dist.get_world_size(), dist.get_rank())
    found = [differences(case, exchange) for case in cases]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        output.write_text(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
