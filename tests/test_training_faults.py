"""Steps of training whose gradients are shared, whose operands are numbers, or that have no forward."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.ops.builder import Builder


def test_two_weights_with_one_gradient_have_a_sum_each() -> None:
    """``x + a + b``: what comes in is the gradient of both."""
    b = Builder("biases", "fp32")
    y = b.op("add", b.weight("a", (4, 8)), b.weight("b", (4, 8)), name="both")
    graph = b.graph([b.op("add", b.input("x", (4, 8)), y, name="y")])
    whole = rl.passes.accumulate(rl.passes.backward(graph), 3)
    pairs = dict(whole.info.training.gradients or ())
    assert pairs["a"] != pairs["b"]
    assert set(pairs.values()) <= set(whole.outputs)
    step = rl.passes.optimizer(whole, "sgd")
    read = {name: node.inputs for node in step.nodes for name in ("a", "b") if node.name == f"{name}.updated"}
    assert (read["a"][1], read["b"][1]) == (pairs["a"], pairs["b"])
    assert rl.estimate(step, "h100-sxm").memory.parts()["gradients"] == 2 * 4 * 8 * 4


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_update_alone_needs_no_sizes(kind: str) -> None:
    """It reads and writes what is as large as the weights, whatever the batch."""
    step = rl.passes.optimizer(rl.model("gpt2", phase="forward", layers=1), kind)
    assert not step.symbols
    assert rl.estimate(step, "h100-sxm").throughput > 0


@pytest.mark.parametrize(
    ("op", "operands", "backward"),
    [("mul", 1, ["mul"]), ("mul", 2, ["mul", "mul"]), ("mul", 3, ["mul"] * 3), ("div", 1, ["div"]),
     ("div", 2, ["div", "elementwise"]), ("sub", 1, []), ("sub", 2, ["neg"]), ("add", 1, []),
     ("maximum", 1, ["elementwise"])],
)  # fmt: skip
def test_a_number_in_place_of_an_operand_has_a_gradient(op: str, operands: int, backward: list[str]) -> None:
    """Of ``c x`` it is ``c dy``, of ``x / c`` it is ``dy / c``: one operation an element, which reads no operand."""
    b = Builder("one", "fp32")
    weights = [b.weight(f"w{at}", (4, 8)) for at in range(operands)]
    step = rl.passes.backward(b.graph([b.op(op, *weights, name="y")]))
    assert [node.op for node in step.nodes if node.phase == "backward"] == backward
    assert len(step.info.training.gradients or ()) == operands


def exported(module: Any, *args: Any) -> rl.Graph:
    torch, io = pytest.importorskip("torch"), __import__("io")
    pytest.importorskip("onnx")
    file = io.BytesIO()
    torch.onnx.export(module, args, file, dynamo=False, opset_version=17)
    return rl.from_onnx(file.getvalue())


@pytest.mark.filterwarnings("ignore")
def test_attention_that_torch_exports_is_trained() -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            q, k = (layer(x).view(2, -1, 4, 4).transpose(1, 2) for layer in (self.q, self.k))
            return torch.nn.functional.scaled_dot_product_attention(q, k, k) / 3 - (2 - q)

    graph = exported(Attention(), torch.randn(2, 8, 16))
    step = rl.passes.training_graph(graph)
    forward = 2 * 2 * 8 * 16 * 16 * 2 + 2 * 2 * 2 * 4 * 8 * 8 * 4  # two projections; scores and values of four heads
    # The input needs no gradient: each projection's backward is one matmul, attention's four products are two each.
    assert rl.count(graph).flops == forward
    assert rl.count(step).flops == forward + 2 * 2 * 8 * 16 * 16 * 2 + 2 * 2 * 2 * 2 * 4 * 8 * 8 * 4


def of_shape(shape: list[int]) -> bytes:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    nodes = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Identity", ["n"], ["y"])]
    made: bytes = helper.make_model(helper.make_graph(nodes, "g", [x], [y])).SerializeToString()
    return made


def test_native_code_that_crashes_or_runs_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    from roofline.frontends.onnx import native

    model = onnx.load_model_from_string(of_shape([4, 4]))
    for code, says in {
        "__import__('os').abort()": "ended by signal 6",
        "[0] * 10**10": "MemoryError",
        "1 / 0": "division",
    }.items():
        monkeypatch.setitem(native._CALLS, "infer", code)
        with pytest.raises(rl.errors.ModelDataError, match=f"f.onnx: onnx cannot infer it: .*{says}"):
            native.run(onnx, "infer", model, "f.onnx")
    monkeypatch.undo()
    assert rl.from_onnx(of_shape([4, 4])).symbols  # as many as there are values
