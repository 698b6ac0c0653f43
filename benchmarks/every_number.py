"""Every number that the product gives, in one file, and what differs between two such files.

    python benchmarks/every_number.py record FILE.json [--only counts,estimates,...]
    python benchmarks/every_number.py compare OLD.json NEW.json [--only counts,...] [--numbers]

For changes that must not change a number: record before, record after, compare. The sections are the keys of
:data:`SECTIONS`; each has a value for every path, a number with nine digits or a text. ``compare`` prints each
difference and a summary of each section, and exits with 1 where there is any; ``--numbers`` leaves texts out. What the
library refuses is recorded by its message. Needs torch, transformers, onnx, onnxscript and jax for ``imports``, and
nothing else beyond the library; takes some five minutes on one core.

The file is not called ``numbers.py``: beside the other scripts it would hide Python's own module of that name.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the library of this tree, whichever is installed
MEASURED = ROOT / "measurements"
PLANTED = ROOT / "tests" / "planted"
SERVING = ROOT.parent / "shared" / "measurements" / "public" / "serving.csv"

Value = str | int | float | bool | None
Record = dict[str, dict[str, Value]]
Pairs = Iterator[tuple[str, Any]]
Sizes = Mapping[str, Any]


# === the library, in one place ========================================================================================
#
# All that is asked of the library goes through this part: where names live, what keywords and results are called. When
# they move, adapt this part alone; sections below know programs, chips and sizes by this file's own words.

#: Where a public name may live below ``roofline``; the first place that has it counts.
SPACES = ("", "passes.", "serving.", "training.", "diagnosis.", "analysis.", "measurement.", "charts.", "ops.",
          "traces.", "errors.")  # fmt: skip
#: Names that are not public, and those that were renamed.
HOMES: dict[str, tuple[str, ...]] = {
    "KINDS": ("programs.huggingface.KINDS", "importers.huggingface.KINDS"),
    "COMPOSITES": ("programs.huggingface.COMPOSITES", "importers.huggingface.COMPOSITES"),
    "main": ("cli.main",),
    "retype": ("passes.cast", "passes.retype", "retype"),
    "widen": ("passes.dequantize", "passes.widen", "widen"),
    "unmask": ("passes.drop_mask", "passes.unmask", "unmask"),
    "trail": ("analysis.pass_history", "analysis.trail", "trail"),
}
#: Keywords that were renamed, by function: ours and the library's, as in ``{"train": {"batch": "global_batch"}}``.
RENAMED: dict[str, dict[str, str]] = {
    "widen": {"dequantize": "way"},
    "best_batch": {"memory": "memory_limit", "latency": "latency_limit"},
    "largest_context": {"memory": "memory_limit"},
    "largest_concurrency": {"memory": "memory_limit"},
}
#: Keys of records that were renamed: the library's and ours.
KEYS: dict[str, str] = {}
#: Keywords of the sizes B (batch), S (sequence) and C (context).
KEYWORDS = {"B": "B", "S": "S", "C": "C"}
#: Any other size of a program.
OTHER_SIZE = 64
#: What is asked of an estimate: our word and the library's.
ESTIMATED = {"time": "time", "low": "low", "high": "high", "floor": "floor", "bound": "bound"}
MORE_ESTIMATED = {"mfu": "mfu", "mbu": "mbu", "intensity": "intensity", "throughput": "throughput",
                  "calibrated": "calibrated", "not_modelled": "not_modelled", "fits": "fits"}  # fmt: skip
#: What is asked of counts.
COUNTED = {"flops": "flops", "vector_flops": "vector_flops", "bytes": "bytes", "launches": "launches"}
MODES = ("eager", "graph", "compiled")
PHASES = ("forward", "prefill", "decode", "train")
#: What a prediction adds to a row.
PREDICTED = ("predicted_us", "low_us", "high_us", "floor_us", "bound", "flops", "bytes", "memory_bytes",
             "activation_bytes", "calibrated", "error")  # fmt: skip


@cache
def public(name: str) -> Any:
    """Find what the library calls by this name, wherever it lives."""
    for place in HOMES.get(name, tuple(f"{space}{name}" for space in SPACES)):
        thing: Any = importlib.import_module("roofline")
        try:
            for part in place.split("."):
                thing = member(thing, part)
        except (ImportError, AttributeError):
            continue
        if not isinstance(thing, ModuleType):
            return thing
    raise AttributeError(f"roofline has no {name!r}; say in HOMES where it lives")


def member(thing: Any, name: str) -> Any:
    """Get an attribute or a submodule."""
    try:
        return getattr(thing, name)
    except AttributeError:
        return importlib.import_module(f"{thing.__name__}.{name}")


def call(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of the library, under its own keywords."""
    renamed = RENAMED.get(name, {})
    return public(name)(*args, **{renamed.get(key, key): value for key, value in options.items()})


@cache
def _model(name: str, phase: str | None, options: tuple[tuple[str, Any], ...]) -> Any:
    return call("model", name, phase=phase, **dict(options))


def model(name: str, phase: str | None = None, **options: Any) -> Any:
    """A shipped model, built once."""
    return _model(name, phase, tuple(options.items()))


def program(entries: Sequence[Mapping[str, Any]], dtype: str, name: str = "work") -> Any:
    """A program of operators by their words."""
    return call("workload", entries, dtype, name)


def given(graph: Any, at: Sizes) -> dict[str, Any]:
    """Keywords for all sizes of a program."""
    return {KEYWORDS.get(name, name): at.get(name, OTHER_SIZE) for name in sorted(graph.symbols)}


def counted(graph: Any, at: Sizes) -> dict[str, Any]:
    """Nodes, parameters and counts of a program."""
    found = call("count", graph, **given(graph, at))
    numbers = {ours: getattr(found, theirs) for ours, theirs in COUNTED.items()}
    return {"nodes": len(graph.nodes), "parameters": graph.parameters, **numbers}


def operators(graph: Any) -> dict[str, int]:
    """How many nodes each operator has."""
    return dict(sorted(Counter(node.op for node in graph.nodes).items()))


def estimated(graph: Any, chip: str, at: Sizes, mode: str = "eager", more: bool = False, **options: Any) -> Any:
    """Time, range, floor and bound; with ``more`` also ratios and provenance."""
    found = call("estimate", graph, chip, mode=mode, **options, **given(graph, at))
    return {ours: getattr(found, theirs) for ours, theirs in (ESTIMATED | (MORE_ESTIMATED if more else {})).items()}


def memory(graph: Any, at: Sizes, chip: str = "h100-sxm") -> dict[str, Any]:
    """Bytes by part."""
    return dict(call("estimate", graph, chip, **given(graph, at)).memory.parts())


def answer(name: str, *args: Any, sizes: Sizes | None = None, **options: Any) -> Any:
    """The plain data of what a function of the library answers; text where it has none."""
    keywords = {KEYWORDS[size]: value for size, value in (sizes or {}).items()}
    found = call(name, *args, **options, **keywords)
    if hasattr(found, "record"):
        return found.record()
    if hasattr(found, "records"):
        return found.records()
    return {each.name: getattr(found, each.name) for each in fields(found)} if is_dataclass(found) else str(found)


def predicted(rows: Any, chip: str, **options: Any) -> list[dict[str, Any]]:
    """What a prediction adds to each row."""
    found = call("predict", rows, chip, **options)
    return [{name: row[name] for name in PREDICTED} for row in found.to_dict("records")]


def applied(graph: Any, steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    """A program after some passes, or several programs."""
    for name, options in steps:
        graph = call(name, graph, **options)
    return graph


def trail(graph: Any, at: Sizes) -> Any:
    """What each pass did to a program."""
    return call("trail", graph, "h100-sxm", mode="graph", **given(graph, at)).record()


def saved(graph: Any, at: Sizes) -> dict[str, Any]:
    """Bytes that a program keeps for its backward, by layer."""
    both = call("backward", graph)
    return dict(call("saved", both, **given(both, at)))


def kernels(graph: Any, chip: str, at: Sizes) -> list[dict[str, Any]]:
    """A row a distinct kernel."""
    return list(call("estimate", graph, chip, **given(graph, at)).kernel_rows())


def verdict(found: Any) -> dict[str, Any]:
    """The verdict of a check: ratios, parts that add up, causes and advice by name."""
    bound = found.lower_bound if hasattr(found, "lower_bound") else found.impossible_below
    own = {"verdict": found.verdict, "ratio": found.ratio, "expected_s": found.estimate.time,
           "impossible_below_s": bound, "notes": found.notes}  # fmt: skip
    causes = {cause.label: cause.share for cause in found.causes}
    advice = {change.change.replace("matmuls", "products"): change.saves_s for change in found.advice}
    return {**own, "parts": dict(found.waterfall), "causes": causes, "advice": advice}


def notes(graph: Any) -> list[str]:
    """What passes and importers remark."""
    return list(graph.info.get("notes", ()) if isinstance(graph.info, Mapping) else graph.info.notes)


def config_kinds() -> list[str]:
    """Every ``model_type`` that ``from_config`` knows."""
    return [*public("KINDS"), *public("COMPOSITES")]


def command(*words: str) -> Any:
    """What the command line prints, as data where it is JSON, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call("main", list(words))
    text = out.getvalue()
    return {"code": code, "out": json.loads(text) if "--json" in words and text else text.splitlines()}


def refused(error: Exception) -> str:
    """Why the library refused; anything else that went wrong is told apart, and on the screen."""
    if isinstance(error, public("RooflineError")):
        return str(error)
    what = f"{type(error).__name__}: {error}"
    warn(f"  not a refusal: {what[:200]}")
    return what


# === plain values =====================================================================================================


def attempt(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """An answer, or why there is none."""
    try:
        return ask(*args, **options)
    except Exception as error:
        return {"error": refused(error)}


def value_of(thing: Any) -> Value:
    """A plain value: floats with nine digits, numbers of numpy as Python's, paths below the repository's root."""
    thing = thing.item() if hasattr(thing, "item") and not getattr(thing, "shape", ()) else thing
    if thing is None or isinstance(thing, bool | int):
        return thing
    if isinstance(thing, float):
        return float(f"{thing:.9g}") if math.isfinite(thing) else str(thing)
    return str(thing).replace(str(ROOT), ".")


def flat(path: str, thing: Any) -> Iterator[tuple[str, Value]]:
    """Every plain value below a path."""
    if hasattr(thing, "tolist"):
        thing = thing.tolist()
    if isinstance(thing, Mapping):
        for key, inner in thing.items():
            yield from flat(f"{path}/{KEYS.get(key, key)}", inner)
    elif isinstance(thing, list | tuple):
        for at, inner in enumerate(thing):
            yield from flat(f"{path}/{at}", inner)
    else:
        yield path, value_of(thing)


def say(text: str) -> None:
    """Progress, beside the output."""
    print(text, file=sys.stderr, flush=True)


@cache
def warn(text: str) -> None:
    """The same, but each text once."""
    say(text)


def rows_of(path: Path, every: int = 1) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))[::every]


# === models and chips =================================================================================================

#: Two points, small, neither a multiple of a tile in every size.
POINTS: dict[str, Sizes] = {"small": {"B": 1, "S": 17, "C": 33}, "larger": {"B": 4, "S": 128, "C": 256}}
CHIPS = ("h100-sxm", "a100-80gb-sxm", "tpu-v5p", "xeon-8480", "epyc-9654")
WORK: list[dict[str, Any]] = [
    {"op": "gemm", "m": 1000, "n": 4096, "k": 1024},
    {"op": "attention", "batch": 2, "heads": 16, "kv_heads": 4, "q_len": 1024, "kv_len": 1024, "head_dim": 64},
    {"op": "elementwise", "n": 2**22, "inputs": 2},
]


def counts() -> Pairs:
    """All shipped models in all phases: counts and memory at two points."""
    for name in call("models"):
        for phase in PHASES:
            path = f"{name}/{phase}"
            graph = attempt(model, name, phase)
            if isinstance(graph, dict):
                yield path, graph
                continue
            for label, at in POINTS.items():
                yield f"{path}/{label}", attempt(counted, graph, at)
                yield f"{path}/{label}/memory", attempt(memory, graph, at)


def estimates() -> Pairs:
    """All shipped models on chips of each sort, in each mode."""
    for name in call("models"):
        for phase in (None, "decode"):
            graph = attempt(model, name, phase)
            if isinstance(graph, dict):
                continue  # no such phase: told among the counts
            for chip in CHIPS:
                for mode in MODES:
                    path = f"{name}/{phase or 'default'}/{chip}/{mode}"
                    yield path, attempt(estimated, graph, chip, POINTS["larger"], mode)


def chips() -> Pairs:
    """One program on all shipped chips, in several formats."""
    for dtype in ("bf16", "fp16", "fp32", "tf32", "fp8", "int8"):
        graph = attempt(program, WORK, dtype)
        if isinstance(graph, dict):
            yield dtype, graph
            continue
        for chip in call("chips"):
            for mode in MODES:
                found = attempt(estimated, graph, chip, {}, mode, more=True, tf32=dtype == "tf32")
                yield f"{dtype}/{chip}/{mode}", found


# === measurements =====================================================================================================

#: Shipped rows by file, of which every so many is predicted, and how.
PREDICTIONS: list[tuple[str, int, dict[str, Any]]] = [
    ("ops.csv", 5, {}),
    ("ops.csv", 20, {"calibration": False}),
    ("ops.csv", 20, {"regime": "program"}),
    ("ops_extra.csv", 5, {}),
    ("ops_warm.csv", 4, {"regime": "warm"}),
    ("serving_stack.csv", 10, {"regime": "warm"}),
    ("models.csv", 1, {}),
    ("training_steps.csv", 1, {}),
]


def validate() -> Pairs:
    """Errors by class for every chip with measurements."""
    for folder in sorted(path for path in MEASURED.iterdir() if path.is_dir()):
        yield folder.name, attempt(answer, "validate", chip=folder.name)


def predict() -> Pairs:
    """Predictions of shipped rows."""
    for name, every, options in PREDICTIONS:
        rows = rows_of(MEASURED / "h100-sxm" / name, every)
        words = " ".join(map(str, options.values()))
        yield f"{name} {words}".strip(), attempt(predicted, rows, "h100-sxm", **options)


def planted() -> Pairs:
    """The verdict of each planted program, with its trace and without."""
    import planted_table

    for group in planted_table.CHIPS:
        for one in planted_table.read(group):
            for with_trace in (False, True):
                if not with_trace or one.trace.is_file():
                    path = f"{group}/{one.case}/{'with' if with_trace else 'without'} trace"
                    yield path, attempt(_judged, one, with_trace, planted_table.top)


def _judged(one: Any, with_trace: bool, top: Callable[[Any], str]) -> dict[str, Any]:
    found = one.judged(with_trace)
    return {"label": top(found), **verdict(found)}


# === importers ========================================================================================================

CONFIG_CLASSES = ("LlamaConfig", "MixtralConfig", "BertConfig", "GPT2Config", "T5Config", "ViTConfig", "MambaConfig")


def imports() -> Pairs:
    """Programs of PyTorch, ONNX and JAX, and every sort of Hugging Face config with its defaults."""
    yield from _configs()
    with contextlib.redirect_stdout(io.StringIO()):
        yield from _frameworks()


def _configs() -> Pairs:
    for kind in config_kinds():
        for phase in (None, "decode", "train"):
            options = {"phase": phase} if phase else {}
            yield f"config/{kind}/{phase or 'default'}", attempt(_configured, {"model_type": kind}, **options)


def _frameworks() -> Pairs:
    import import_table
    import torch
    import transformers

    name = ""
    for at, (title, source, *_, build) in enumerate(import_table.ROWS):
        name = title or name
        torch.manual_seed(0)
        yield f"{at} {name}/{source}", attempt(lambda make=build: _imported(make()))
    for each in CONFIG_CLASSES:
        yield f"transformers/{each}", attempt(lambda kind=each: _configured(getattr(transformers, kind)()))
    yield "onnx/mlp", attempt(lambda: _imported(_onnx_mlp()))
    yield "jax/gradient of an mlp", attempt(lambda: _imported(_jax_gradient()))
    yield from _inductor()


def _inductor() -> Pairs:
    """Small programs with the kernels that torch.compile would make."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    import torch_programs

    programs = {"classifier": (torch_programs.Classifier(), torch.zeros(8, 16, 32)),
                "convnet": (torch_programs.ConvNet(), torch.zeros(2, 3, 64, 64))}  # fmt: skip
    for name, (module, x) in programs.items():
        for policy in ("eager", "chains", "inductor"):
            yield f"torch/{name}/{policy}", attempt(_captured, module, x, policy)


def _configured(config: Any, **options: Any) -> dict[str, Any]:
    return _imported(call("from_config", config, **options))


def _captured(module: Any, x: Any, policy: str) -> dict[str, Any]:
    return _imported(call("fuse", call("from_torch", module.eval(), x), policy))


def _imported(graph: Any) -> dict[str, Any]:
    return {**counted(graph, POINTS["larger"]), "ops": operators(graph), "notes": notes(graph)}


def _onnx_mlp() -> Any:
    """Two products with an activation between, batch open."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in "xy")
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [64, 64], [0.5 + at] * 4096) for at, name in enumerate("uv")]
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    made = helper.make_model(helper.make_graph(nodes, "mlp", [x], [y], weights))
    return call("from_onnx", made.SerializeToString())


def _jax_gradient() -> Any:
    """The gradient of a small network's loss."""
    import jax

    def loss(weights: Any, x: Any) -> Any:
        return (jax.nn.relu(x @ weights["up"]) @ weights["down"]).sum()

    shapes = {"up": jax.ShapeDtypeStruct((64, 256), "float32"), "down": jax.ShapeDtypeStruct((256, 64), "float32")}
    return call("from_jax", jax.grad(loss), shapes, jax.ShapeDtypeStruct((32, 64), "float32"))


# === tables ===========================================================================================================


def tables() -> Pairs:
    """What the scripts beside this one print; the table of deployments only where its file is."""
    scripts: dict[str, list[str]] = {"megatron_table": [], "whatif_tables": []}
    if SERVING.is_file():
        scripts["serving_table"] = [str(SERVING)]
    else:
        say(f"  no table of deployments: {SERVING.name} is absent")
    for name, words in scripts.items():
        yield name, attempt(_printed, name, words)


def _printed(name: str, words: list[str]) -> list[str]:
    script, out = importlib.import_module(name), io.StringIO()
    before, sys.argv = sys.argv, [name, *words]
    try:
        with contextlib.redirect_stdout(out):
            script.main()
    finally:
        sys.argv = before
    return out.getvalue().splitlines()


# === passes ===========================================================================================================

#: Programs that passes are applied to: model, phase, options.
PASSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama decode": ("llama-3-8b", "decode", {"layers": 4}),
    "llama train": ("llama-3-8b", "train", {"layers": 2}),
    "gpt2 train": ("gpt2", "train", {"layers": 2, "attention": "naive"}),
    "bert forward": ("bert-base-uncased", "forward", {"layers": 2}),
    "mixtral prefill": ("mixtral-8x7b", "prefill", {"layers": 2}),
    "deepseek decode": ("deepseek-v2-lite", "decode", {"layers": 2}),
    "resnet forward": ("resnet50", "forward", {}),
    "vit train": ("vit-b-16", "train", {"layers": 2}),
}
POLICIES = ("eager", "pointwise", "chains", "inductor", "flash", "ideal")
#: One pass with each of these options.
ALONE: dict[str, list[dict[str, Any]]] = {
    "fuse": [{"policy": policy} for policy in POLICIES],
    "inductor": [{}],
    "unfuse": [{}],
    "retype": [{"dtype": "fp16"}, {"weights": "int8"}, {"cache": "fp8"}, {"activations": "bf16"}, {"compute": "fp8"}],
    "unmask": [{}],
    "autocast": [{}, {"dtype": "fp16"}],
    "fold_batchnorm": [{}, {"join": True}],
    "clean": [{}],
    "eliminate_dead": [{}],
    "fold_constants": [{}],
    "merge_equal": [{}],
    "merge_linears": [{}],
    "megatron_kernels": [{}],
    "pipelined": [{"pp": 2}, {"pp": 2, "nodes": 2}],
    "stages": [{"pp": 2}],
    "stage": [{"pp": 2, "index": 1}],
    "optimizer": [{"kind": kind} for kind in ("sgd", "momentum", "adamw", "adafactor", "adam8bit")],
    "prune": [{"heads": 0.25}, {"channels": 0.5}, {"hidden": 0.25}, {"layers": 0.5}, {"layers": [0]},
              {"sparsity": "2:4"}, {"sparsity": 0.5}, {"channels": 0.3, "unit": 64}],
    "quantize": [*({"weights": name} for name in ("int8", "int4", "int4-g128", "fp8", "mxfp4", "nvfp4")),
                 *({"activations": name} for name in ("int8", "fp8", "mxfp8", "nvfp4")),
                 *({"cache": name} for name in ("int8", "int4", "fp8")),
                 {"weights": "int4", "dequantize": "separate"}, {"weights": "int4", "dequantize": "tinygemm"},
                 {"activations": "fp8", "scales": "static"}, {"weights": {"*": "int4", "*.down*": "int8"}}],
    "shard": [{"tp": 2}, {"tp": 2, "sp": True}, {"ep": 2}, {"tp": 2, "ep": 2}, {"tp": 2, "vocab": False},
              {"tp": 2, "gather_logits": False}],
    "backward": [*({"recompute": how} for how in ("none", "selective", "full")), {"gradients": "fp32"}],
    "training_graph": [{}, {"precision": "amp-bf16"}, {"precision": "mixed-bf16", "recompute": "full"},
                       {"micro_batches": 4, "clip": True}, {"optimizer": None}],
    "replace_op": [{"old": "gelu", "new": "relu"}, {"old": "silu", "new": "relu"}],
    "rewrite": [{"pattern": name} for name in ("gelu_tanh", "silu", "square", "swiglu")],
    "distill": [{"layers": 1}],
    "what_if": [{"prune": "heads=0.25", "weights": "int4", "tp": 2, "fuse": "chains"}, {"pp": 2, "cache": "fp8"}],
}  # fmt: skip
#: Several passes, one after the other.
TOGETHER: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "backward, adamw": [("backward", {}), ("optimizer", {"kind": "adamw", "clip": True})],
    "retype, backward, master": [("retype", {"dtype": "bf16"}), ("backward", {}), ("optimizer", {"master": True})],
    "autocast, backward": [("autocast", {}), ("backward", {})],
    "megatron, backward": [("megatron_kernels", {}), ("backward", {"recompute": "selective"})],
    "backward, accumulate": [("backward", {}), ("accumulate", {"micro_batches": 4})],
    "backward, accumulate fused": [("backward", {}), ("accumulate", {"micro_batches": 2, "fused": True})],
    "shard, backward": [("shard", {"tp": 2, "sp": True}), ("backward", {"recompute": "full"})],
    "backward, inductor": [("backward", {}), ("inductor", {})],
    "quantize, fuse": [("quantize", {"weights": "int8"}), ("fuse", {"policy": "chains"})],
    "shard, quantize": [("shard", {"tp": 4}), ("quantize", {"activations": "fp8"})],
    "retype, widen": [("retype", {"weights": "int8"}), ("widen", {"dequantize": "separate"})],
    "clean, merge": [("clean", {}), ("merge_linears", {}), ("fuse", {"policy": "inductor"})],
}


def passes() -> Pairs:
    """Each pass on each of a few programs: counts, memory and time; the trail of several."""
    alone = {f"{name} {_words(options)}".strip(): [(name, options)] for name, all_ in ALONE.items() for options in all_}
    for title, (name, phase, options) in PASSED.items():
        graph = model(name, phase, **options)
        for label, steps in (alone | TOGETHER).items():
            after = attempt(applied, graph, steps)
            yield f"{title}/{label}", after if isinstance(after, dict) else attempt(_after, after)
            if label in TOGETHER and not isinstance(after, dict):
                yield f"{title}/trail of {label}", attempt(trail, after, POINTS["larger"])
        yield f"{title}/saved", attempt(saved, graph, POINTS["larger"])


def _words(options: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items())


def _after(found: Any) -> Any:
    if isinstance(found, tuple):
        return [_after(each) for each in found]
    at = POINTS["larger"]
    numbers = {**counted(found, at), "memory": memory(found, at), "notes": notes(found)}
    return {**numbers, **estimated(found, "h100-sxm", at, "graph")}


# === training, serving, batches =======================================================================================

#: Steps of training: model, its options, where, sizes, layout.
STEPS: list[tuple[str, dict[str, Any], str, Sizes, dict[str, Any]]] = [
    ("gpt2", {}, "h100-sxm", {"S": 1024}, {"batch": 8, "precision": "amp-bf16"}),
    ("gpt2", {}, "h100-sxm", {"S": 512}, {"batch": 16, "dp": 2, "zero": 1, "mode": "graph"}),
    ("gpt2", {}, "dgx-a100", {"S": 512}, {"batch": 32, "dp": 8, "zero": 3, "overlap": False, "mode": "compiled"}),
    ("gpt2", {}, "a100-80gb-sxm", {"S": 256}, {"batch": 4, "recompute": "full", "optimizer": "adam8bit"}),
    ("bert-base-uncased", {}, "h100-sxm", {"S": 128}, {"batch": 32, "precision": "bf16", "optimizer": "sgd"}),
    ("resnet50", {}, "h100-sxm", {}, {"batch": 64, "precision": "amp-bf16", "optimizer": "momentum"}),
    ("vit-b-16", {}, "h200-sxm", {}, {"batch": 64, "precision": "mixed-bf16", "dp": 2, "mode": "compiled"}),
    ("llama-3-8b", {"layers": 8}, "h100-sxm", {"S": 2048}, {"batch": 4, "tp": 2, "sp": True, "mode": "graph"}),
    ("llama-3-8b", {"layers": 8}, "dgx-h100", {"S": 1024}, {"batch": 16, "tp": 4, "pp": 2, "dp": 4, "zero": 2}),
    ("llama-3-8b", {"layers": 8}, "dgx-h100", {"S": 1024}, {"batch": 16, "pp": 4, "interleave": 2, "mode": "graph"}),
    ("llama-3-8b", {}, "h100-sxm", {"S": 2048}, {"batch": 8, "mode": "graph", "recompute": "selective"}),
    ("mixtral-8x7b", {"layers": 4}, "dgx-h100", {"S": 512}, {"batch": 8, "dp": 4, "ep": 4, "mode": "graph"}),
    ("megatron-22b", {"layers": 8}, "dgx-a100", {"S": 2048}, {"batch": 4, "tp": 8, "recompute": "selective"}),
    ("opt-125m", {}, "h100-sxm", {"S": 128}, {"batch": 8, "optimizer": "adafactor"}),
    ("gpt2", {}, "h100-sxm", {"S": 1000}, {"batch": 7, "dp": 2}),
    ("gpt2", {}, "h100-sxm", {"S": 1024}, {"batch": 8, "tp": 5}),
]
#: Whole requests: model, chip, options.
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm", {"prompt": 2048, "new_tokens": 256}),
    ("llama-3-8b", "h100-sxm", {"prompt": 500, "new_tokens": 64, "batch": 8, "block": 16, "mode": "compiled"}),
    ("llama-3-8b", "a100-80gb-sxm", {"prompt": 1024, "new_tokens": 32, "weights": "int4-g128", "cache": "int8"}),
    ("gpt-oss-20b", "h100-sxm", {"prompt": 4096, "new_tokens": 64, "shared_prefix": 1000, "batch": 4, "block": 16}),
    ("deepseek-v2-lite", "h200-sxm", {"prompt": 1000, "new_tokens": 100}),
    ("gpt2", "rtx-4090", {"prompt": 128, "new_tokens": 16, "mode": "eager"}),
    ("llama-3-70b", "h100-sxm", {"prompt": 128, "new_tokens": 16}),
]
CACHES: list[tuple[str, Any, dict[str, Any]]] = [
    ("llama-3-8b", [1000, 8192], {"batch": 8, "block": 16, "shared_prefix": 500}),
    ("gpt-oss-20b", 4096, {"batch": [1, 3]}),
    ("gemma-2-9b", 10000, {"block": 16, "cache": "int8"}),
    ("deepseek-v3", 4096, {"batch": 2}),
    ("mistral-7b", 9000, {"window": 1000}),
    ("t5-base", 100, {"sizes": {"S": 50}}),
    ("resnet50", 100, {}),
]
LARGEST: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm", {"block": 16}),
    ("llama-3-8b", "a100-40gb-sxm", {"chunk": 2048, "cache": "fp8"}),
    ("qwen3-32b", "h200-sxm", {"memory": "120 GiB", "weights": "int8"}),
    ("llama-3-70b", "h100-sxm", {}),
]
BATCHES: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("llama-3-8b", "decode", "h100-sxm", {"mode": "graph", "sizes": {"S": 2048}}),
    ("llama-3-8b", "decode", "h100-sxm", {"mode": "graph", "latency": "20 ms", "sizes": {"S": 2048}}),
    ("llama-3-8b", "prefill", "h200-sxm", {"mode": "compiled", "sizes": {"S": 1024}}),
    ("llama-3-8b", "decode", "l4", {"memory": "20 GiB", "sizes": {"S": 512}}),
    ("llama-3-70b", "decode", "h100-sxm", {"sizes": {"S": 2048}}),
    ("qwen3-30b-a3b", "decode", "h200-sxm", {"mode": "graph", "sizes": {"S": 4096}}),
    ("gpt2", "decode", "a100-80gb-sxm", {"mode": "eager", "sizes": {"S": 1024}}),
    ("gpt2", "prefill", "rtx-4090", {"mode": "graph", "memory": "16 GB", "sizes": {"S": 256}}),
    ("bert-base-uncased", None, "t4", {"mode": "compiled", "sizes": {"S": 128}}),
    ("resnet50", None, "h100-sxm", {"mode": "eager", "tf32": True}),
    ("vit-b-16", None, "l40s", {"mode": "graph", "latency": "100 ms"}),
    ("mobilenet-v2", None, "v100-sxm-16gb", {"mode": "compiled"}),
]


def training() -> Pairs:
    """Steps of training: time, memory and parts."""
    for at, (name, options, on, sizes, layout) in enumerate(STEPS):
        graph = model(name, "train", **options)
        yield f"{at} {name} on {on}", attempt(answer, "train", graph, on, sizes=sizes, **layout)


def serving() -> Pairs:
    """Whole requests, caches, and the most that fits."""
    for at, (name, chip, options) in enumerate(REQUESTS):
        yield f"request {at}", attempt(answer, "request", name, chip, **options)
    for at, (name, context, options) in enumerate(CACHES):
        yield f"kv_cache {at}", attempt(answer, "kv_cache", name, context, **options)
    for at, (name, chip, options) in enumerate(LARGEST):
        yield f"context {at}", attempt(answer, "largest_context", name, chip, batch=8, **options)
        yield f"concurrency {at}", attempt(answer, "largest_concurrency", name, chip, context=4096, **options)


def batch() -> Pairs:
    """The best batch."""
    for at, (name, phase, chip, options) in enumerate(BATCHES):
        yield f"{at} {name} on {chip}", attempt(answer, "best_batch", model(name, phase), chip, **options)


# === all other answers ================================================================================================

#: Measured times to judge without a trace: model, phase, chip, time, how, sizes.
JUDGED: list[tuple[str, str | None, str, str, str, Sizes]] = [
    ("llama-3-8b", "decode", "h100-sxm", "1 ms", "graph", {"B": 1, "C": 2048}),
    ("llama-3-8b", "decode", "h100-sxm", "7 ms", "graph", {"B": 1, "C": 2048}),
    ("llama-3-8b", "decode", "h100-sxm", "41 ms", "graph", {"B": 32, "C": 2048}),
    ("llama-3-8b", "prefill", "h200-sxm", "2 s", "eager", {"B": 2, "S": 2048}),
    ("gpt2", "prefill", "a100-80gb-sxm", "40 ms", "eager", {"B": 8, "S": 512}),
    ("resnet50", None, "h100-sxm", "25 ms", "eager", {"B": 64}),
    ("bert-base-uncased", None, "rtx-4090", "9 ms", "compiled", {"B": 8, "S": 128}),
]
SIZED_WORK = [{"op": "gemm", "m": 8192, "n": 8192, "k": 1024}, {"op": "elementwise", "n": 2**26}]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "send")
COMPARED = ["h100-sxm", "h200-sxm", "mi300x", "tpu-v5p", "epyc-9654", "l4"]
TRACED = (
    "first/traces/bert_b1.json.gz",
    "first/traces/adam_by_hand.json.gz",
    "fourth/traces/resnet50_compiled.json.gz",
)


def answers() -> Pairs:
    """Comparisons, scaling, collectives, fusion, verdicts, sweeps and what else has numbers."""
    for asked in (_compared, _collectives, _fused, _verdicts, _sweeps, _others):
        yield from asked()


def _compared() -> Pairs:
    at = {"B": 1, "C": 2048}
    ask = {
        "decode": lambda: answer("compare", "llama-3-8b", COMPARED, phase="decode", mode="graph", sizes=at),
        "images": lambda: answer("compare", "resnet50", COMPARED, sizes={"B": [1, 32]}),
        "int8": lambda: answer("compare", "gpt2", COMPARED[:2], weights="int8", sizes={"B": 4, "S": 128}),
    }
    yield from ((f"compare/{name}", attempt(one)) for name, one in ask.items())
    large, experts = model("llama-3-70b", "decode"), model("mixtral-8x7b", "prefill", layers=4)
    scaled = {
        "decode": lambda: answer("scaling", large, "h100-sxm", (1, 2, 3, 4, 8), mode="graph", sizes=at),
        "sp": lambda: answer("scaling", model("llama-3-8b"), "dgx-a100", (2, 16), sp=True, sizes={"B": 1, "S": 1024}),
        "experts": lambda: answer("scaling", experts, "h100-sxm", (2, 4), experts=True, sizes={"B": 1, "S": 512}),
    }
    yield from ((f"scaling/{name}", attempt(one)) for name, one in scaled.items())


def _collectives() -> Pairs:
    sizes = [1e3, 1e5, 1e7, 1e9]
    for on in (*call("clusters"), "h100-sxm", "mi300x", "epyc-9654"):
        for op in COLLECTIVES:
            for devices in (2, 8, 16):
                for ideal in (False, True):
                    path = f"collective/{on}/{op}/{devices}{' ideal' * ideal}"
                    yield path, attempt(answer, "collective", on, op, sizes, devices, ideal=ideal)


def _fused() -> Pairs:
    programs = {"gpt2": (model("gpt2", "forward", layers=2, attention="naive"), {"B": 8, "S": 1024}),
                "resnet": (model("resnet18"), {"B": 8}), "work": (program(SIZED_WORK, "bf16"), {})}  # fmt: skip
    for name, (graph, at) in programs.items():
        yield f"fusion/{name}", attempt(answer, "fusion", graph, "h100-sxm", sizes=at)
        nodes = [node.name for node in graph.nodes][:6]
        for pair in pairwise(nodes):
            found = attempt(answer, "explain_fusion", graph, *pair, "h100-sxm", sizes=at)
            yield f"explain_fusion/{name}/{', '.join(pair)}", found
        yield f"listing/{name}", attempt(answer, "listing", graph, sizes=at)


def _verdicts() -> Pairs:
    for at, (name, phase, chip, measured, mode, sizes) in enumerate(JUDGED):
        found = attempt(answer, "check", model(name, phase), chip, measured, mode=mode, sizes=sizes)
        yield f"check/{at} {name} on {chip}", found
    rows = rows_of(MEASURED / "h100-sxm" / "ops.csv", 16)
    yield "check_ops", attempt(answer, "check_ops", rows, "h100-sxm", column="kernel_us")
    for trace in TRACED:
        yield f"trace_report/{trace}", attempt(answer, "trace_report", PLANTED / trace)


def _sweeps() -> Pairs:
    batches, decode = [1, 8, 16, 64, 128], model("llama-3-8b", "decode")
    shapes = {"flat": ["5 ms", "5 ms", "5 ms", "16 ms", "32 ms"], "line": [0.0031, 0.0101, 0.0179, 0.066, 0.131],
              "falling": [0.001, 0.002, 0.004, 0.03, 0.2], "unsteady": [0.1, 0.01, 0.05, 0.01, 0.09]}  # fmt: skip
    for name, times in shapes.items():
        yield f"sweep/{name}", attempt(answer, "check_sweep", batches, times)
        options = {"mode": "graph", "sizes": {"C": 2048}}
        yield f"sweep/{name} on a chip", attempt(answer, "check_sweep", batches, times, decode, "h100-sxm", **options)


def _others() -> Pairs:
    decode = model("llama-3-8b", "decode")
    narrow = applied(decode, [("quantize", {"weights": "int4", "cache": "fp8"})])
    once = {"B": 1, "C": 2048}
    ask = {
        "predicted_compile": lambda: answer("predicted_compile", decode, "h100-sxm", sizes=once),
        "predicted_compile images": lambda: answer("predicted_compile", model("resnet50"), "h100-sxm", sizes={"B": 1}),
        "break_even": lambda: answer("break_even", "30 s", "40 ms", "25 ms"),
        "fast_paths": lambda: answer("fast_paths", narrow, "h100-sxm"),
        "explain_oom": lambda: answer("explain_oom", "Tried to allocate 58.15 GiB", vocab=128256),
        "grid": lambda: answer("estimate", decode, COMPARED[:3], sizes={"B": [1, 8, 64], "C": [128, 2048]}),
        "kernels": lambda: kernels(decode, "h100-sxm", once),
    }
    yield from ((name, attempt(one)) for name, one in ask.items())


#: Command lines; all but the last print JSON.
COMMANDS = (
    "estimate llama-3-8b h100-sxm -B 1,8,32 -S 2048 --phase decode --mode graph --json",
    "estimate llama-3-70b h100-sxm --phase decode -B 16 -S 2048 --mode graph --tp 4 --weights int4 --cache fp8 --json",
    "check llama-3-8b h100-sxm -B 32 -S 2048 --phase decode --mode graph --measured 41ms --json",
    "batch llama-3-8b h100-sxm -S 2048 --phase decode --mode graph --latency 50ms --json",
    "train gpt2 h100-sxm -B 8 -S 1024 --precision amp-bf16 --tokens 10B --json",
    "compare llama-3-8b --chips h100-sxm,h200-sxm,mi300x -B 1 -S 2048 --phase decode --mode graph --json",
    "fuse gpt2 h100-sxm -B 8 -S 1024 --json",
    "validate --chip h200-sxm --json",
    "chips h100-sxm --json",
    "models --json",
    "estimate llama-3-8b h100-sxm -B 1,8,32 -S 2048 --phase decode --mode graph",
)


def commands() -> Pairs:
    """What the command line prints."""
    for line in COMMANDS:
        yield line, attempt(command, *line.split())
    source = MEASURED / "h100-sxm" / "ops_warm.csv"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "predicted.csv")
        yield "predict", attempt(command, "predict", str(source), "--chip", "h100-sxm", "-o", str(target))
        yield "predict/rows", rows_of(target, 8) if target.is_file() else "none"


# === record and compare ===============================================================================================

SECTIONS: dict[str, Callable[[], Pairs]] = {
    each.__name__: each
    for each in (counts, estimates, chips, validate, predict, planted, imports, tables, passes, training, serving,
                 batch, answers, commands)
}  # fmt: skip


def section(name: str) -> dict[str, Value]:
    """All values of a section, with progress."""
    start = time.perf_counter()
    found: dict[str, Value] = {}
    try:
        for path, thing in SECTIONS[name]():
            found |= flat(path, thing)
    except Exception as error:
        found["stopped"] = refused(error)
    _model.cache_clear()
    say(f"{name}: {len(found):,} values in {time.perf_counter() - start:.1f} s")
    return found


def record(path: Path, names: Iterable[str]) -> int:
    """Write all values of some sections."""
    start = time.perf_counter()
    found: Record = {name: section(name) for name in names}
    path.write_text(json.dumps(found, indent=0, allow_nan=False), encoding="utf-8")
    total = sum(map(len, found.values()))
    say(f"{total:,} values in {time.perf_counter() - start:.1f} s, written to {path}")
    return 0


def differences(old: Mapping[str, Value], new: Mapping[str, Value]) -> Iterator[tuple[str, str, bool]]:
    """Path, what changed in words, and whether a number did."""
    for path in dict.fromkeys([*old, *new]):
        if path not in new or path not in old:
            kept, side = (old, "OLD") if path in old else (new, "NEW")
            yield path, f"{kept[path]!r} only in {side}", not isinstance(kept[path], str)
        elif old[path] != new[path] or (type(old[path]) is bool) != (type(new[path]) is bool):
            a, b = old[path], new[path]
            texts = isinstance(a, str) and isinstance(b, str)
            yield path, f"{a!r} -> {b!r}{_relative(a, b)}", not texts


def _relative(a: Value, b: Value) -> str:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b))
    return f" ({b / a - 1:+.3g})" if numbers and a else ""  # type: ignore[operator]


def compare(paths: tuple[Path, Path], names: Iterable[str], numbers_only: bool) -> int:
    """Print each difference and a summary; 1 where there is any."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    summary, total = [], 0
    for name in [name for name in dict.fromkeys([*old, *new]) if name in names or name not in SECTIONS]:
        changed = list(differences(old.get(name, {}), new.get(name, {})))
        shown = [each for each in changed if each[2] or not numbers_only]
        for path, what, _ in shown:
            print(f"{name}/{path}: {what}")
        numbers = sum(number for *_, number in changed)
        told = f"{numbers:,} numbers and {len(changed) - numbers:,} texts differ" if changed else "equal"
        summary.append(f"{name:<10} {len(old.get(name, {})):>8,} {len(new.get(name, {})):>8,}  {told}")
        total += len(shown)
    print(f"{'section':<10} {'old':>8} {'new':>8}", *summary, sep="\n")
    return 1 if total else 0


def chosen(text: str) -> list[str]:
    """Names of sections, separated by commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return names


def main(words: Sequence[str] | None = None) -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    verbs = parser.add_subparsers(dest="verb", required=True)
    first, second = verbs.add_parser("record"), verbs.add_parser("compare")
    first.add_argument("file", type=Path)
    second.add_argument("old", type=Path)
    second.add_argument("new", type=Path)
    second.add_argument("--numbers", action="store_true", help="leave texts out")
    for verb in (first, second):
        verb.add_argument("--only", type=chosen, default=list(SECTIONS), help="sections, separated by commas")
    told = parser.parse_args(words)
    if told.verb == "record":
        return record(told.file, told.only)
    return compare((told.old, told.new), told.only, told.numbers)


if __name__ == "__main__":
    sys.exit(main())
