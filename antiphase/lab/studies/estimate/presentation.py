"""Presentation of records of ``antiphase estimate``."""

from __future__ import annotations

from antiphase.base.records import Record
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.estimate import EstimatedRun, Estimates

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "total")

SENT = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "sums")


@Estimates.from_record
def training(found: Estimates) -> Table:
    """Operations and time."""
    rows = [
        [row.arm, row.parameters, f"{row.tokens:.3g}", f"{row.flops:.3g}",
         _mesh(row), f"{row.passes} × {row.sequences}",
         row.tokens_a_second, f"{row.days:.3g}"]
        for row in found.rows
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Parameters", "integer"), Column("Tokens"), Column("Operations"), Column("Mesh"),
               Column("Passes × sequences"), Column("Tokens a second", "integer"), Column("Days")]  # fmt: skip
    return Table(title="Training", columns=columns, rows=rows, note="; ".join(dict.fromkeys(r.why for r in found.rows)))


def _mesh(row: EstimatedRun) -> str:
    shared = "".join(
        f", {name} {size}" for name, size in (("context", row.context), ("tensor", row.tensor)) if size > 1
    )
    return f"replicate {row.replicate}, shard {row.shard}{shared}"


@Estimates.from_record
def memory(found: Estimates) -> Table:
    """Memory of a GPU, by part."""
    rows = [[row.arm, *(f"{getattr(row, part) / 1e9:.2f} GB" for part in PARTS), row.moment] for row in found.rows]
    columns = [Column("Arm"), *(Column(part.capitalize()) for part in PARTS), Column("At")]
    note = (
        "When most is held. Weights, gradients and moments in fp32; gathered: copies of weights for a product. Without "
        "what the driver and libraries take, and without fragmentation."
    )
    return Table(title="Memory of each GPU", columns=columns, rows=rows, note=note)


@Estimates.from_record
def sent(found: Estimates) -> Table:
    """Communication of a GPU in a step."""
    rows = [[row.arm, *(f"{getattr(row, name) / 1e9:.2f} GB" for name in SENT)] for row in found.rows]
    columns = [Column("Arm"), Column("Gathered"), Column("Scattered as sums"), Column("Summed over copies"),
               Column("Exchanged"), Column("Summed over heads")]  # fmt: skip
    return Table(title="Communication of each GPU in a step", columns=columns, rows=rows)


def _introduction(record: Record) -> str:
    fleet, gpu = record.config["fleet"], record.config["gpu"]
    memory_each, peak = fleet["gpu_memory"] or gpu["memory"], fleet["gpu_flops"] or gpu["peak"]
    own = fleet["gpu_memory"] and fleet["gpu_flops"]
    source = "" if own else f" ({fleet['gpu']}: {gpu['source']})"
    return (
        f"Training on {fleet['gpus']} GPUs of {memory_each:g} GB and {peak:.4g} operations a second{source}; "
        f"{fleet['peak_share']:.0%} of these are reached. Formulas from sizes alone; nothing was trained."
    )


PRESENTATION = Presentation(
    introduction=_introduction, tables=lambda record: [training(record), memory(record), sent(record)]
)
