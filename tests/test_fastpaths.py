"""Which products run on faster units, and why the others do not."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.analysis.fastpaths import FastPath


def decode() -> rl.Graph:
    return rl.model("llama-3-8b", phase="decode", layers=2)


def named(graph: rl.Graph, chip: str | rl.Chip, name: str = "layers.0.mlp.down") -> FastPath:
    return next(row for row in rl.analysis.fast_paths(graph, chip) if row.kernel == name)


def test_weights_alone_change_no_arithmetic() -> None:
    row = named(rl.passes.quantize(decode(), weights="int4-g128", cache="fp8"), "h100-sxm")
    assert (row.stored, row.multiplied, row.unit, row.faster) == ("int4-g128", "bf16", "bf16 matrix", False)
    assert row.speedup == 1
    assert "helps where it is memory-bound" in row.why
    cache = named(rl.passes.quantize(decode(), cache="fp8"), "h100-sxm", "layers.0.attn.sdpa")
    assert (cache.stored, cache.multiplied) == ("fp8", "bf16")
    assert cache.why.startswith("keys and values")


def test_a_kernel_of_its_own_is_called_slower() -> None:
    row = named(rl.passes.quantize(decode(), weights="int8", dequantize="separate"), "h100-sxm")
    assert (row.stored, row.multiplied, row.faster) == ("int8-g14336-sym", "bf16", False)
    assert "separate kernel" in row.why


def test_units_that_are_faster_and_units_that_are_not() -> None:
    eight = named(rl.passes.quantize(decode(), activations="fp8"), "h100-sxm")
    assert (eight.multiplied, eight.unit, eight.faster) == ("fp8", "fp8 matrix", True)
    assert 1 < eight.speedup < 2
    whole = named(rl.passes.quantize(decode(), activations="int8"), "h100-sxm")
    assert whole.peak == pytest.approx(2 * whole.plain, rel=1e-3)
    assert not whole.faster, "torch._int_mm reaches less of its peak than bf16 of half of it"
    assert "but kernels reach" in whole.why


def test_no_units_no_promise() -> None:
    graph = rl.passes.quantize(decode(), activations="fp8")
    found = rl.analysis.fast_paths(graph, "a100-80gb-sxm")
    assert {row.kernel for row in found.missing} == {row.kernel for row in found if row.multiplied == "fp8"}
    row = found.missing[0]
    assert (row.peak, row.unit, row.faster, row.speedup) == (None, "", False, 0.0)
    with pytest.raises(rl.errors.MissingFigure):
        rl.estimate(graph, "a100-80gb-sxm", B=1, C=64)
    assert not rl.analysis.fast_paths(graph, "h100-sxm").missing


def test_a_documented_fallback_is_no_fast_path() -> None:
    fallback = {"fp8": {"runs_as": "bf16", "reason": "emulated"}}
    chip = rl.chip("a100-80gb-sxm").replace(fallback=fallback)
    row = named(rl.passes.quantize(decode(), activations="fp8"), chip)
    assert not row.faster
    assert "emulated" in row.why


def test_chips_without_bf16_are_compared_with_what_they_have() -> None:
    row = named(rl.passes.quantize(rl.model("llama-3-8b", phase="decode", layers=2, dtype="fp16"), activations="int8"),
                "groq-lpu-v1")  # fmt: skip
    assert (row.peak, row.plain, row.faster) == (750e12, 188e12, True)
    assert "times the fp16 peak" in row.why
    assert named(rl.passes.quantize(decode(), activations="int8"), "tpu-v5e").faster, "no GPU's kernels, no GPU's share"
    with pytest.raises(rl.errors.MissingFigure, match="no peaks at all"):
        rl.analysis.fast_paths(decode(), "cerebras-wse-3")


def test_table() -> None:
    found = rl.analysis.fast_paths(rl.passes.quantize(decode(), activations="fp8"), "h100-sxm")
    assert len(found) == len(found.frame()) == len(found.rows)
    assert "8 of 11 matmuls" in repr(found)
    assert found[0].kernel == "layers.0.attn.qkv"
    assert "<table" in found._repr_html_()
