"""Every public function that takes a program or a chip takes the same things, and says so to anything else."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import roofline as rl
from roofline.hardware.library import data_dir

SPACES: dict[str, Any] = {name: space for name in rl.__all__ if isinstance(space := getattr(rl, name), ModuleType)}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{space}.{name}".lstrip("."): function
    for space, module in {"": rl, **SPACES}.items()
    for name in module.__all__
    if inspect.isfunction(function := getattr(module, name))
}

SIZES: dict[str, Any] = {"B": 1, "S": 8, "C": 8}
REQUEST: dict[str, Any] = {"prompt": 8, "new_tokens": 2}
#: How each function is called with a program, a chip and the rest.
CALLS: dict[str, Callable[..., Any]] = {
    "best_batch": lambda program, chip: rl.best_batch(program, chip, memory_limit="3 GiB", S=8, C=8),
    "check": lambda program, chip: rl.check(program, chip, "41 ms", **SIZES),
    "compare": lambda program, chip: rl.compare(program, chip, what_if={}, **SIZES),
    "count": lambda program, _: rl.count(program, **SIZES),
    "estimate": lambda program, chip: rl.estimate(program, chip, **SIZES),
    "layouts": lambda program, chip: rl.layouts("resnet18" if program == "gpt2" else program, chip, B=1),
    "lower": lambda program, _: rl.lower(program, **SIZES),
    "listing": lambda program, _: rl.listing(program, S=8),
    "memory_plan": lambda program, chip: rl.memory_plan(program, chip, **SIZES),
    "report": lambda program, chip: rl.report(program, chip, **SIZES | {"B": [1, 2]}),
    "scaling": lambda program, chip: rl.scaling(program, chip, (1, 2), **SIZES),
    "timeline": lambda program, chip: rl.timeline(program, chip, **SIZES),
    "sweep_chip": lambda program, chip: rl.sweep_chip(program, chip, {"memory_bandwidth": "x1,x2"}, **SIZES),
    "what_if": lambda program, chip: rl.what_if(program, fuse="chains", cluster=chip),
    "analysis.explain_fusion": lambda program, chip: rl.analysis.explain_fusion(program, *pair(program), chip, **SIZES),
    "analysis.fast_paths": lambda program, chip: rl.analysis.fast_paths(program, chip),
    "analysis.fusion": lambda program, chip: rl.analysis.fusion(program, chip, **SIZES),
    "analysis.pass_history": lambda program, chip: rl.analysis.pass_history(program, chip, **SIZES),
    "analysis.vary": lambda program, chip: rl.analysis.vary(program, chip, samples=2, **SIZES),
    "diagnosis.check": lambda program, chip: rl.diagnosis.check(program, chip, "41 ms", **SIZES),
    "diagnosis.check_sweep": lambda program, chip: rl.diagnosis.check_sweep(
        [1, 2, 4], ["5 ms", "6 ms", "8 ms"], program, chip, S=8, C=8
    ),
    "diagnosis.pipeline": lambda program, chip: rl.diagnosis.pipeline(program, chip, **SIZES),
    "measurement.predicted_compile": lambda program, chip: rl.measurement.predicted_compile(program, chip, **SIZES),
    "advise": lambda program, chip: rl.advise(program, chip, **SIZES),
    "optimize": lambda program, chip: rl.optimize(program, chip, beam=2, check=False, **SIZES),
    "optimization.replay": lambda program, _: rl.optimization.replay(program, []),
    "serving.cache_error": lambda program, _: rl.serving.cache_error(program, "int8", positions=16),
    "serving.cache_policies": lambda program, chip: rl.serving.cache_policies(program, chip, **REQUEST),
    "serving.deployment": lambda program, chip: rl.serving.deployment(program, chip),
    "serving.plan": lambda program, chip: rl.serving.plan(program, chip, counts=[1], points=4, **REQUEST),
    "serving.serve": lambda program, chip: rl.serving.serve(program, chip, **REQUEST),
    "serving.kv_cache": lambda program, _: rl.serving.kv_cache(program, 8),
    "serving.largest_concurrency": lambda program, chip: rl.serving.largest_concurrency(program, chip, context=8),
    "serving.largest_context": lambda program, chip: rl.serving.largest_context(program, chip),
    "serving.request": lambda program, chip: rl.serving.request(program, chip, prompt=8, new_tokens=2),
    "training.distill": lambda program, _: rl.training.distill(program, layers=1),
    "training.train": lambda program, chip: rl.training.train(program, chip, batch=1, S=8),
}  # fmt: skip
#: And those that take a chip and no program.
CHIP_CALLS: dict[str, Callable[[Any], Any]] = {
    "chip": rl.chip,
    "cluster": rl.cluster,
    "predict": lambda chip: rl.predict([{"op": "relu", "dtype": "bf16", "shape": '{"n": 64}'}], chip),
    "schedules": lambda chip: rl.schedules("gemm m=64 n=64 k=64", chip),
    "validate": lambda chip: rl.validate([{"op": "relu", "dtype": "bf16", "shape": '{"n": 64}', "kernel_us": 2}], chip),
    "analysis.changed": lambda chip: rl.analysis.changed(chip, memory_bandwidth=2),
    "analysis.collective": lambda chip: rl.analysis.collective(chip, "all_reduce", "1 MB", 2),
    "charts.plot_roofline": lambda chip: rl.charts.plot_roofline(chip),
    "measurement.doctor": lambda chip: rl.measurement.doctor(chip),
    "codesign.silicon": rl.codesign.silicon,
    "diagnosis.check_ops": lambda chip: rl.diagnosis.check_ops(
        [{"op": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64, "time_us": 9}], chip
    ),
    "quant.formats_within": lambda chip: rl.quant.formats_within(
        {"w": [[1.0, 2.0]]}, ["int8"], latency_limit="1 ms", chip=chip
    ),
}  # fmt: skip
#: Neither: they take code, a trace, sensitivities, a plan or several programs beside the chip.
OTHERS = {
    "codesign.search", "fleet.run", "optimization.replayed",
    "measure", "measurement.compare_backends", "quant.mixed", "diagnosis.compare_traces", "diagnosis.ranks_report",
    "diagnosis.trace_report",
}  # fmt: skip
NEED_DECODE = {"serving.cache_error", "serving.kv_cache", "serving.largest_concurrency", "serving.largest_context"}
#: Questions that a kind of program has no answer to, and what is said.
CANNOT = {
    **{("layouts", kind): "no kernel may have images" for kind in ("toml", "workload", "config", "folder",
                                                                  "script", "graph")},
    **{(name, "workload"): "keeps no cache|no symbol B|no attention to a cache" for name in NEED_DECODE},
    **{(f"serving.{name}", kind): "is no language model" for name in ("cache_policies", "plan", "serve")
       for kind in ("workload", "script")},
    **{(f"serving.{name}", "graph"): "a deployment needs a model by name or path"
       for name in ("cache_policies", "deployment", "plan", "serve")},
    **{(name, "workload"): "no symbol B" for name in ("best_batch", "diagnosis.check_sweep", "training.train")},
    ("serving.request", "workload"): "no symbol S",
    ("serving.request", "script"): "keeps no cache",
    ("serving.request", "graph"): "give a program by name, with both phases",
    ("training.distill", "workload"): "does not come from a model file",
}  # fmt: skip

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
SCRIPT = "import roofline as rl\n\n\ndef build():\n    return rl.model('gpt2', phase={phase!r})\n"


def pair(program: Any) -> tuple[str, str]:
    """Two kernels that follow each other."""
    graph = program if isinstance(program, rl.Graph) else rl.load_program(program)
    names = [node.name for node in graph.nodes]
    return names[-2], names[-1]


def annotated(kind: str, function: Callable[..., Any]) -> bool:
    return any(kind in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values())


def test_the_tables_name_every_function_that_takes_a_program_or_a_chip() -> None:
    programs = {name for name, function in FUNCTIONS.items() if annotated("Program", function)}
    chips = {name for name, function in FUNCTIONS.items() if annotated("Chip", function)}
    assert programs - OTHERS == CALLS.keys()
    assert (chips | programs) - CALLS.keys() == CHIP_CALLS.keys() | OTHERS


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["name", "toml", "workload", "config", "folder", "script", "graph"])
def test_a_program_is_a_name_a_file_a_config_a_script_or_a_graph(name: str, kind: str, tmp_path: Path) -> None:
    phase = "decode" if name in NEED_DECODE else "forward"
    files = {
        "toml": ("mine.toml", (data_dir("models") / "gpt2.toml").read_text()),
        "workload": ("work.json", json.dumps([{"op": "gemm", "m": 8, "n": 8, "k": 8}, {"op": "relu", "n": 64}])),
        "config": ("config.json", json.dumps(CONFIG)),
        "folder": ("config.json", json.dumps(CONFIG)),
        "script": ("mine.py", SCRIPT.format(phase=phase)),
    }
    program: Any = rl.model("gpt2", phase=phase) if kind == "graph" else "gpt2"
    if kind in files:
        program = tmp_path / files[kind][0]
        program.write_text(files[kind][1])
        program = program.parent if kind == "folder" else str(program)
    if why := CANNOT.get((name, kind)):
        with pytest.raises(rl.errors.UsageError, match=why):
            CALLS[name](program, "h100-sxm")
    else:
        assert CALLS[name](program, "h100-sxm") is not None


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("nonsense", [3, [], 1.5, object()])
def test_anything_else_is_no_program(name: str, nonsense: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match="expected a program: a Graph, a shipped name"):
        CALLS[name](nonsense, "h100-sxm")


@pytest.mark.parametrize("name", [name for name in CALLS if annotated("Chip", FUNCTIONS[name])])
def test_a_chip_is_a_name_a_path_or_a_chip(name: str) -> None:
    path = data_dir("chips") / "h100-sxm.toml"
    for chip in ("h100-sxm", "H100 SXM", path, str(path), rl.chip("h100-sxm")):
        assert CALLS[name]("gpt2", chip) is not None
    for nonsense in (3, 1.5, [3], object()):
        with pytest.raises(rl.errors.UsageError, match="expected a name, a path"):
            CALLS[name]("gpt2", nonsense)
    with pytest.raises(rl.errors.UnknownChip):
        CALLS[name]("gpt2", "h1000")


@pytest.mark.parametrize("name", CHIP_CALLS)
def test_a_chip_alone_too(name: str) -> None:
    path = data_dir("chips") / "h100-sxm.toml"
    for chip in ("h100-sxm", path, rl.chip("h100-sxm")):
        assert CHIP_CALLS[name](chip) is not None
    for nonsense in (3, 1.5, [3], object()):
        with pytest.raises(rl.errors.UsageError, match="expected a name, a path"):
            CHIP_CALLS[name](nonsense)


def test_passes_take_a_graph_and_say_so() -> None:
    for change in (rl.passes.quantize, rl.passes.cast, rl.passes.fuse, rl.passes.shard, rl.passes.training_graph):
        with pytest.raises(rl.errors.UsageError, match="a pass takes a Graph"):
            change("gpt2")  # type: ignore[operator]


def test_sizes_limits_and_devices_go_by_the_same_words_everywhere() -> None:
    words = {"batch", "seq", "prompt", "context", "new_tokens", "memory_limit", "latency_limit", "tp", "pp", "dp", "ep"}
    others = {"memory", "latency", "B", "S", "C", "batch_size", "seq_len", "sequence", "length", "max_memory", "copies"}
    used = {key for function in FUNCTIONS.values() for key in inspect.signature(function).parameters}
    assert not used & others
    assert words <= used | {"seq"}  # seq is among the sizes that are keywords of their own


@pytest.mark.parametrize("name", ["quantize", "kv_cache", "read_trace", "train"])
def test_a_name_that_moved_says_where_it_is(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"No roofline attribute {name}; it is roofline\.\w+\.{name}"):
        getattr(rl, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda **reserve: rl.best_batch("gpt2", "t4", phase="decode", context=64, **reserve).memory_limit,
        lambda **reserve: rl.serving.largest_context("gpt2", "t4", **reserve).value,
        lambda **reserve: rl.serving.largest_concurrency("gpt2", "t4", context=64, **reserve).value,
        lambda **reserve: rl.training.train("gpt2", "t4", batch=1, seq=64, **reserve).memory.total,
        lambda **reserve: rl.estimate("gpt2", "t4", batch=1, seq=64, **reserve).memory.total,
    ],
)
def test_a_reserve_is_bytes_or_text_with_a_unit(call: Callable[..., Any]) -> None:
    assert call(reserve="2 GB") == call(reserve=2e9)
    with pytest.raises(rl.errors.UnitError, match="'2' has no unit"):
        call(reserve="2")


def test_a_program_that_is_a_graph_is_loaded_already() -> None:
    graph = rl.model("gpt2")
    assert rl.load_program(graph) is graph
    with pytest.raises(rl.errors.UsageError, match="a Graph has its phase already"):
        rl.load_program(graph, phase="decode")


@pytest.mark.parametrize(
    "call", [lambda: rl.predict(None), lambda: rl.traces.read_trace(None), lambda: rl.diagnosis.check_ops(None)]
)
def test_nothing_is_no_table_and_no_trace(call: Callable[[], Any]) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"^expected .*, given None$"):
        call()


def test_what_is_no_size_says_where_it_belongs() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"'tp' is no size of a program; roofline\.what_if\(program, tp="):
        rl.estimate("gpt2", "t4", batch=1, seq=8, tp=2)
    with pytest.raises(rl.errors.UsageError, match="a decode step has one: phase='decode'"):
        rl.estimate("gpt2", "t4", batch=1, context=8)
    with pytest.raises(rl.errors.UsageError, match=r"batch \(B\)='2' is not a whole number"):
        rl.estimate("gpt2", "t4", batch="2", seq=8)


def test_completion_offers_names_of_the_namespace_only() -> None:
    assert dir(rl.errors) == sorted(rl.errors.__all__)
    assert dir(rl.ops) == sorted(rl.ops.__all__)


def test_counts_are_a_report_of_a_program_at_its_sizes() -> None:
    counts = rl.count("gpt2", batch=2, seq=8)
    record = counts.record()
    assert record["schema"] == {"name": "count", "version": 1}
    assert record["sizes"] == {"batch": 2, "seq": 8}
    assert sum(row["bytes"] for row in record["rows"]) == record["bytes"] == counts.bytes
    assert len(counts.frame()) == len(counts.rows)
    assert repr(counts).startswith("<Counts gpt2 prefill, batch 2, seq 8: 3.96 GFLOP")
    with pytest.raises(rl.errors.UsageError, match="'tp' is no size of a program"):
        rl.count("gpt2", batch=2, seq=8, tp=2)


def test_a_verdict_names_the_passes_of_the_program_alone() -> None:
    graph = rl.passes.fuse(rl.model("gpt2", "decode"))
    for program in (graph, rl.model("gpt2", "decode")):
        about = rl.check(program, "h100-sxm", "90 ms", batch=1, context=8).subject()
        assert about["passes"] == [repr(step) for step in program.history]


def test_only_a_model_of_a_file_has_students() -> None:
    b = rl.ops.Builder("mine", "fp32")
    graph = b.graph([b.op("relu", b.input("x", (8, 8)))])
    with pytest.raises(rl.errors.UsageError, match="mine does not come from a model file"):
        rl.training.distill(graph, layers=1)


def test_matmul_formats_and_collectives_say_what_they_are_of() -> None:
    assert rl.analysis.fast_paths("gpt2", "t4").record()["chip"] == "t4"
    record = rl.analysis.collective("h100-sxm", "all_reduce", [2**20, 2**30], 8).record()
    assert (record["chip"], record["op"], record["devices"]) == ("h100-sxm", "all_reduce", 8)
    assert [row["message_bytes"] for row in record["rows"]] == [2**20, 2**30]
    assert rl.analysis.collective("h100-sxm", "all_reduce", "1 GB", 8).frame()["steps"].tolist() == [14]
