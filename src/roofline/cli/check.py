"""``roofline check``: does a measured time make sense, and if not, what was it lost to?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.training.program import step_program
from roofline.cli import check_tables
from roofline.cli import options as opt
from roofline.cli.output import show, write_csv, write_json
from roofline.cli.trace import Html, read
from roofline.cli.train import training_step
from roofline.diagnosis import Verdict, trace_report
from roofline.diagnosis import check as judge
from roofline.ir.csvfile import whole_file
from roofline.ir.errors import UsageError
from roofline.traces.events import Trace

_Measured = Annotated[str | None, typer.Option(
    "--measured", metavar="TIME", help="The measured time of one run, such as 41ms; the trace's when absent.",
    show_default=False)]  # fmt: skip
_Trace = Annotated[Path | None, typer.Option(
    "--trace", metavar="FILE", help="A profiler's file of the run; the formats are those of roofline trace.",
    show_default=False)]  # fmt: skip


def check(
    model: opt.Model,
    chip: opt.OneChip,
    measured: _Measured = None,
    trace: _Trace = None,
    batch: opt.Batch = None,
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
    html: Html = None,
) -> None:
    """Judge a measured time, with causes and advice; exit with 1 where it is not as expected."""
    opt.exclusive(json=as_json, csv=as_csv)
    if measured is None and trace is None:
        raise UsageError("check needs --measured, such as --measured 41ms, or --trace FILE, or both")
    if phase == "train":
        opt.not_inference(weights=weights, cache=cache, activations=activations, fuse=fuse, tf32=tf32, context=context)
        step = training_step(model, chip, batch, seq, mode=mode, prune=prune, tp=tp, pp=pp, dp=dp, zero=zero,
                             recompute=recompute, precision=dtype)  # fmt: skip
        graph, sizes = step_program(step), dict[str, Any]()
    else:
        opt.not_training(zero=zero, recompute=recompute)
        cluster = opt.of_cluster(chip)
        graph = opt.program(model, phase, dtype, weights, cache, activations=activations, fuse=fuse, prune=prune,
                            tp=tp, pp=pp, on=cluster)  # fmt: skip
        sizes = opt.single(opt.sizes(graph, batch, seq, context), "a measured time")
        sizes = opt.shared(sizes, dp, tp * pp, cluster)
    opt.with_unit(measured, "--measured", "41ms")
    ran = read(trace) if trace is not None else None
    products = tf32 or dtype == "tf32"
    found = judge(graph, opt.device(chip), measured, trace=ran, mode=mode, tf32=products, **sizes)  # type: ignore[arg-type]
    if html is not None:
        _write_page(found, ran, html)
    _print(found, as_json, as_csv)
    if not found.ok:
        raise typer.Exit(1)


def _write_page(found: Verdict, ran: Trace | None, html: Path) -> None:
    from roofline.view.pages.page import verdict_page

    report = trace_report(ran, found.estimate.chip) if ran is not None else None
    with whole_file(html) as stream:
        stream.write(verdict_page(found, report))


def _print(found: Verdict, as_json: bool, as_csv: bool) -> None:
    if as_json:
        write_json(found.record())
    elif as_csv:
        write_csv(found.csv_rows())
    else:
        show(*check_tables.verdict(found))
