"""Numbers that come in through Python: those of numpy count as Python's do, and what is no number is refused there."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.ir.sizes import size_value, symbol

GPT2 = rl.model("gpt2", phase="decode", layers=1)
TRAINED = rl.passes.backward(rl.model("gpt2", phase="train", layers=1))
GEMM = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096}


def square(n: int) -> rl.Graph:
    b = rl.ops.Builder("square", "bf16")
    return b.graph([b.op("linear", b.input("x", (n, n)), b.weight("w", (n, n)))])


#: What each function makes of whole numbers: with Python's, and with numpy's of 8 and 16 bits.
CALLS: dict[str, Callable[[Callable[[int], Any]], Any]] = {
    "bind": lambda n: rl.count(GPT2.bind(B=n(100), C=n(1000))).flops,
    "count": lambda n: rl.count(GPT2, batch=n(100), context=n(1000)).flops,
    "estimate": lambda n: rl.estimate(GPT2, "t4", batch=n(100), context=n(1000)).flops,
    "kv_cache": lambda n: rl.serving.kv_cache(GPT2, n(1000), batch=n(100), block=n(100), shared_prefix=n(101)).reserved,
    "largest_context": lambda n: rl.serving.largest_context(GPT2, "t4", batch=n(100), block=n(16)).value,
    "request": lambda n: rl.serving.request(
        "gpt2", "t4", prompt=n(100), new_tokens=n(100), batch=n(100), block=n(100)).peak,
    "train": lambda n: rl.training.train(
        "gpt2", "t4", batch=n(64), dp=n(8), micro_batch=n(4), zero=n(1), seq=n(128)).memory.total,
    "saved": lambda n: rl.passes.saved(TRAINED, B=n(100), S=n(1000)),
    "shard": lambda n: rl.passes.shard(GPT2, tp=n(2)).parameters,
    "stages": lambda n: len(rl.passes.stages(rl.model("gpt2"), n(2))),
    "model": lambda n: rl.model("gpt2", layers=n(2)).parameters,
    "workload": lambda n: rl.count(rl.workload([GEMM | {"m": n(1000), "count": n(3)}], dtype="bf16")).flops,
    "builder": lambda n: rl.count(square(n(4096))).flops,
    "collective": lambda n: rl.analysis.collective("h100-sxm", "all_reduce", n(10_000), n(8)).seconds,
    "explain_oom": lambda n: rl.diagnosis.explain_oom(2**36, "bf16", heads=n(32), seq=n(32_000)).value,
    "compare": lambda n: rl.compare("gpt2", ["t4"], batch=n(100), seq=n(1000)).records()[0]["time_s"],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_whole_numbers_of_numpy_do_not_wrap(name: str) -> None:
    assert CALLS[name](lambda number: np.int8(number) if number < 128 else np.int16(number)) == CALLS[name](int)


def test_an_elementwise_product_of_32_bit_sizes_by_hand() -> None:
    # The case of the report: a product that 32 bits cannot hold.
    b = rl.ops.Builder("scores", "bf16")
    x, y = b.input("x", (symbol("B"), symbol("C"))), b.weight("w", (symbol("C"), symbol("C")))
    graph = b.graph([b.op("linear", x, y)])
    assert rl.count(graph.bind(B=np.int32(3000), C=np.int32(3000))).flops == 2 * 3000**3


def test_axes_of_small_types_are_counted_in_float64() -> None:
    est = rl.estimate(GPT2, "t4", batch=np.array([1, 100], np.int8), context=np.float16(1000))
    assert est.flops.dtype == np.float64
    assert est.flops.tolist() == [rl.count(GPT2, batch=n, context=1000).flops for n in (1, 100)]
    assert rl.count(GPT2, batch=[1, 100], context=1000).flops.tolist() == est.flops.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5, 0, 2.5, 10**30, "8", True, [], [1, -1], object()])
@pytest.mark.parametrize("ask", [
    lambda value: rl.count(GPT2, batch=value, context=8),
    lambda value: rl.estimate(GPT2, "t4", batch=value, context=8),
    lambda value: rl.serving.kv_cache(GPT2, 8, batch=value),
    lambda value: rl.training.train("gpt2", "t4", batch=value, seq=8),
    lambda value: GPT2.bind(B=value, C=8),
    lambda value: rl.passes.saved(TRAINED, B=value, S=8),
])  # fmt: skip
def test_what_is_no_size_is_refused_with_its_name(ask: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"\bB\b|batch"):
        ask(value)


def test_sizes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"B \(2,\), C \(3,\) do not broadcast"):
        rl.count(GPT2, batch=[1, 2], context=[1, 2, 3])


def test_a_fraction_of_a_byte_beside_an_axis_stays_a_number() -> None:
    # Four bits, a scale and a zero a group of 32: bytes that are no whole number, over an axis.
    est = rl.estimate(rl.model("convnext-tiny", weights="int4-g32-z4"), "gb300", batch=[1, 8])
    for value in (est.low, est.high, est.bytes, est.floor, est.memory.total):
        assert value.dtype == np.float64
    mixed = symbol("B") * 2 + Fraction(1, 3)
    assert mixed.at({"B": np.array([1.0, 2.0])}).dtype == np.float64


@pytest.mark.parametrize("value", [float("nan"), 10**400, "1", None, True])
def test_a_factor_and_a_batch_are_finite_numbers(value: Any) -> None:
    with pytest.raises(rl.errors.ChipDataError, match="is not a finite number"):
        rl.chip("t4").scale(bandwidth=value)
    with pytest.raises(rl.errors.UsageError, match=r"batch=.*: expected a number that is finite"):
        rl.diagnosis.check_sweep([1, 2, value], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("value", [10**400, "9" * 300 + " GB", "1__0 GB", "1e400 GB"])
def test_a_capacity_that_no_float_holds_is_one_line(value: Any) -> None:
    for call in (
        lambda: rl.best_batch(GPT2, "t4", context=8, memory_limit=value),
        lambda: rl.estimate(GPT2, "t4", batch=1, context=8, reserve=value),
        lambda: rl.serving.largest_context(GPT2, "t4", memory_limit=value),
        lambda: rl.chip("t4").replace(memory_capacity=value),
        lambda: rl.analysis.collective("h100-sxm", "all_reduce", value, 8),
    ):
        with pytest.raises(rl.RooflineError) as error:
            call()
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [None, 3, [1], {}, 2.5, b"gpt2"])
def test_what_is_no_graph_is_refused_by_the_executor(value: Any) -> None:
    for call in (lambda: rl.ops.execute(value), lambda: rl.ops.same(GPT2, value), lambda: rl.ops.same(value, GPT2)):
        with pytest.raises(rl.errors.UsageError, match="takes a Graph"):
            call()
    with pytest.raises(rl.errors.UsageError, match="expected an Estimate"):
        rl.charts.plot_batch(value)


def test_numbers_are_pythons_from_then_on() -> None:
    assert type(size_value("B", np.uint8(200))) is int
    assert rl.training.Plan(batch=np.int64(8), micro_batch=np.int64(8)).batch.__class__ is int


def test_a_sequence_given_as_an_option_has_an_end() -> None:
    graph = rl.model("gpt2", phase="decode")
    with pytest.raises(rl.errors.UsageError, match="devices: expected at most 1,000,000 values"):
        rl.scaling(graph, "h100-sxm", range(10**9), batch=1, context=64)
    with pytest.raises(rl.errors.UsageError, match="backends: expected at most 1,000,000 values"):
        rl.measurement.predicted_compile(graph, "h100-sxm", backends=range(10**9), batch=1, context=64)


@pytest.mark.parametrize("dtype", [np.array([]), np.array([1, 2], dtype=np.int8), []])
def test_a_format_of_a_graph_that_is_no_text_is_refused(dtype: Any) -> None:
    graph = rl.model("gpt2", phase="decode")
    with pytest.raises(rl.errors.RooflineError):
        rl.compare(graph, "h100-sxm", dtype=dtype, batch=1, context=64)
