"""What looks wrong and is not: each remark where it belongs and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.diagnosis.expected_behaviour import NOTES, normal
from roofline.diagnosis.reference import Reference, possible_formats, possible_in


def meant(graph: rl.Graph, chip: str = "h100-sxm", mode: str = "graph", tf32: bool = False, **sizes: Any) -> Reference:
    return Reference(graph, rl.chip(chip), mode, tf32, sizes)


def gemm(n: int = 8192, dtype: str = "bf16") -> rl.Graph:
    return rl.workload([{"op": "gemm", "m": n, "n": n, "k": n}], dtype=dtype)


def said(program: Reference, factor: float = 1.0) -> str:
    """What is said of a time that is so many times the expected one."""
    return "; ".join(normal(program, factor * float(program.expected.time)))


MEMORY, ROOF, BATCH, MFU = "memory-bound", "at the roof", "a bigger batch takes longer", "is normal here"


def test_a_stream_at_its_bandwidth() -> None:
    stream = meant(rl.workload([{"op": "add", "n": 2**28}]))
    assert MEMORY in said(stream)
    assert "TB/s" in said(stream)
    assert MEMORY not in said(stream, 3)
    assert not any(word in said(stream) for word in (ROOF, BATCH, MFU))


def test_a_matrix_product_at_the_roof() -> None:
    large = meant(gemm())
    best = float(large.expected.floor)
    text = "; ".join(normal(large, best / 0.9))
    assert "at the roof: 90% of the 989 TFLOP/s that bf16 has" in text
    assert BATCH in text
    assert MEMORY not in text
    assert ROOF not in "; ".join(normal(large, best / 0.8))


def test_no_format_is_faster_than_the_fastest() -> None:
    fp16 = meant(gemm(dtype="fp16"), "v100-sxm-16gb")
    assert "no format is faster" in "; ".join(normal(fp16, float(fp16.expected.floor) / 0.95))


def test_a_slow_time_is_not_excused() -> None:
    for program in (meant(gemm()), meant(rl.model("resnet50"), B=32), meant(rl.workload([{"op": "gelu", "n": 2**26}]))):
        text = said(program, 20)
        assert not any(word in text for word in (MEMORY, ROOF, BATCH, MFU))


def test_low_mfu_has_its_reason() -> None:
    decode = rl.model("llama-3-8b", phase="decode")
    assert "FLOP/byte where the ridge of bf16 is 295" in said(meant(decode, B=1, C=512))
    assert "too short to hide" in said(meant(rl.model("gpt2"), mode="eager", B=1, S=8))
    assert "of the time goes to kernels without matmuls" in said(meant(rl.model("gpt2", dtype="bf16"), B=8, S=512))
    assert MFU not in said(meant(gemm()))


def test_experts_that_are_not_read() -> None:
    moe = rl.model("mixtral-8x7b", phase="decode")
    assert "only experts that a token picked are read" in said(meant(moe, B=1, C=128))
    assert "only experts" not in said(meant(moe, B=256, C=128))
    assert "only experts" not in said(meant(rl.model("llama-3-8b", phase="decode"), B=1, C=128))


def test_formats_without_units() -> None:
    assert "bf16 has no units on t4: it runs as fp32" in said(meant(gemm(2048), "t4"))
    assert "no units" not in said(meant(gemm(2048), "a100-80gb-sxm"))
    assert "no units" not in said(meant(gemm(2048, "fp16"), "t4"))


def test_depthwise_convolutions() -> None:
    sizes = {"op": "conv2d", "n": 64, "c_in": 256, "c_out": 256, "h": 56, "w": 56, "r": 3, "s": 3, "padding": 1}
    depthwise, dense = (rl.workload([{**sizes, "groups": groups}], dtype="bf16") for groups in (256, 1))
    assert "convolutions of" in said(meant(depthwise))
    assert "convolutions of" not in said(meant(dense))


def test_faster_than_the_peak_of_the_format() -> None:
    fp32 = meant(gemm(dtype="fp32"), "a100-80gb-sxm")
    text = "; ".join(normal(fp32, 5e-3))
    assert "5 ms is less than the 56.4 ms" in text
    assert "possible in bf16 (at least 3.52 ms at its peak) or fp16" in text
    assert "is less than" not in said(fp32)


def test_several_runs_in_a_step() -> None:
    model = meant(rl.model("gpt2"), B=16, S=1024)
    assert "5 runs of this program" in said(model, 5)
    assert "runs of this program" not in said(model)
    assert "runs of this program" not in said(model, 1.5)
    assert "runs of this program" not in said(model, 500)
    assert "runs of this program" not in said(meant(gemm(512)), 5)


def test_copies_at_the_rate_of_the_link() -> None:
    copy = meant(rl.workload([{"op": "memcpy_h2d", "bytes": 2**30}]))
    assert "bound by the link" in said(copy)
    assert "bound by the link" not in said(copy, 4)


def test_scenarios_are_formats_that_the_chip_has() -> None:
    fp32 = gemm(dtype="fp32")
    assert list(possible_formats(meant(fp32, "h100-sxm"), 1.0)) == ["tf32", "bf16", "fp16", "fp8"]
    assert list(possible_formats(meant(fp32, "t4"), 1.0)) == ["fp16"]
    assert list(possible_formats(meant(fp32, "h100-sxm", tf32=True), 1.0)) == ["bf16", "fp16", "fp8"]
    assert possible_in(meant(fp32, "h100-sxm"), 1e-9) == ""
    assert possible_formats(meant(rl.workload([{"op": "gelu", "n": 1024}])), 1.0) == {}


@pytest.mark.parametrize("chip", ["h100-sxm", "t4", "mi300x", "tpu-v5e", "wormhole-n150", "epyc-9654", "m3-max"])
@pytest.mark.parametrize("factor", [0.7, 1.0, 2.0, 40.0])
def test_every_remark_is_one_line_on_every_kind_of_chip(chip: str, factor: float) -> None:
    for graph, sizes in (
        (rl.model("gpt2", dtype="fp16"), {"B": 2, "S": 64}),
        (rl.model("resnet18", dtype="fp16"), {"B": 4}),
    ):
        try:
            program = meant(graph, chip, "eager", **sizes)
            seconds = factor * float(program.expected.time)
        except rl.errors.MissingFigure:
            pytest.skip(f"{chip} has no fp16")
        for sentence in normal(program, seconds):
            assert "\n" not in sentence
            assert any(digit in sentence for digit in "0123456789")
    assert len(NOTES) == 10
