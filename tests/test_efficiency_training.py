"""Times of kernels that only training runs, beside measured ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cost import GROUPS, kernel_time, values
from roofline.cost.gradients import kernel_of
from roofline.cost.work import launch
from roofline.counting.counts import Kernel, kernels
from roofline.hardware.library import data_dir
from roofline.programs.layers import primitives

GROUP = "training"
CHIP = rl.chip("h100-sxm")
Sizes = dict[str, Any]


def attention(b: rl.ops.Builder, s: Sizes) -> str:
    heads = {"q": s["heads"], "k": s["kv_heads"], "v": s["kv_heads"]}
    q, k, v = (b.weight(name, (s["batch"], n, s["seq"], s["head_dim"])) for name, n in heads.items())
    return primitives.attention(b, q, k, v, causal=s["causal"], dropout=s["dropout"] > 0)


def norm(op: str, weights: int) -> Callable[[rl.ops.Builder, Sizes], str]:
    def build(b: rl.ops.Builder, s: Sizes) -> str:
        scales = [b.weight(f"w{at}", (s["cols"],)) for at in range(weights)]
        return b.op(op, b.weight("x", (s["rows"], s["cols"])), *scales)

    return build


def conv(b: rl.ops.Builder, s: Sizes) -> str:
    source = b.input if s["c_in"] == 3 else b.weight
    x, w = source("x", (s["n"], s["c_in"], s["h"], s["w"])), b.weight("w", (s["c_out"], s["c_in"], s["r"], s["s"]))
    return b.op("conv2d", x, w, stride=s["stride"], padding=s["padding"])


def batchnorm(b: rl.ops.Builder, s: Sizes) -> str:
    scales = [b.weight(name, (s["c"],), "fp32") for name in "gh"]
    return b.op("batchnorm_train", b.weight("x", (s["n"], s["c"], s["h"], s["w"])), *scales)


PROGRAMS: dict[str, Callable[[rl.ops.Builder, Sizes], str]] = {
    "attention": attention, "layernorm": norm("layernorm", 2), "rmsnorm": norm("rmsnorm", 1), "conv2d": conv,
    "batchnorm": batchnorm,
    "cross_entropy": lambda b, s: primitives.cross_entropy(b, b.weight("x", (s["rows"], s["cols"]))),
    "maxpool2d": lambda b, s: b.op("maxpool2d", b.weight("x", (s["n"], s["c"], s["h"], s["w"])), r=3, stride=2,
                                   padding=1),
    "embedding": lambda b, s: b.op("embedding", b.weight("t", (s["vocab"], s["dim"])),
                                   b.input("ids", (s["tokens"],), "int64")),
    "gelu": lambda b, s: b.op("gelu", b.weight("x", (s["n"],))),
    "silu": lambda b, s: b.op("silu", b.weight("x", (s["n"],))),
    "dropout": lambda b, s: primitives.drop(b, b.weight("x", (s["n"],)), "drop"),
    "linear_grad": lambda b, s: b.op("linear", b.weight("x", (s["m"], s["k"])), b.weight("w", (s["n"], s["k"]))),
    "column_sum": lambda b, s: b.op("reduce", b.input("x", (s["rows"], s["cols"])), axes=(0,)),
}  # fmt: skip


def measured() -> list[dict[str, str]]:
    with (data_dir("measurements") / "h100-sxm" / "training_ops.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def program(op: str, sizes: Sizes, dtype: str) -> rl.Graph:
    b = rl.ops.Builder(op, dtype)
    return b.graph([PROGRAMS[op](b, sizes)])


def launched(row: dict[str, str]) -> list[Kernel]:
    """The kernels that a measured row timed."""
    op, sizes, forward = row["op"], json.loads(row["shape"]), row["way"] == "forward"
    if op == "update":
        b = rl.ops.Builder("update", row["dtype"])
        for at in range(sizes["tensors"]):
            b.weight(f"w{at}", (sizes["n"],))
        return list(kernels(rl.passes.optimizer(b.graph([]), "adamw" if forward else "momentum")))
    graph = program(op, sizes, row["dtype"])
    if op == "column_sum":
        return list(kernels(graph))
    first = {node.label for node in graph.nodes}
    found = kernels(rl.passes.backward(graph))
    if op == "linear_grad":  # its two ways are the two products of the backward
        return [kernel for kernel in found if kernel.name.endswith("grad_x" if forward else "grad_w")]
    return [kernel for kernel in found if (kernel.name in first) == forward]


def predicted(row: dict[str, str], chip: rl.Chip = CHIP) -> float:
    times = [kernel_time(kernel.at({}), chip, regime="cold").expected for kernel in launched(row)]
    return sum(kernel.count * float(time) for kernel, time in zip(launched(row), times, strict=True)) * 1e6


def error(row: dict[str, str]) -> float:
    return abs(predicted(row) / float(row["kernel_us"]) - 1)


#: Mean error that each class of measured rows stays within, forwards and backwards together.
WITHIN = {
    "attention": 0.06, "layernorm": 0.12, "rmsnorm": 0.15, "conv2d": 0.22, "batchnorm": 0.12, "cross_entropy": 0.06,
    "maxpool2d": 0.12, "embedding": 0.09, "gelu": 0.07, "silu": 0.06, "dropout": 0.12, "column_sum": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("op", WITHIN)
def test_measured_kernels(op: str) -> None:
    assert mean(error(row) for row in measured() if row["op"] == op) < WITHIN[op]


def test_products_of_a_backward_with_aligned_rows() -> None:
    rows = [row for row in measured() if row["op"] == "linear_grad" and json.loads(row["shape"])["n"] % 8 == 0]
    assert mean(error(row) for row in rows) < 0.07


def test_a_turned_operand_is_as_slow_as_its_rows_are_ragged() -> None:
    """A vocabulary of 50257: both products of the head's backward run on kernels without wide loads."""
    rows = [row for row in measured() if row["op"] == "linear_grad" and json.loads(row["shape"])["n"] == 50257]
    even = {**rows[0], "shape": rows[0]["shape"].replace("50257", "50304")}
    for row in rows:
        assert predicted(row) > 4 * predicted({**even, "way": row["way"]})
        assert error(row) < 0.12


def test_a_fused_adamw_is_near_the_traffic() -> None:
    rows = [row for row in measured() if row["op"] == "update" and row["way"] == "forward"]
    assert mean(error(row) for row in rows) < 0.15


@pytest.mark.parametrize("key", GROUPS[GROUP])
def test_every_parameter_counts(key: str) -> None:
    parameter, used = GROUPS[GROUP][key], values(CHIP, GROUP)[key]
    other = parameter.low if used > (parameter.low * parameter.high) ** 0.5 else parameter.high
    tables = {**CHIP.efficiency.parameters, GROUP: {**CHIP.efficiency.parameters[GROUP], key: other}}
    changed = CHIP.replace(efficiency=CHIP.efficiency.model_copy(update={"parameters": tables}))
    assert any(predicted(row) != predicted(row, changed) for row in measured())


@pytest.mark.parametrize("name", ["h100-sxm", "a100-80gb-sxm", "mi300x", "l40s"])
def test_never_under_the_floor(name: str) -> None:
    chip = rl.chip(name)
    for row in measured():
        for kernel in launched(row):
            time = kernel_time(kernel.at({}), chip)
            assert np.isfinite(time.expected)
            assert time.expected >= time.floor


GROWING: list[tuple[str, Sizes, str]] = [
    ("attention", {"heads": 8, "kv_heads": 8, "seq": 1024, "head_dim": 64, "causal": True, "dropout": 0.1}, "batch"),
    ("attention", {"heads": 8, "kv_heads": 2, "batch": 2, "head_dim": 128, "causal": False, "dropout": 0}, "seq"),
    ("layernorm", {"cols": 1024}, "rows"),
    ("batchnorm", {"c": 64, "h": 28, "w": 28}, "n"),
    ("embedding", {"vocab": 5000, "dim": 512}, "tokens"),
    ("maxpool2d", {"c": 64, "h": 28, "w": 28}, "n"),
]


@pytest.mark.parametrize(("op", "sizes", "axis"), GROWING)
def test_a_backward_grows_with_its_sizes(op: str, sizes: Sizes, axis: str) -> None:
    steps = [1, 2, 4, 8, 16, 64] if axis != "seq" else [128, 256, 512, 1024, 4096]
    rows = [{"op": op, "dtype": "bf16", "way": "backward", "shape": json.dumps({**sizes, axis: n * (1024 if axis in (
        "rows", "tokens") else 1)})} for n in steps]  # fmt: skip
    times = [predicted(row) for row in rows]
    assert times == sorted(times)


def test_dropout_inside_attention_costs_its_random_numbers() -> None:
    sizes = {"batch": 8, "heads": 12, "kv_heads": 12, "seq": 1024, "head_dim": 64, "causal": True}
    plain, dropping = (
        predicted({"op": "attention", "dtype": "bf16", "way": "forward", "shape": json.dumps({**sizes, "dropout": p})})
        for p in (0.0, 0.1)
    )
    assert dropping > 1.5 * plain


def test_inference_keeps_its_formulas() -> None:
    for graph in (rl.model("gpt2", phase="forward", layers=1), rl.model("resnet18", phase="forward")):
        sizes = {"B": 1, "S": 128} if "S" in graph.symbols else {"B": 1}
        for kernel in kernels(graph):
            assert kernel_of(launch(kernel.at(sizes), CHIP, False, "cold")) is None
