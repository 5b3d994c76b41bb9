"""Attention is read and changed alike, whether eager code, SDPA, flex attention or this package computes it."""

import pytest
import torch

import antiphase
from antiphase.attention.maps import attention_maps
from antiphase.attention.rows import attention_rows
from antiphase.attention.statistics import attention_statistics
from antiphase.calibration.plan import CalibrationPlan
from antiphase.calibration.variants import varied
from antiphase.lab.measures.quantization.logits import quantized_logits
from support.architectures import CASES, LAYERS, N, batch, built


def padded():
    ids, mask = batch().input_ids, torch.ones(2, N, dtype=torch.long)
    mask[0, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def everything(model, is_encoder):
    """What readers say and what changed attention gives on a padded batch, one dictionary of tensors."""
    inputs, found = padded(), {}
    real = inputs["attention_mask"].bool()
    plan = {mode: CalibrationPlan({layer: [1, 2] for layer in range(LAYERS)}, 1.3, 0.2, mode)
            for mode in ("paper", "prompt", "running")}  # fmt: skip
    changes = {
        mode: lambda mode=mode: antiphase.calibrated(model, plan[mode])
        for mode in ("paper", "prompt", *(() if is_encoder else ("running",)))
    }
    changes["varied"] = lambda: varied(model, plan["prompt"], "proportional")
    changes["quantized"] = lambda: quantized_logits(model, 4)
    for name, change in changes.items():
        with change():
            found[name] = model(**inputs).logits[real]
    statistics = attention_statistics(model, **inputs)
    found["received"], found["entropy"] = (
        torch.cat([*statistics.received]).nan_to_num(),
        torch.cat([*statistics.entropy]),
    )
    ends = torch.tensor([[9, N - 1]] * 2)
    found["rows"] = torch.cat([row.maps for row in attention_rows(model, inputs["input_ids"], ends)])
    found["maps"] = torch.cat([one.maps for one in attention_maps(model, inputs["input_ids"][:1])])
    return found


slow = pytest.mark.slow
IMPLEMENTATIONS = [
    *((name, function)
      for name in ("llama", "mistral", "gpt2", "bert", "modernbert", "modernbert with a window beyond the text", "opt",
                   "decoder of BART", "jetmoe")
      for function in ("sdpa", "antiphase")),
    *(pytest.param(name, "flex_attention", marks=marks)
      for name, *marks in (("llama", slow), ("mistral", slow, pytest.mark.essential), ("bert", slow),
                           ("modernbert", slow), ("opt", slow))),
]  # fmt: skip


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # transformers compiles flex attention, which takes a minute
@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTATIONS)
def test_every_implementation_is_read_and_changed_as_eager_is(name, implementation):
    is_encoder, inputs = CASES[name].is_encoder, padded()
    real = inputs["attention_mask"].bool()
    model = built(name).float()
    model.set_attn_implementation("eager")
    expected, plain = everything(model, is_encoder), model(**inputs).logits[real]
    model.set_attn_implementation(implementation)
    torch.testing.assert_close(model(**inputs).logits[real], plain, rtol=1e-4, atol=1e-4)
    found = everything(model, is_encoder)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert all((found[change] - plain).abs().max() > 1e-3 for change in ("paper", "prompt", "varied", "quantized"))
