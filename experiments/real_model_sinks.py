"""In how many attention maps a real model has sinks to reduce, by task of the confirmatory study of calibration.

    python -m experiments.real_model_sinks runs/real-model --output records/real-model

The first argument is the folder of the long form of ``real_model.py``, with its model and its task files. Calibration
changes no map without a sink, and a short text has few: a token needs more than α / N of the attention.
"""

from __future__ import annotations

import os
import statistics
from argparse import Namespace
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError
from antiphase.lab.scoring.loading import load_model, origins
from antiphase.lab.studies.calibrate.confirm import ConfirmSettings
from antiphase.lab.studies.calibrate.confirm.measure import heads_with_sinks
from antiphase.lab.text.tasks.tasks import load_task
from experiments.real_model import JUDGED, PLAIN
from tools.script import CONSOLE, script

LAYERS = range(3, 11)
"""Those of the study."""
PROMPTS = 111
"""Of each task: as many as chose heads there."""


def measure(chosen: Namespace) -> dict[str, Any]:
    """Count maps with sinks.

    Raises:
        InputError: the folder has no such model.
    """
    folder = Path(chosen.folder)
    if not (folder / PLAIN / "config.json").is_file():
        raise InputError(f"{folder} has no model {PLAIN}; make it with real_model.py --form long --only {PLAIN}")
    os.chdir(folder)  # task files name their data from there
    loaded = load_model(PLAIN)
    alpha, rows = ConfirmSettings.alpha, []
    for name in (*(f"{task}-zero" for task in JUDGED), "cr-four"):
        task = load_task(f"{name}.yaml", loaded.tokenizer, samples=chosen.prompts)
        prompts = [sample.prompt for sample in task.samples]
        counts = [of_head for (layer, _), of_head in heads_with_sinks(loaded.model, prompts, alpha).items()
                  if layer in LAYERS]  # fmt: skip
        maps, tokens = len(counts) * len(prompts), statistics.median(map(len, prompts))
        seen, any_sink = (sum(found[kind] for found in counts) / maps for kind in (0, 1))
        rows.append({
            "task": task.name, "prompts": len(prompts), "tokens": tokens, "threshold": min(1.0, alpha / tokens),
            "any_sink": any_sink, "seen_by_enough": seen,
        })  # fmt: skip
        CONSOLE.print(f"{task.name}: {tokens:g} tokens, {100 * any_sink:.0f} % of maps with a sink")
    values = {"model": PLAIN, "alpha": alpha, "layers": list(LAYERS), "rows": rows}
    return {"values": values, "config": origins([loaded])}


if __name__ == "__main__":
    options = {"folder": "folder of the long form", "--prompts": PROMPTS}
    script(__doc__, "task-sinks", measure, options, name="task-sinks")
