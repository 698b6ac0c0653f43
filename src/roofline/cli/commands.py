"""One function a command: options in, a call of the library, one of the outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.batches import best_batch
from roofline.analysis.estimates import Estimate
from roofline.analysis.estimates import estimate as predict
from roofline.analysis.provenance import trail
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.calibrate import calibrate
from roofline.cli.check import check
from roofline.cli.compare import compare
from roofline.cli.fuse import fuse as fuse_table
from roofline.cli.graph import graph as list_graph
from roofline.cli.measured import ops, sweep
from roofline.cli.output import note, show, write, write_csv, write_json
from roofline.cli.predict import predict as predict_rows
from roofline.cli.trace import trace as trace_file
from roofline.cli.train import print_step, train, training_step
from roofline.cli.validate import validate
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips as chip_names
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.graph import Graph

app = typer.Typer(
    name="roofline",
    help="Expected time, memory and bounds of machine-learning programs on chips.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one with every figure.")]


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        import roofline

        write(f"roofline {roofline.__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")


@app.command()
def chips(name: _Name = None, as_json: opt.AsJson = False) -> None:
    """List the chips, or show one with every figure and its source."""
    if name is None:
        found = [chip for one in chip_names() if (chip := _or_note(find_chip, one))]
        rows = [tables.chip_row(chip) for chip in found]
        return write_json(rows) if as_json else show(tables.chip_list(found))
    chip = find_chip(name)
    return write_json(chip.model_dump(mode="json")) if as_json else show(*tables.chip_sheet(chip))


@app.command()
def models(name: _Name = None, as_json: opt.AsJson = False) -> None:
    """List the models, or show one with every figure and its source."""
    from roofline.cli import catalogue

    if name is None:
        rows = [row for one in catalogue.names() if (row := _or_note(catalogue.row, one))]
        return write_json(rows) if as_json else show(tables.model_list(rows))
    record = catalogue.describe(name)
    return write_json(record) if as_json else show(*tables.model_sheet(record))


def _or_note(function: Any, name: str) -> Any:
    """The result, or a note that this entry of a list is broken."""
    try:
        return function(name)
    except RooflineError as error:
        return note(f"{name} is left out: {error}")


@app.command()
def estimate(
    model: opt.Model,
    chip: opt.Chips,
    batch: opt.Batches = None,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    mode: opt.RunMode = "eager",
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    activations: opt.Activations = None,
    fuse: opt.Fuse = None,
    prune: opt.Prune = None,
    tp: opt.Tensor = 1,
    pp: opt.Pipeline = 1,
    dp: opt.Copies = 1,
    zero: opt.Zero = 0,
    recompute: opt.Recompute = None,
    tf32: opt.TF32 = False,
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
) -> None:
    """Predict time, bound, memory and throughput."""
    opt.exclusive(json=as_json, csv=as_csv)
    if phase == "train":
        opt.not_inference(weights=weights, cache=cache, activations=activations, fuse=fuse, tf32=tf32, context=context)
        step = training_step(model, chip, batch, seq, mode=mode, prune=prune, tp=tp, pp=pp, dp=dp, zero=zero,
                             recompute=recompute, precision=dtype)  # fmt: skip
        return print_step(step, None, as_json, as_csv)
    opt.not_training(zero=zero, recompute=recompute)
    cluster = opt.of_cluster(chip) if "," not in chip else None
    graph = opt.program(model, phase, dtype, weights, cache, activations=activations, fuse=fuse, prune=prune, tp=tp,
                        pp=pp, on=cluster)  # fmt: skip
    where = opt.chips(chip)
    number = len(where) if isinstance(where, list) else 1
    sizes = opt.shared(opt.sizes(graph, batch, seq, context, number), dp, tp * pp, cluster)
    est = _predict(graph, where, sizes, mode, tf32)
    found = None if est.shape or not graph.history else trail(graph, where, mode=mode, **est.grid.values)  # type: ignore[arg-type]
    if as_csv:
        write_csv(est.records())
    elif as_json:
        history = {} if found is None else {"history": found.record()}
        write_json(est.records() if est.shape else {**est.records()[0], **history})
    else:
        show(*(tables.points(est) if est.shape else tables.point(est)))
        if found is not None:
            show("", tables.steps(found))


def _predict(graph: Graph, where: Any, sizes: dict[str, Any], mode: str, tf32: bool) -> Estimate:
    return predict(graph, where, mode=mode, tf32=tf32, **sizes)  # type: ignore[arg-type]


@app.command()
def batch(
    model: opt.Model,
    chip: opt.OneChip,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    memory: opt.Memory = None,
    latency: opt.Latency = None,
    mode: opt.RunMode = "eager",
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    activations: opt.Activations = None,
    fuse: opt.Fuse = None,
    prune: opt.Prune = None,
    tp: opt.Tensor = 1,
    pp: opt.Pipeline = 1,
    tf32: opt.TF32 = False,
    as_json: opt.AsJson = False,
) -> None:
    """Choose the best batch under limits of memory and latency."""
    opt.with_unit(memory, "--memory", "72GiB")
    opt.with_unit(latency, "--latency", "50ms")
    graph = opt.program(model, phase, dtype, weights, cache, activations=activations, fuse=fuse, prune=prune, tp=tp,
                        pp=pp, on=opt.of_cluster(chip))  # fmt: skip
    sizes = opt.single(opt.sizes(graph, None, seq, context), "a curve over the batch")
    sizes.pop("B", None)
    choice = best_batch(
        graph, opt.device(chip), memory_limit=memory, latency_limit=latency, mode=mode, tf32=tf32, **sizes  # type: ignore[arg-type]
    )  # fmt: skip
    return write_json(choice.record()) if as_json else show(*tables.choice(choice))


_Output = Annotated[Path, typer.Option("--output", "-o", help="A .png, .svg or .pdf.", show_default=False)]
_MeasuredHere = Annotated[
    str | None, typer.Option("--measured", metavar="TIME", help="A measured time to draw.", show_default=False)
]


@app.command()
def plot(
    model: opt.Model,
    chip: opt.OneChip,
    output: _Output,
    batch: opt.Batches = None,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    measured: _MeasuredHere = None,
    mode: opt.RunMode = "eager",
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    tf32: opt.TF32 = False,
) -> None:
    """Draw a roofline of one point, or a sweep over several batches."""
    graph, where = opt.program(model, phase, dtype, weights, cache), opt.device(chip)
    est = _predict(graph, where, opt.sizes(graph, batch, seq, context), mode, tf32)
    opt.with_unit(measured, "--measured", "41ms")
    picture = _sweep(est, measured) if est.shape else _roofline(est, measured)
    for text in picture.warnings:
        note(text)
    picture.save(output)
    kind = f"batch sweep ({est.shape[0]} batches)" if est.shape else "roofline"
    write(f"{output}: {kind} of {est.graph.name} on {est.chip.name}\n")


def _roofline(est: Estimate, measured: str | None) -> Any:
    from roofline.view.charts.plot import plot_roofline

    return plot_roofline(est, measured=measured)


def _sweep(est: Estimate, measured: str | None) -> Any:
    from roofline.view.charts.plot import plot_batch

    if measured is not None:
        raise UsageError("--measured belongs to one point; give -B one number")
    return plot_batch(est, memory_limit=est.chip.capacity)


app.command(name="check")(check)
app.command(name="sweep")(sweep)
app.command(name="ops")(ops)
app.command(name="predict")(predict_rows)
app.command(name="validate")(validate)
app.command(name="calibrate")(calibrate)
app.command(name="graph")(list_graph)
app.command(name="trace")(trace_file)
app.command(name="train")(train)
app.command(name="compare")(compare)
app.command(name="fuse")(fuse_table)
