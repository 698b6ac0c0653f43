"""The update of a training step: bytes per parameter, kernels, whole steps and their memory."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.counting.memory import Memory, TrainingMemory, memory
from roofline.passes.training.mixed_precision import PRECISIONS
from roofline.passes.training.optimizer import OPTIMIZERS

#: Parameters of the program below.
P = 20_000_000


def gemm(dtype: str) -> rl.Graph:
    b = rl.ops.Builder("gemm", dtype)
    return b.graph([b.op("linear", b.input("x", (8, 4000)), b.weight("w", (5000, 4000)))])


def states(graph: rl.Graph) -> float:
    return float(memory(graph, {}).parts()["optimizer"])


# Anthony, Biderman and Schoelkopf 2023, Transformer Math 101, "Optimizer states": with the fp32 copy of the weights.
@pytest.mark.parametrize(("kind", "each"), [("adamw", 12), ("adam8bit", 6), ("momentum", 8), ("sgd", 4)])
def test_bytes_of_states_a_parameter(kind: str, each: int) -> None:
    assert states(rl.passes.optimizer(gemm("fp16"), kind, master=True)) == each * P


@pytest.mark.parametrize(("kind", "each"), [("adamw", 8), ("momentum", 4), ("sgd", 0), ("adam8bit", 2)])
def test_weights_in_fp32_need_no_copy(kind: str, each: int) -> None:
    assert states(rl.passes.optimizer(gemm("fp32"), kind, master=True)) == each * P


def test_a_factored_state_has_a_row_and_a_column_of_a_matrix() -> None:
    """Shazeer and Stern 2018: n + m numbers for n m; vectors keep theirs."""
    assert states(rl.passes.optimizer(gemm("fp32"), "adafactor")) == 4 * (5000 + 4000)
    b = rl.ops.Builder("norm", "fp32")
    vector = b.graph([b.op("rmsnorm", b.input("x", (4, 64)), b.weight("g", (64,)))])
    assert states(rl.passes.optimizer(vector, "adafactor")) == 4 * 64


@pytest.mark.parametrize(("gradients", "each"), [(None, 16), ("fp32", 18)])
def test_mixed_precision_adam_a_parameter(gradients: str | None, each: int) -> None:
    """The same source: 2 for weights, 12 for states, 2 or 4 for gradients."""
    parts = memory(rl.passes.training_graph(gemm("fp32"), precision="mixed-fp16", gradients=gradients), {}).parts()
    assert parts["weights"] + parts["optimizer"] + parts["gradients"] == each * P


@pytest.mark.parametrize(("kind", "read", "written"), [("sgd", 8, 4), ("momentum", 12, 8), ("adamw", 16, 12)])
def test_an_update_reads_and_writes_each_tensor_once(kind: str, read: int, written: int) -> None:
    step = rl.passes.optimizer(gemm("fp32"), kind)
    (row,) = rl.count(step).rows
    assert (row.read, row.write) == (read * P, written * P)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_update_is_one_kernel_over_all_parameters(kind: str) -> None:
    step = rl.passes.optimizer(rl.model("gpt2", phase="forward", layers=2), kind)
    assert rl.count(step).launches == 1
    assert rl.count(step).vector_flops > 0
    assert rl.count(step).flops == 0


def test_clipping_adds_two_kernels_and_the_gradients_three_times() -> None:
    plain, clipped = (rl.count(rl.passes.optimizer(gemm("fp32"), "sgd", clip=clip)) for clip in (False, True))
    assert clipped.launches - plain.launches == 2
    assert clipped.bytes - plain.bytes == pytest.approx(3 * 4 * P, rel=1e-6)  # squared; read and written scaled


def test_integer_weights_are_not_updated() -> None:
    b = rl.ops.Builder("mixed", "bf16")
    x = b.op("linear", b.input("x", (4, 8)), b.weight("frozen", (8, 8), "int8"), name="a")
    step = rl.passes.optimizer(
        rl.passes.backward(b.graph([b.op("linear", x, b.weight("w", (8, 8)), name="b")])), "adamw"
    )
    assert [name for name, _ in step.info.training.gradients] == ["w"]
    assert len(step.info.training.optimizer_states) == 2


# --- whole steps -----------------------------------------------------------------------------------------------------


def test_a_step_is_forward_backward_and_update() -> None:
    graph = rl.model("gpt2", phase="train", layers=2)
    step = rl.passes.training_graph(graph, optimizer="sgd")
    parts = rl.count(rl.passes.backward(graph), B=2, S=64), rl.count(rl.passes.optimizer(graph, "sgd"))
    whole = rl.count(step, B=2, S=64)
    assert whole.flops == sum(part.flops for part in parts)
    assert whole.launches == sum(part.launches for part in parts)
    assert whole.bytes == sum(part.bytes for part in parts)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_fits_its_parts_into_memory(precision: str) -> None:
    step = rl.passes.training_graph(rl.model("gpt2", phase="train", layers=2), precision=precision)
    need = memory(step, {"B": 2, "S": 64})
    assert isinstance(need, TrainingMemory)
    p, low = step.parameters, 2 if PRECISIONS[precision].stored != "fp32" else 4
    assert need.weights == need.gradients == low * p
    assert need.optimizer == (12 * p if PRECISIONS[precision].master else 2 * low * p)
    assert need.total == sum(need.parts().values())


def test_inference_has_the_parts_that_it_had() -> None:
    need = memory(rl.model("gpt2", phase="forward", layers=2), {"B": 2, "S": 64})
    assert type(need) is Memory
    assert "gradients" not in need.parts()


def test_micro_batches_share_weights_and_update() -> None:
    graph = rl.model("gpt2", phase="train", layers=2)
    one, four = (rl.passes.training_graph(graph, micro_batches=n) for n in (1, 4))
    sizes = {"B": 2, "S": 64}
    assert rl.count(four, **sizes).flops == 4 * rl.count(one, **sizes).flops
    update = [row for row in rl.count(four, **sizes).rows if row.kernel.name == "optimizer"]
    assert [row.kernel.count for row in update] == [1]
    before, after = memory(one, sizes), memory(four, sizes)
    assert (before.weights, before.gradients, before.optimizer) == (after.weights, after.gradients, after.optimizer)
    assert four.items == 4 * one.items


def test_a_step_takes_longer_with_more_to_do() -> None:
    graph = rl.model("gpt2", phase="train", layers=2)
    times = [
        rl.estimate(
            rl.passes.training_graph(graph, precision="amp-bf16", **options), "h100-sxm", mode="graph", B=4, S=512
        ).time
        for options in ({"optimizer": None}, {"optimizer": "adamw"}, {"optimizer": "adamw", "recompute": "full"})
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_step_leaves_one_entry_in_the_history() -> None:
    step = rl.passes.training_graph(rl.model("gpt2", phase="train", layers=1), precision="amp-bf16", recompute="full")
    assert [applied.name for applied in step.history] == ["training_graph"]
    assert dict(step.history[0].options) == {"precision": "amp-bf16", "recompute": "full"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rl.passes.optimizer(gemm("fp32"), "adam"), "did you mean"),
        (lambda: rl.passes.optimizer(rl.passes.optimizer(gemm("fp32")), "sgd"), "has an update"),
        (lambda: rl.passes.optimizer(rl.ops.Builder("empty", "fp32").graph([])), "no parameters"),
        (lambda: rl.passes.training_graph(gemm("fp32"), precision="bf8"), "allowed: fp32"),
        (lambda: rl.passes.training_graph(gemm("fp32"), micro_batches=0), "a whole number from 1"),
        (lambda: rl.passes.accumulate(gemm("fp32"), 2), "has no backward"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message):
        call()


def test_a_step_in_sixteen_bits_halves_what_flows() -> None:
    graph = rl.model("llama-3.2-1b", phase="forward", layers=1)
    wide, narrow = (rl.passes.backward(rl.passes.cast(graph, dtype)) for dtype in ("fp32", "bf16"))
    assert rl.count(wide, B=1, S=64).flops == rl.count(narrow, B=1, S=64).flops
    assert rl.count(wide, B=1, S=64).bytes > 1.9 * rl.count(narrow, B=1, S=64).bytes
