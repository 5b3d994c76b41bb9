"""A script for torchrun: models that transformers divides by ``tp_plan``, against the same models in one process.

python tensor_parallel.py FOLDERS OUTPUT: writes for each model the largest difference of its logits, whether it
generates the same tokens, and how many of its numbers a process holds.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

import antiphase  # noqa: F401 – registers the models


def main():
    folders, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for folder in folders:
        ids = torch.arange(2 * 13).view(2, 13) % 61
        whole = AutoModelForCausalLM.from_pretrained(folder).eval()
        parts = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto").eval()
        with torch.no_grad():
            expected, logits = whole(ids).logits, parts(ids).logits
        tokens = [model.generate(ids, max_new_tokens=8, do_sample=False).tolist() for model in (whole, parts)]
        held = [p.to_local() if isinstance(p, DTensor) else p for p in parts.parameters()]
        found.append(
            {
                "difference": ((logits - expected).abs().max() / expected.abs().max()).item(),
                "same": tokens[0] == tokens[1],
                "share": sum(one.numel() for one in held) / whole.num_parameters(),
            }
        )
    if dist.get_rank() == 0:
        output.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
