"""Records of ``antiphase look`` as one interactive offline page: attention of every layer and head, in one file.

plotly.js and the maps are embedded as gzip in base85 (5 characters for 4 bytes, 6 % less than base64), so that 12
layers of 12 causal maps on 256 tokens stay below 8 MB. A content security policy allows two scripts, identified by
their hashes, so that no text in a record can be executed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import numpy
from plotly.offline import get_plotlyjs

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.measures.look import LARGEST, Look, Token
from antiphase.lab.measures.look.tables import (
    LayerMaps,
    chosen_head,
    is_look,
    layer_table,
    layers_of,
    mask_words,
    piece_counts,
    remarks,
    used_in,
)
from antiphase.lab.pages import tables
from antiphase.lab.pages.html import check_page, template, write_page

SCRIPTS = ("data", "style", "text", "grid", "plots", "events")
"""Parts of the page's script, in order; later ones use what earlier ones define."""


def write_look(records: Sequence[Record], output: Path) -> Path:
    """Write the interactive page of one or several records; return ``output``.

    Raises:
        InputError: a record has no attention maps, or ``output`` cannot be written.
    """
    if not records or not all(is_look(record) for record in records):
        raise InputError("an interactive page needs records of antiphase look only")
    check_page(output)
    return write_page(look_page(records), output)


def look_page(records: Sequence[Record]) -> str:
    """The page as text."""
    blobs: dict[str, str] = {}
    names = short_names([Look.of(record).model for record in records])
    models = [_model(record, names[number], f"model{number}", blobs) for number, record in enumerate(records)]
    folder = resources.files(__package__)
    parts = [(folder / "scripts" / f"{part}.js").read_text(encoding="utf-8") for part in SCRIPTS]
    script = '"use strict";\n{\n' + "\n".join(parts) + "}\n"
    return template((folder / "look.html").read_text(encoding="utf-8")).render(
        title=f"Attention of {', '.join(model['name'] for model in models)}",
        models=models,
        meta={"models": models},
        sections=[_section(record, name) for record, name in zip(records, names, strict=True)],
        blobs=blobs | {"plotly": _plotly()},
        script=script,
        hashes=[_hash(script), _hash(get_plotlyjs())],
    )


def framed(page: str) -> str:
    """A page within another, such as a notebook; nothing of it reaches the page around it."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" title="Attention maps" '
        'style="width: 100%; height: 56rem; border: 0"></iframe>'
    )


def short_names(models: Sequence[str]) -> list[str]:
    """Names of models without their folders, where these are not needed to tell two apart."""
    last = [PurePath(model).name or model for model in models]
    return [model if last.count(short) > 1 else short for model, short in zip(models, last, strict=True)]


def _model(record: Record, shown: str, name: str, blobs: dict[str, str]) -> dict[str, Any]:
    """Data of a record for the script; its arrays are added to ``blobs``."""
    look, layers, chosen = Look.of(record), layers_of(record), chosen_head(record)
    assert chosen is not None
    for number, mask in enumerate(look.masks):
        blobs[f"{name}-mask{number}"] = _packed(record.arrays[mask.array].astype(numpy.uint8).tobytes())
    for number, layer in enumerate(layers):
        blobs[f"{name}-maps{number}"] = _packed(layer_bytes(layer))
    if "positions" in record.arrays:
        blobs[f"{name}-positions"] = _packed(numpy.asarray(record.arrays["positions"], dtype="<f4").tobytes())
    return {
        "name": shown, "unit": "Token" if look.segment is None else "Segment", "segment": look.segment or 1,
        "chosen": {"layer": [layer.name for layer in layers].index(chosen[0].name), "head": chosen[1]},
        "sequences": {
            key: [{"text": token.text, "id": token.id} for token in sequence.tokens]
            for key, sequence in look.sequences.items()
        },
        "layers": [
            {
                "name": layer.name, "heads": layer.codes.shape[0], "each": layer.codes.shape[1],
                "queries": layer.queries, "keys": layer.keys, "mask": layer.mask, "blob": f"{name}-maps{number}",
                "peaks": layer.queries == LARGEST, "rest": layer.lost is not None,
            }
            for number, layer in enumerate(layers)
        ],
        "masks": [
            {
                "blob": f"{name}-mask{number}", "words": mask_words(look, mask), "kind": mask.kind,
                "plain": mask.window is None,
                "shape": list(record.arrays[mask.array].shape),
                "used": used_in([layer for layer in layers if layer.mask == number]),
            }
            for number, mask in enumerate(look.masks)
        ],
        "positions": {"blob": f"{name}-positions", "shape": list(record.arrays["positions"].shape)}
        if "positions" in record.arrays else None,
        "runs": [
            {
                "name": f"{run.arm}, seed {run.seed}",
                "curve": [
                    {key: point.get(key) for key in ("step", "loss", "accuracy", "train_loss")}
                    for point in run.curve
                ],
            }
            for run in look.runs
        ],
    }  # fmt: skip


def layer_bytes(layer: LayerMaps) -> bytes:
    """Scales (H, S, N) and λ (H, N) as little-endian fp32, then the codes of visible cells, row by row."""
    parts = [numpy.ascontiguousarray(layer.scales, dtype="<f4").tobytes()]
    if layer.lam is not None:
        parts.append(numpy.ascontiguousarray(layer.lam, dtype="<f4").tobytes())
    return b"".join([*parts, layer.codes[..., layer.visible].tobytes()])


def _section(record: Record, model: str) -> dict[str, Any]:
    """The part of the page that needs no script: pieces of each sequence unless it is shown by segments, the table of
    layers, and the source.
    """
    look, sequences = Look.of(record), []
    for name, sequence in look.sequences.items() if look.segment is None else ():
        pieces, words = piece_counts(sequence.tokens)
        grouped = groupby(enumerate(sequence.tokens), key=lambda pair: (pair[1].word, _separate_key(pair)))
        sequences.append({
            "name": name, "pieces": pieces, "words": words,
            "groups": [[{**vars(token), "number": number} for number, token in group] for _, group in grouped],
        })  # fmt: skip
    return {
        "model": model,
        "remarks": remarks(record),
        "sequences": sequences,
        "tables": [table for table in (layer_table(record), tables.provenance(record)) if table is not None],
    }


def _separate_key(pair: tuple[int, Token]) -> int:
    """A grouping key that keeps tokens without a word separate."""
    number, token = pair
    return number if token.word is None else -1


def _packed(content: bytes) -> str:
    """Gzip in base85 (digits of RFC 1924), with a comma for ``<``, so that nothing in it begins or ends an element."""
    return base64.b85encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii").replace("<", ",")


@cache
def _plotly() -> str:
    return _packed(get_plotlyjs().encode())


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'"
