"""``roofline train``: a step of training on one device or many."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from roofline.analysis.training import TrainingStep
from roofline.analysis.training import train as predict
from roofline.analysis.whatif import what_if
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.output import note, show, write_csv, write_json
from roofline.ir.errors import UsageError
from roofline.ir.units import format_bytes, format_si

_Where = Annotated[str, typer.Argument(
    metavar="CHIP", help="A chip, or a cluster such as dgx-h100 where a group is larger than a node.")]  # fmt: skip
_Batch = Annotated[str, typer.Option("--batch", "-B", metavar="N", help="Sequences or images of a step, in all.")]
_Sequence = Annotated[str | None, typer.Option(
    "--seq", "-S", metavar="N", help="Length of a sequence.", show_default=False)]  # fmt: skip
_Tokens = Annotated[str | None, typer.Option(
    "--tokens", metavar="N", help="Time to train on so many tokens or images, such as 300e9 or 1.4T.",
    show_default=False)]  # fmt: skip
_NoOverlap = Annotated[bool, typer.Option("--no-overlap", help="Exchange gradients after the backward, not beside it.")]

_COUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,2})?)\s*([kMGBT]?)\s*")
_MOST = 1e21
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def count_of(text: str, option: str) -> float:
    """Read ``300e9``, ``300B`` or ``1.4T``.

    Raises:
        UsageError: Anything else.

    Example:
        >>> count_of("300B", "--tokens"), count_of("1.4e12", "--tokens")
        (300000000000.0, 1400000000000.0)
    """
    match = _COUNT.fullmatch(text)
    found = float(match[1]) * _TIMES[match[2]] if match is not None else 0.0
    if not 1 <= found <= _MOST:
        raise UsageError(f"{option} {text[:60]!r}: wanted a number from 1 to 1e21, such as 300e9, 300B or 1.4T")
    return found


def train(
    model: opt.Model,
    chip: _Where,
    batch: _Batch,
    seq: _Sequence = None,
    micro_batch: opt.MicroBatch = None,
    tp: opt.Tensor = 1,
    sp: opt.Positions = False,
    pp: opt.Pipeline = 1,
    interleave: opt.Interleave = 1,
    dp: opt.Copies = 1,
    ep: opt.Experts = 1,
    zero: opt.Zero = 0,
    recompute: opt.Recompute = None,
    optimizer: opt.Optimizer = "adamw",
    precision: opt.Precision = None,
    no_overlap: _NoOverlap = False,
    tokens: _Tokens = None,
    mode: opt.RunMode = "eager",
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
) -> None:
    """Predict a step of training: time and memory by part, MFU, time for so many tokens."""
    opt.exclusive(json=as_json, csv=as_csv)
    wanted = count_of(tokens, "--tokens") if tokens is not None else None
    found = training_step(
        model, chip, batch, seq, micro_batch=micro_batch, tp=tp, sp=sp, pp=pp,
        interleave=interleave, dp=dp, ep=ep, zero=zero, recompute=recompute, optimizer=optimizer, precision=precision,
        overlap=not no_overlap, mode=mode,
    )  # fmt: skip
    print_step(found, wanted, as_json, as_csv)


def training_step(
    model: str, chip: str, batch: str | None, seq: str | None, *, prune: str | None = None,
    recompute: str | None = None, **layout: Any,
) -> TrainingStep:  # fmt: skip
    """The step that options of the command line describe, with its notes said."""
    graph = opt.trainable(model)
    if prune is not None:
        graph = what_if(graph, prune=prune)
    given = opt.single(opt.sizes(graph, batch, seq), "a step of training")
    each = given.pop("B", 1)
    found = predict(graph, chip, batch=each, recompute="none" if recompute is None else recompute, **layout, **given)
    for text in found.notes:
        note(f"{found.name}: {text}")
    return found


def print_step(found: TrainingStep, tokens: float | None, as_json: bool, as_csv: bool) -> None:
    """A step as tables, JSON or CSV."""
    if as_csv:
        write_csv([{"part": part, "seconds": s, "share": s / found.time} for part, s in found.seconds.items()])
    elif as_json:
        extra = {} if tokens is None else {"items": tokens, "seconds_for_items": found.seconds_for(tokens)}
        write_json({**found.record(), **extra})
    else:
        show(*sheet(found, tokens))


def sheet(found: TrainingStep, tokens: float | None = None) -> list[Any]:
    """A step as tables of 80 columns."""
    plan = found.plan
    parts = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep, "interleave": plan.interleave}
    layout = [*(f"{name}={value}" for name, value in parts.items() if value > 1), *(["sp"] if plan.sp else []),
              *([f"zero={plan.zero}"] if plan.zero else [])]  # fmt: skip
    where = f"{found.devices} x {found.chip.name}" if found.devices > 1 else found.chip.name
    return [
        tables.heading(f"{found.name} on {where}, {found.mode} mode, batch {plan.batch}"),
        tables.facts([
            ("time", f"{format_si(found.time, 's')}  ({format_si(found.low, 's')} to {format_si(found.high, 's')})"),
            ("layout", ", ".join(layout)),
            ("runs", f"{plan.micro_batches} x {plan.micro_batch}, {plan.precision}, {plan.optimizer}, "
                     f"recompute {plan.recompute}"),
            ("MFU, HFU", f"{tables.percent(found.mfu)}, {tables.percent(found.hfu)}"),
            ("throughput", format_si(found.throughput, f"{found.item}/s")),
            ("work", f"{format_si(found.model_flops, 'FLOP')} by the model, "
                     f"{format_si(found.hardware_flops, 'FLOP')} run"),
            (format_si(tokens, found.item) if tokens else "", f"{found.days(tokens):.3g} days" if tokens else ""),
        ]),
        "",
        _parts(found),
        "",
        _memory(found),
    ]  # fmt: skip


def _parts(found: TrainingStep) -> Any:
    rows = [(part.replace("_", " "), format_si(value, "s"), tables.percent(value / found.time))
            for part, value in found.seconds.items() if value > 0]  # fmt: skip
    return tables.table("<a device's time|time|share", [*rows, ("total", format_si(found.time, "s"), "")])


def _memory(found: TrainingStep) -> Any:
    total = float(found.memory.total)
    rows = [(name.replace("_", " "), format_bytes(float(value)), tables.percent(float(value) / total))
            for name, value in found.memory.parts().items() if float(value) > 0]  # fmt: skip
    fit = "fits" if found.fits else "does not fit"
    rows += [("total", format_bytes(total), ""), (f"capacity of {found.chip.name}", format_bytes(found.capacity), fit)]
    return tables.table("<a device's memory|size|share", rows)
