"""``roofline train``: a step of training on one device or many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from roofline.analysis.training import TrainingStep
from roofline.analysis.training import train as predict
from roofline.analysis.whatif import what_if
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command, completion
from roofline.cli.output import note
from roofline.hardware.cluster import Cluster
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si
from roofline.passes.training.mixed_precision import PRECISIONS

_Where = Annotated[str, opt.argument(
    "CHIP", "A chip, or a cluster such as dgx-h100 where a group is larger than a node.", opt.complete_chips)
]  # fmt: skip
_Batch = Annotated[str, opt.option("--batch -B N", "Sequences or images of a step, in all.", "Sizes")]
_Sequence = Annotated[str | None, opt.option("--seq -S N", "Length of a sequence.", "Sizes")]
_Positions = Annotated[bool, opt.option(
    "--sp", "Devices that share layers share the positions of norms and residuals too.", "Parallelism")]  # fmt: skip
_Interleave = Annotated[int, opt.option(
    "--interleave N", "Chunks of layers on each device of a pipeline.", "Parallelism", default="1")]  # fmt: skip
_MicroBatch = Annotated[int | None, opt.option(
    "--micro-batch N", "What a device runs at once.", "Sizes", default="its share; 1 in a pipeline")]  # fmt: skip
_Optimizer = Annotated[str, opt.option(
    "--optimizer NAME", "sgd, momentum, adamw, adafactor or adam8bit.", default="adamw", complete=("sgd", "momentum",
    "adamw", "adafactor", "adam8bit"))]  # fmt: skip
_Precision = Annotated[str | None, opt.option(
    "--precision --dtype NAME", "fp32, bf16, fp16, amp-bf16, amp-fp16, mixed-bf16 or mixed-fp16.",
    complete=completion(lambda: PRECISIONS))]  # fmt: skip
_Tokens = Annotated[str | None, opt.option(
    "--tokens N", "Time to train on so many tokens or images, such as 300e9 or 1.4T.")]  # fmt: skip
_NoOverlap = Annotated[bool, opt.option("--no-overlap", "Exchange gradients after the backward, not beside it.")]
_OverlapExperts = Annotated[bool, opt.option(
    "--overlap-experts", "Send tokens to experts beside another micro-batch.", "Parallelism")]  # fmt: skip
_Accumulation = Annotated[str, opt.option(
    "--accumulation WAY", "Add gradients of micro-batches up in their matmuls (fused) or after (separate).",
    default="fused", complete=("fused", "separate"))]  # fmt: skip

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
    number = float(match[1]) * _TIMES[match[2]] if match is not None else 0.0
    if not 1 <= number <= _MOST:
        raise UsageError(f"{option} {text[:60]!r}: expected a number from 1 to 1e21, such as 300e9, 300B or 1.4T")
    return number


@command(PREDICT, "roofline train gpt2 h100-sxm -B 8 -S 1024 --precision amp-bf16 --tokens 10B")
def train(
    model: opt.Model,
    chip: _Where,
    batch: _Batch,
    output: opt.ChartOptions,
    seq: _Sequence = None,
    micro_batch: _MicroBatch = None,
    tp: opt.Tensor = 1,
    sp: _Positions = False,
    pp: opt.Pipeline = 1,
    interleave: _Interleave = 1,
    copies: opt.CopyOptions = opt.CopyOptions(),  # noqa: B008
    ep: opt.Experts = 1,
    optimizer: _Optimizer = "adamw",
    precision: _Precision = None,
    prune: opt.Prune = None,
    layout: opt.Layout = None,
    no_overlap: _NoOverlap = False,
    overlap_experts: _OverlapExperts = False,
    accumulation: _Accumulation = "fused",
    tokens: _Tokens = None,
    mode: opt.Mode = "eager",
    tf32: opt.Tf32 = None,
    host: opt.Host = None,
    what_if: opt.ChipOptions = opt.ChipOptions(),  # noqa: B008
) -> None:
    """Predict a step of training: time and memory by part, MFU, time for so many tokens."""
    items = count_of(tokens, "--tokens") if tokens is not None else None
    sizes = opt.SizeOptions(batch=batch, seq=seq)
    where = opt.RunOptions(host=host, settings=what_if.settings).cluster(chip)
    step = training_step(
        model, where, sizes, copies, prune=prune, images=layout, micro_batch=micro_batch, tp=tp, sp=sp, pp=pp,
        interleave=interleave, ep=ep, optimizer=optimizer, precision=precision, overlap=not no_overlap,
        overlap_experts=overlap_experts, accumulation=accumulation,
        mode=mode, tf32=tf32,
    )  # fmt: skip
    show_step(step, output, items)


def step_of(
    model: str, chip: str, program: opt.ProgramOptions, sizes: opt.SizeOptions, copies: opt.CopyOptions,
    run: opt.RunOptions,
) -> TrainingStep:  # fmt: skip
    """Return the step of training that options of ``estimate`` and ``check`` describe."""
    program.refuse_inference(regime=run.regime, context=sizes.context)
    return training_step(
        model, run.cluster(chip), sizes, copies, prune=program.prune, images=program.layout, tp=program.tp,
        pp=program.pp, ep=program.ep, mode=run.mode, precision=program.dtype, tf32=run.tf32,
    )  # fmt: skip


def training_step(
    model: str,
    chip: str | Cluster,
    sizes: opt.SizeOptions,
    copies: opt.CopyOptions,
    *,
    prune: str | None,
    images: str | None,
    **layout: Any,
) -> TrainingStep:
    """Return a step of training, with its notes said."""
    graph = what_if(opt.trainable(model), prune=prune, layout=images)
    values = sizes.point(graph, "a step of training")
    step = predict(
        graph, chip, batch=values.pop("B", 1), dp=copies.dp, zero=copies.zero,
        recompute="none" if copies.recompute is None else copies.recompute, **layout, **values,
    )  # fmt: skip
    for text in step.notes:
        note(f"{step.name}: {text}")
    return step


def show_step(step: TrainingStep, output: opt.ChartOptions, items: float | None = None, at: str = "") -> None:
    """Print a step, and how long so many tokens take; ``at`` says which command has the options that would do."""
    more: dict[str, Any] = {} if items is None else {"items": items, "time_for_items_s": step.seconds_for(items)}
    output.write(step, _sheet(step, items, at), **more, **tables.would_fit_record(step))


def _sheet(step: TrainingStep, items: float | None, at: str) -> Iterator[Any]:
    plan = step.plan
    parts = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep, "interleave": plan.interleave,
             "zero": plan.zero}  # fmt: skip
    layout = [*(f"{name}={value}" for name, value in parts.items() if value > (name != "zero")), *["sp"] * plan.sp]
    yield tables.heading(step)
    yield tables.facts([
        ("time", tables.time_and_range(step)),
        ("layout", ", ".join(layout)),
        ("runs", f"{plan.micro_batches} x {plan.micro_batch}, {plan.precision}{', tf32' * bool(plan.tf32)}, "
                 f"{plan.optimizer}, recompute {plan.recompute}"),
        ("MFU, HFU", f"{tables.percent(step.mfu)}, {tables.percent(step.hfu)}"),
        ("throughput", tables.rate(step.throughput, step.item)),
        ("work", f"{format_si(step.model_flops, 'FLOP')} by the model, "
                 f"{format_si(step.hardware_flops, 'FLOP')} run"),
        (format_si(items, step.item) if items else "", f"{step.days(items):.3g} days" if items else ""),
    ])  # fmt: skip
    rows = [(row["part"].replace("_", " "), tables.time_text(row["time_s"]), tables.percent(row["share"]))
            for row in step.records() if row["time_s"] > 0]  # fmt: skip
    yield from ("", tables.table("<time per device|time|share", [*rows, ("total", tables.time_text(step.time), "")]))
    memory = {name: value for name, value in step.memory.parts().items() if float(value) > 0}
    yield from ("", tables.memory_table(memory, step.capacity, step.chip.name, "memory per device"))
    yield from tables.would_fit_facts(step, at)
