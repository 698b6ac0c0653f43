"""Values of the wrong type, where Python's functions take paths, quantities, numbers and names."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutators import refused

import roofline as rl

WRONG: tuple[Any, ...] = (
    None, [], {}, 5, 3.5, True, "~nosuchuser/x", "~nosuchuser/x.toml", "a\0b", "x" * 5000, "\ud800", "/", "", ".",
    "\x1b[31m", b"x", object(), float("nan"), "1__0 GB", 10**400, "9" * 400, (1, 2), np.int8(5), "/none/x.toml",
)  # fmt: skip
DECODE = rl.model("gpt2", phase="decode", layers=1)
POINT = rl.estimate(DECODE, "l4", batch=1, context=8)
SWEEP = rl.estimate(DECODE, "l4", batch=[1, 2, 4], context=8)
AT = {"program": DECODE, "chip": "l4", "context": 8}
ROW = {"op": "gemm", "dtype": "bf16", "shape": '{"m": 64, "n": 64, "k": 64}', "time_us": 9}

#: A function, what it is called with, and what is replaced by something wrong.
CALLS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "estimate": (rl.estimate, {**AT, "batch": 1}, "program chip mode batch context reserve phase dtype"),
    "best_batch": (rl.best_batch, {**AT, "memory_limit": "2 GB"}, "memory_limit latency_limit reserve mode"),
    "check": (rl.check, {**AT, "batch": 1, "measured": "3 ms"}, "program chip measured trace mode"),
    "chip": (rl.chip, {"name": "l4"}, "name"), "cluster": (rl.cluster, {"name": "l4"}, "name"),
    "model": (rl.model, {"name": "gpt2"}, "name phase dtype weights cache"),
    "compare": (rl.compare, {"program": DECODE, "chips": ["l4"], "batch": 1, "context": 8}, "chips mode what_if"),
    "from_config": (rl.from_config, {"source": "x"}, "source"), "from_onnx": (rl.from_onnx, {"source": "x"}, "source"),
    "from_hlo": (rl.from_hlo, {"text": "x"}, "text"),
    "load_program": (rl.load_program, {"text": "gpt2"}, "text phase dtype"),
    "predict": (rl.predict, {"table": [ROW], "chip": "l4"}, "table chip regime"),
    "scaling": (rl.scaling, {**AT, "batch": 1}, "devices least_gain chip reserve"),
    "timeline": (rl.timeline, {**AT, "batch": 1}, "program chip streams prefetch overlap chunks mode host batch"),
    "vary": (rl.analysis.vary, {**AT, "batch": 1}, "program chip samples seed experts leave trips mode host batch"),
    "what_if": (rl.what_if, {"program": DECODE}, "prune weights tp ep pp fuse cluster"),
    "workload": (rl.workload, {"entries": [{"op": "relu", "n": 8}]}, "entries dtype name"),
    "launched": (rl.analysis.launched, {"estimate": POINT}, "estimate"),
    "collective": (rl.analysis.collective, {"chip": "dgx-h100", "op": "all_reduce", "size": "1 MB", "devices": 8},
                   "chip op size devices algorithm stride"),
    "break_even": (rl.diagnosis.break_even, {"compile_s": "3 s", "before_s": "4 ms", "after_s": "3 ms"},
                   "compile_s before_s after_s first_before first_after"),
    "check_ops": (rl.diagnosis.check_ops, {"rows_or_path": [ROW], "chip": "l4"}, "rows_or_path chip column regime"),
    "check_sweep": (rl.diagnosis.check_sweep, {"batches": [1, 2, 4], "times": ["5 ms"] * 3}, "batches times"),
    "explain_oom": (rl.diagnosis.explain_oom, {"message_or_bytes": "1 GB", "heads": 8, "seq": 128},
                    "message_or_bytes dtype"),
    "read_sweep": (rl.diagnosis.read_sweep, {"path": "x"}, "path"),
    "trace_report": (rl.diagnosis.trace_report, {"trace": "x"}, "trace chip"),
    "kv_cache": (rl.serving.kv_cache, {"program": "gpt2", "context": 8}, "context batch block shared_prefix cache"),
    "request": (rl.serving.request, {"program": "gpt2", "chip": "l4", "prompt": 8, "new_tokens": 8},
                "prompt new_tokens batch mode reserve"),
    "largest_context": (rl.serving.largest_context, {"program": "gpt2", "chip": "l4"}, "memory_limit reserve batch"),
    "train": (rl.training.train, {"program": "gpt2", "chip": "l4", "batch": 8, "seq": 8},
              "batch micro_batch tp pp dp ep zero recompute optimizer precision reserve"),
    "read_trace": (rl.traces.read_trace, {"path": "x"}, "path"),
    "plot_batch": (rl.charts.plot_batch, {"estimate": SWEEP}, "estimate memory_limit latency_limit measured"),
    "plot": (rl.charts.plot, {"result": POINT}, "result chart"),
    "charts_of": (lambda result: rl.charts.charts_of(result), {"result": POINT}, "result"),
    "plot_memory": (rl.charts.plot_memory, {"of": POINT}, "of"),
    "plot_memory_over_time": (rl.charts.plot_memory_over_time, {"estimate": POINT}, "estimate"),
    "plot_layers": (rl.charts.plot_layers, {"estimate": POINT}, "estimate"),
    "plot_timeline": (rl.charts.plot_timeline, {"of": POINT}, "of layer"),
    "plot_pareto": (rl.charts.plot_pareto, {"of": POINT}, "of price"),
    "plot_predictions": (rl.charts.plot_predictions, {"of": [ROW]}, "of"),
    **{name: (getattr(rl.charts, name), {what: POINT}, what) for name, what in (
        ("plot_verdict", "verdict"), ("plot_comparison", "comparison"), ("plot_elasticity", "comparison"),
        ("plot_scaling", "scaling"), ("plot_request", "request"), ("plot_step", "step"), ("plot_passes", "history"),
        ("plot_sweep", "sweep"))},
    "plot_roofline": (rl.charts.plot_roofline, {"what": POINT}, "what measured precisions levels"),
    "Chip.save": (lambda path: rl.chip("l4").save(path), {"path": "x"}, "path"),
    "Chart.to_csv": (lambda path: rl.charts.plot_roofline(POINT).to_csv(path), {"path": "x"}, "path"),
    "Chart.save": (lambda path: rl.charts.plot_roofline(POINT).save(path), {"path": "x"}, "path"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_the_wrong_type_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    function, options, names = CALLS[name]
    rng = random.Random(name)
    for option in names.split():
        for value in rng.sample(WRONG, 6):
            if option in ("memory_limit", "latency_limit") and value in (None, 5):
                continue  # which is right, and takes its time
            refused(partial(function, **{**options, option: value}))
