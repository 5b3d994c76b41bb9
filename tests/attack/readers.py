"""Every reader of files, with whole files to begin from; the fuzzer damages one of them and calls the reader."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from antiphase import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.base.errors import InputError
from antiphase.base.folders.contents import MODEL, check_model, file_digest, keep_model
from antiphase.base.folders.journal import Journal, append_line
from antiphase.base.folders.work import work_in
from antiphase.base.records import Record
from antiphase.calibration.plan import CalibrationPlan
from antiphase.cli.tools import _showing
from antiphase.lab.lineage.models.word_vectors import read_word_vectors
from antiphase.lab.measures.hallucination import HallucinationSettings
from antiphase.lab.pages.terminal import print_summary
from antiphase.lab.scoring.loading import load_model
from antiphase.lab.settings.flags import kept_settings
from antiphase.lab.settings.presets import kept_run, load_preset, to_yaml
from antiphase.lab.studies.claims import Claim, register, registered
from antiphase.lab.text.corpora import documents
from antiphase.lab.text.labelled import labelled_rows
from antiphase.lab.text.packing import pack
from antiphase.lab.text.tasks.tasks import load_task
from antiphase.lab.text.tokenization import in_chat, train_tokenizer
from antiphase.lab.training.checkpoint import MANIFEST, Progress, load_checkpoint, save_checkpoint, sealed
from antiphase.lab.training.run_folder import MetricsLog, read_curve, read_metrics
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.sources.gguf import read_header
from antiphase.models.sources.models import read_config
from antiphase.models.sources.tokenizers import load_tokenizer
from support.records import write_sealed

TEXT = "The old boat lies in the harbour. Nobody has seen the number of the house: Paris 4821.\n" * 30
ASKED = HallucinationSettings(name="m", judge="j", data=["d"])


@dataclass(frozen=True)
class Reader:
    """A reader of files, which either accepts a folder or raises ``InputError``."""

    make: Callable[[Path], None]
    """Write the whole files into an empty folder."""
    read: Callable[[Path], Any]
    """Read the folder."""
    sealed: bool = False
    """Whether digests show every damage: what is accepted must give what the whole files give."""


def _model() -> AntiphaseForCausalLM:
    torch.manual_seed(0)
    return AntiphaseForCausalLM(
        AntiphaseConfig(
            vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            attention_type="softmax", max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def _tokenizer() -> Any:
    return train_tokenizer([TEXT], 290)


def _model_folder(folder: Path) -> None:
    _model().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _sharded_folder(folder: Path) -> None:
    _model().save_pretrained(folder, max_shard_size="5KB")
    _tokenizer().save_pretrained(folder)


def _kept_model(folder: Path) -> None:
    _model_folder(folder)
    keep_model(folder)


def _model_kept(folder: Path) -> dict[str, str]:
    """What of a model its digest protects, if it is accepted."""
    if not (folder / MODEL).is_file():
        raise InputError("without a digest nothing is protected")
    check_model(folder)
    kept = [*sorted(folder.glob("*.safetensors")), folder / "config.json", folder / "tokenizer.json"]
    return {path.name: file_digest(path) for path in kept if path.is_file()}


def _chat(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = tokenizer.chat_template or "{{ messages[0].content }}"
    in_chat(tokenizer, "hello")
    tokenizer(TEXT)


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def _run(folder: Path) -> None:
    model = _model()
    progress = Progress(3, 1.0, 9, [{"step": 0, "loss": 2.0}], "float32", "0" * 64)
    save_checkpoint(folder, model, _optimizer(model), progress)


def _resumed(folder: Path) -> Any:
    model = _model()
    with torch.no_grad():
        found = load_checkpoint(folder, model, _optimizer(model))
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    return found and vars(found), state


def _sealed_anew(folder: Path) -> None:
    """Resume from a checkpoint whose writer has made the digests fit the damage."""
    for path in folder.rglob(MANIFEST):
        try:
            tree = json.loads(path.read_bytes())
            tree.pop("sha256", None)
            for name in tree["files"]:
                if (path.parent / name).is_file():
                    tree["files"][name] = file_digest(path.parent / name)
            path.write_bytes(sealed(tree))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
            pass  # nothing that could be sealed
    _resumed(folder)


def _record(folder: Path) -> None:
    values: dict[str, Any] = {"final": {"loss": 2.0, "accuracy": 0.5}, "stages": [{"length": 3, "step": 0}]}
    curve = [{"step": 0, "loss": 3.0, "accuracy": 0.1, "train_loss": None}]
    values |= {"curve": curve, "seed": 1, "seconds": 2.0, "tokens": 9, "lambdas": [0.1, None], "parameters": 3}
    record = Record(kind="train", values=values, config={"training": {"steps": 3}}, seeds=[0])
    record.arrays = {"a": torch.ones(2, 3).numpy()}
    record.save(folder)


def _shown(folder: Path) -> None:
    """Read and show a record, whose writer has made the digests fit the damage where it is JSON still."""
    path = folder / "record.json"
    try:
        tree = json.loads(path.read_bytes())
        write_sealed(path, tree | {"arrays_sha256": file_digest(path.with_suffix(".safetensors"))})
    except (ValueError, TypeError, AttributeError, RecursionError, OSError, InputError):
        pass  # nothing that could be sealed
    record = Record.load(folder)
    with _showing([folder]):
        record.origins()
        print_summary(record, Console(file=io.StringIO()))


def _metrics(folder: Path) -> None:
    log = MetricsLog(folder, step=0, run="0")
    for step in range(4):
        log.write({"step": step, "loss": 1.0, "gradient_norms": [1.0]})


def _metrics_again(folder: Path) -> None:
    MetricsLog(folder, step=2, run="0")
    read_metrics(folder)


def _journal(folder: Path) -> None:
    for number in range(3):
        append_line(folder / "journal.jsonl", {"key": f"k{number}" if number else "inputs", "rows": {"a": [1, 2]}})


def _claims(folder: Path) -> None:
    register(folder, Claim.of_blocks("Which?", "loss: b - a", arms=2, blocks=3, spread=0.5))


def _plan(folder: Path) -> None:
    CalibrationPlan({0: [1]}, beta=0.4, fingerprint={"model_type": "antiphase"}, scores={"0.1": 2}).save(
        folder / "p.json"
    )


def _planned(folder: Path) -> None:
    CalibrationPlan.load(folder / "p.json").check(_model())


def _task(folder: Path) -> None:
    (folder / "rows.txt").write_text("A one two\nB three four\n" * 4)
    task = {
        "kind": "classification",
        "data": "rows.txt",
        "prompt": "{{ text }}:",
        "keep": "text|length > 2",
        "shots": 1,
    }
    (folder / "task.yaml").write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in task.items()) + "\n")


def _asked(folder: Path) -> None:
    if not hasattr(_asked, "tokenizer"):
        _asked.tokenizer = _tokenizer()  # type: ignore[attr-defined]  # made once
    load_task(str(folder / "task.yaml"), _asked.tokenizer)  # type: ignore[attr-defined]  # as above


def _rows(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"text": f"words {number} of text", "label": "AB"[number % 2]} for number in range(6)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "b.csv").write_text("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows))
    (folder / "c.txt").write_text("".join(f"{row['label']} {row['text']}\n" for row in rows))
    (folder / "d.json").write_text(json.dumps(rows))
    with gzip.open(folder / "e.tsv.gz", "wt") as file:
        file.write("text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "f.parquet")


def _labelled(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        labelled_rows(str(path))


def _text(folder: Path) -> None:
    (folder / "d.json").unlink(missing_ok=True)  # a list, which only labelled rows may be
    list(documents([str(folder)], text_field="text"))


def _tokens(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT)
    _packed(folder)


def _packed(folder: Path) -> Any:
    found = pack([str(folder / "text.txt")], _asked_tokenizer(), sequence_length=8, cache=folder / "cache")
    return found.tokens.tolist()


def _asked_tokenizer() -> Any:
    if not hasattr(_packed, "tokenizer"):
        _packed.tokenizer = _tokenizer()  # type: ignore[attr-defined]  # made once
    return _packed.tokenizer  # type: ignore[attr-defined]  # as above


def _vectors(folder: Path) -> None:
    (folder / "v.txt").write_text("3 2\nold 0.1 -2e-3\nboat 1 2\nhouse 3 4\n")


def _gguf(folder: Path) -> None:
    from support.gguf import llama, write_gguf

    tokenizer = _tokenizer()
    write_gguf(folder / "m.gguf", llama(len(tokenizer)), tokenizer)


def _in_work(folder: Path) -> None:
    with work_in(folder, kept_settings(ASKED), resume=True) as work:
        work.begin({"texts": "abc"}, {"texts": "the texts have changed"})


def _preset(folder: Path) -> None:
    (folder / "run.yaml").write_text(to_yaml(load_preset("demo").run))


READERS = {
    "records": Reader(_record, _shown),
    "journals": Reader(_journal, lambda folder: Journal(folder, lambda: {"a": [1, 2]}).known),
    "metrics": Reader(_metrics, _metrics_again),
    "curves": Reader(
        lambda folder: (folder / "curve.json").write_text('[{"step": 0, "loss": 1.5}]') and None, read_curve
    ),
    "checkpoints": Reader(_run, _resumed, sealed=True),
    "checkpoints of strangers": Reader(_run, _sealed_anew),
    "plans": Reader(_plan, _planned),
    "presets": Reader(_preset, lambda folder: load_preset(str(folder / "run.yaml"))),
    "settings of runs": Reader(_preset, lambda folder: kept_run(folder / "run.yaml", field="model")),
    "requests": Reader(_in_work, _in_work),
    "claims": Reader(_claims, registered),
    "tasks": Reader(_task, _asked),
    "tables of labels": Reader(_rows, _labelled),
    "texts": Reader(_rows, _text),
    "word vectors": Reader(
        _vectors, lambda folder: read_word_vectors(folder / "v.txt", {"old": 0, "boat": 1}, width=2)
    ),
    "tokens": Reader(_tokens, _packed),
    "GGUF headers": Reader(_gguf, lambda folder: read_header(str(folder / "m.gguf"), "model")),
    "configurations": Reader(_model_folder, lambda folder: read_config(str(folder), field="model")),
    "tokenizers": Reader(lambda folder: _tokenizer().save_pretrained(folder) and None, _chat),
    "models": Reader(_sharded_folder, lambda folder: load_model(str(folder)) and None),
    "sealed models": Reader(_kept_model, _model_kept, sealed=True),
    "sources": Reader(_model_folder, lambda folder: Checkpoint(str(folder)).check()),
}
"""By what they read."""


def copy_of(whole: Path, folder: Path) -> None:
    """A folder with the same files, in the place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
