"""A program that was captured at fixed sizes answers for no other ones: the error says how it gets a symbol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails

import roofline as rl

VERBS: dict[str, Callable[..., Any]] = {
    "estimate": lambda graph, **sizes: rl.estimate(graph, "h100-sxm", **sizes),
    "count": rl.count,
    "check": lambda graph, **sizes: rl.check(graph, "h100-sxm", "1 ms", **sizes),
    "compare": lambda graph, **sizes: rl.compare(graph, ["h100-sxm", "t4"], **sizes),
    "what_if": lambda graph, **sizes: rl.estimate(rl.what_if(graph, weights="int8"), "h100-sxm", **sizes),
    "scaling": lambda graph, **sizes: rl.scaling(graph, "h100-sxm", (1, 2), **sizes),
    "listing": rl.listing,
    "fusion": lambda graph, **sizes: rl.analysis.fusion(graph, "h100-sxm", **sizes),
    "history": lambda graph, **sizes: rl.analysis.pass_history(graph, "h100-sxm", **sizes),
    "bind": lambda graph, **sizes: graph.bind(**sizes),
    "batch": lambda graph, **sizes: rl.best_batch(graph, "h100-sxm"),
    "sweep": lambda graph, **sizes: rl.diagnosis.check_sweep([1, 2, 4], ["1 ms", "2 ms", "3 ms"], graph, "h100-sxm"),
    "train": lambda graph, **sizes: rl.training.train(graph, "h100-sxm", batch=8),
}  # fmt: skip


def by_torch(**options: Any) -> rl.Graph:
    torch = pytest.importorskip("torch")
    return rl.from_torch(torch.nn.Linear(64, 64), torch.empty(8, 64), **options)


def by_onnx() -> rl.Graph:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64]) for name in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return rl.from_onnx(helper.make_model(helper.make_graph(nodes, "tiny", [x], [y]), opset_imports=[
        onnx.helper.make_opsetid("", 17)]).SerializeToString())  # fmt: skip


def by_jax() -> rl.Graph:
    jax = pytest.importorskip("jax")
    return rl.from_jax(lambda x: x * 2, jax.ShapeDtypeStruct((8, 64), "float32"))


@pytest.mark.parametrize("size", ["B", "S", "batch"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_size_that_was_fixed(verb: str, size: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"captured with input \[8, 64\]: capture again with dynamic=\{\""):
        VERBS[verb](by_torch(), **{size: 8})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (by_torch, r"capture again with dynamic=\{\"B\": 0\}"),
        (by_onnx, r"export the file again with 'B' as a symbolic dimension"),
        (by_jax, r"trace it again on shapes of jax.export.symbolic_shape\('B'\)"),
    ],
)
def test_every_frontend_says_what_to_do(make: Callable[[], rl.Graph], says: str) -> None:
    for captured in (make(), rl.passes.fuse(make(), "chains")):
        with pytest.raises(rl.errors.UsageError, match=rf"no batch; its sizes are all fixed; .*\[8, 64\]: {says}"):
            rl.estimate(captured, "h100-sxm", B=64)


def test_another_axis_than_the_symbolic_one() -> None:
    graph = by_torch(dynamic={"B": 0})
    assert rl.count(graph, batch=64).flops == 2 * 64 * 64 * 64
    with pytest.raises(rl.errors.UsageError, match=r"no seq; its sizes are batch \(B\); .*dynamic=\{\"S\": 1\}"):
        rl.count(graph, B=64, S=128)


def test_an_axis_that_the_program_fixes_itself() -> None:
    torch = pytest.importorskip("torch")
    graph = rl.from_torch(lambda x: x + torch.zeros(8, 1), torch.empty(8, 64), dynamic={"B": 0})
    with pytest.raises(rl.errors.UsageError, match="its capture found that it only runs where B = 8"):
        rl.count(graph, B=16)


def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "net.py"
    script.write_text("import torch\nmodel = torch.nn.Linear(64, 64)\nexample_inputs = (torch.empty(8, 64),)\n")
    fails(run("estimate", script, "h100-sxm", "-B", "4096"), "-B 4096: this program has no batch", 'dynamic={"B": 0}')
