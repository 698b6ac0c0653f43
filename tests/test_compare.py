"""Chips side by side: times as estimated, elasticities as the formulas say, what cannot run kept with its reason."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis import evaluation
from roofline.analysis.comparison import STEP, WHAT_IF, changed
from roofline.cost.machine import machine
from roofline.hardware.figures import FIGURES

CHIPS = ("h100-sxm", "a100-80gb-sxm", "mi300x", "l4", "tpu-v5e", "gaudi3", "b200-sxm")
#: What a datasheet chip reaches: everything, with no launch cost.
IDEAL = {"compute": 1, "memory": 1, "launch": 0, "low": 1, "high": 1}


@cache
def llama(phase: str, **more: Any) -> rl.Graph:
    return rl.model("llama-3-8b", phase=phase, **more)


@cache
def decode(**more: Any) -> rl.analysis.Comparison:
    return rl.compare(llama("decode"), CHIPS, **{"mode": "graph", "B": 1, "C": 2048, **more})


def test_times_are_those_of_the_estimates() -> None:
    for row, name in zip(decode().rows, CHIPS, strict=True):
        alone = rl.estimate(llama("decode"), name, mode="graph", B=1, C=2048)
        assert row.chip.name == name
        assert row.estimate is not None
        assert row.estimate.records() == alone.records()


def test_best_is_the_fastest_that_fits() -> None:
    best = decode().best
    assert best is not None
    assert best.chip.name == "b200-sxm"
    small = rl.compare(llama("decode"), ["tpu-v5e", "l4"], mode="graph", B=1, C=2048)
    assert small.rows[0].estimate.time < small.rows[1].estimate.time  # type: ignore[union-attr]
    assert small.best is not None
    assert small.best.chip.name == "l4", "the faster one is too small"


@pytest.mark.parametrize("name", CHIPS)
def test_a_decode_step_lives_by_bandwidth_and_a_prefill_by_its_peak(name: str) -> None:
    (step,) = rl.compare(llama("decode"), name, mode="graph", B=1, C=2048).rows
    (whole,) = rl.compare(llama("prefill"), name, mode="graph", B=4, S=4096).rows
    assert step.elasticity["memory_bandwidth"] > 5 * step.elasticity["peak_bf16"]
    assert whole.elasticity["peak_bf16"] > whole.elasticity["memory_bandwidth"]
    assert whole.what_if["peak x2"] < whole.what_if["bandwidth x2"]


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_figures_as_they_are_change_nothing(name: str, mode: Any) -> None:
    same = {key: 1.0 for key, figure in FIGURES.items() if figure.known(rl.chip(name))}
    (row,) = rl.compare(llama("decode", layers=2), name, mode=mode, B=4, C=512, what_if={"same": same}).rows
    assert row.estimate is not None
    assert row.what_if["same"] == pytest.approx(float(row.estimate.time), rel=1e-12)


@pytest.mark.parametrize("name", CHIPS)
def test_a_better_figure_never_costs_and_no_figure_is_worth_more_than_itself(name: str) -> None:
    programs = ((llama("decode", layers=4), {"C": 2048}), (llama("prefill", layers=4), {"S": 1024}))
    for graph, sizes in programs:
        for row in rl.compare(graph, name, mode="graph", B=[1, 16], **sizes).rows:
            assert all(-0.02 <= pull <= 1.05 for pull in row.elasticity.values()), row.elasticity
            assert sum(row.elasticity.values()) <= 1.1
            assert all(time <= float(row.estimate.time) * 1.001 for time in row.what_if.values())  # type: ignore[union-attr]


def test_elasticities_of_a_chip_that_reaches_its_datasheet() -> None:
    """One large stream and one large product: the figure that sets the pace is worth 1, all others 0."""
    chip = rl.Chip(name="plain", matrix={"bf16": 4e14}, vector={"fp32": 1e14}, memory_bandwidth=2e12, cores=100,
                   memory_capacity=8e10, l2="50 MiB", l2_bandwidth=8e12, clock=2e9, efficiency=IDEAL)  # fmt: skip
    b = rl.ops.Builder("stream", "bf16")
    stream = b.graph([b.op("mul_scalar", b.input("x", (2**30,)))])
    (row,) = rl.compare(stream, chip, mode="graph").rows
    assert row.elasticity["memory_bandwidth"] == pytest.approx(1, abs=0.15)
    product = rl.workload([{"op": "gemm", "m": 16384, "n": 16384, "k": 16384}], dtype="bf16")
    (row,) = rl.compare(product, chip, mode="graph").rows
    assert row.elasticity["peak_bf16"] > 0.8
    assert row.elasticity["memory_bandwidth"] < 0.1


def test_an_elasticity_is_the_slope_of_the_times() -> None:
    chip, graph = rl.chip("h100-sxm"), llama("decode")
    up, down = (changed(chip, memory_bandwidth=factor) for factor in (STEP, 1 / STEP))
    fast, slow = rl.estimate(graph, [up, down], mode="graph", B=1, C=2048).time
    slope = -np.log(fast / slow) / (2 * np.log(STEP))
    assert decode().rows[0].elasticity["memory_bandwidth"] == pytest.approx(slope)


def test_eager_programs_wait_for_the_host() -> None:
    (row,) = rl.compare("resnet50", "h100-sxm", dtype="bf16", B=1).rows
    assert row.elasticity["host"] == pytest.approx(1)
    assert row.elasticity["memory_bandwidth"] == 0
    assert row.what_if["host /2"] < row.what_if["bandwidth x2"]


def test_links_matter_to_collectives() -> None:
    b = rl.ops.Builder("reduce", "bf16")
    graph = b.graph([b.op("all_reduce", b.input("x", (2**28,)), devices=8)])
    (row,) = rl.compare(graph, "h100-sxm", mode="graph").rows
    assert row.elasticity["link_bandwidth"] > 0.8
    assert row.what_if["links x2"] < 0.6 * float(row.estimate.time)  # type: ignore[union-attr]


def test_a_changed_chip_keeps_its_provenance() -> None:
    chip = rl.chip("h100-sxm")
    for name, figure in FIGURES.items():
        other = changed(chip, **{name: 2.0})
        assert figure.known(other)
        assert other.efficiency.calibrated == chip.efficiency.calibrated
        assert other.name == chip.name
    one, two = rl.estimate(llama("decode"), [chip, changed(chip, link_bandwidth=2)], mode="graph", B=1, C=9).high
    assert one == two


def test_main_memory_is_changed_alone() -> None:
    """Neither a cache whose bandwidth nobody published nor the number of cores follows it."""
    chip = rl.chip("gaudi3")
    other = changed(chip, memory_bandwidth=3)
    assert other.bandwidth == 3 * chip.bandwidth
    assert machine(other).cache_bandwidth == machine(chip).cache_bandwidth
    (row,) = rl.compare(llama("prefill"), "b200-sxm", mode="graph", B=1, S=2048).rows
    gain = float(row.estimate.time) / row.what_if["bandwidth x2"]  # type: ignore[union-attr]
    assert gain < 1.06, "a prefill that multiplies most of the time"


def test_launch_costs_are_changed_in_every_class() -> None:
    chip = rl.chip("h100-sxm")
    half = changed(chip, launch=0.5)
    for name in ("matmul", "attention", "stream", "rowwise"):
        assert half.efficiency.parameters[name]["launch"] == chip.efficiency.parameters[name]["launch"] / 2
    assert half.efficiency.launch == chip.efficiency.launch / 2
    assert half.efficiency.parameters["matmul"]["dram"] == chip.efficiency.parameters["matmul"]["dram"]


def test_what_cannot_be_said_stays_with_its_reason() -> None:
    found = rl.compare(llama("decode"), ["groq-lpu-v1", "tpu-v5e", "h100-sxm"], mode="graph", B=1, C=2048)
    none, small, fine = found.rows
    assert none.estimate is None
    assert "no published bf16 matmul peak" in none.reason
    assert small.reason.startswith("does not fit: needs 16.24 GiB, has 16.00 GiB")
    assert (none.runs, small.runs, fine.runs) == (False, False, True)
    assert "groq-lpu-v1: groq-lpu-v1 has no published" in repr(found)
    assert rl.compare(llama("decode"), "groq-lpu-v1", B=1, C=2048).best is None


def test_a_chip_without_a_capacity_has_a_time() -> None:
    chip = rl.Chip(name="open", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s")
    found = rl.compare(llama("decode"), chip, mode="graph", B=1, C=2048)
    assert "capacity" in found.rows[0].reason
    record = found.record()["rows"][0]
    assert record["time_s"] > 0
    assert record["fits"] is None
    assert record["capacity_bytes"] is None


def test_batches_are_rows() -> None:
    found = rl.compare(llama("decode"), CHIPS, mode="graph", B=[1, 8, 64], C=2048)
    assert [row.estimate.grid.values["B"] for row in found.rows] == [1, 8, 64] * len(CHIPS)  # type: ignore[union-attr]
    one = rl.compare(llama("decode"), "h100-sxm", mode="graph", B=8, C=2048).rows[0]
    assert found.rows[1].elasticity == pytest.approx(one.elasticity)
    assert found.rows[1].what_if == pytest.approx(one.what_if)


def test_what_ifs_of_ones_own() -> None:
    asked = {"both": {"memory_bandwidth": 2, "peak_bf16": 2, "launch": 0.5}, "vector": {"vector_peak": 2}}
    found = rl.compare(llama("decode"), ["h100-sxm", "tpu-v5e"], mode="graph", B=1, C=2048, what_if=asked)
    assert found.rows[0].what_if["both"] < decode().rows[0].what_if["bandwidth x2"]
    assert list(found.rows[1].what_if) == ["both"], "no vector peak is published for it"


def test_as_data() -> None:
    record = json.loads(json.dumps(decode().record(), allow_nan=False))
    assert record["best_chip"] == "b200-sxm"
    assert record["rows"][0]["what_if"]["bandwidth x2"]["speedup"] > 1.3
    frame = decode().frame()
    assert list(frame["chip"]) == list(CHIPS)
    assert {"time_s", "elasticity_memory_bandwidth", "what_if_SRAM x4_speedup"} <= set(frame)
    assert "by memory bandwidth" in repr(decode())
    assert list(WHAT_IF) == list(decode().rows[0].what_if)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chips": []}, "no chip given"),
        ({"chips": 7}, "expected a name, a path or a Chip, given '7'"),
        ({"what_if": {"x": 2}}, "what_if: expected factors of figures"),
        ({"what_if": {"x": {"bandwith": 2}}}, "unknown figure 'bandwith'; allowed: peak, .*peak_bf16"),
        ({"what_if": {"x": {"memory_bandwidth": 0}}}, "memory_bandwidth=0: expected a factor above zero"),
        ({"B": [1, 2], "C": [3, 4]}, "one size may be a list"),
        ({"phase": "decode"}, "phase='decode' belongs to a program given by name"),
    ],
)
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], says: str) -> None:
    told = {"chips": ["h100-sxm"], "mode": "graph", "B": 1, "C": 8, **options}
    with pytest.raises(rl.errors.UsageError, match=says):
        rl.compare(llama("decode", layers=1), told.pop("chips"), **told)


def test_unknown_chips_and_unlisted_figures_are_refused() -> None:
    with pytest.raises(rl.errors.UnknownChip, match="h100-sxm"):
        rl.compare(llama("decode"), ["h100-sxn"], B=1, C=8)
    with pytest.raises(rl.errors.MissingFigure, match="tpu-v5e lists no vector peaks"):
        changed(rl.chip("tpu-v5e"), vector_peak=2)


def test_more_batches_are_not_more_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points share one evaluation over all of them: 4,096 batches of two chips took a minute when each had its own."""
    timed, calls = evaluation.kernel_time, []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return timed(*args, **options)

    monkeypatch.setattr(evaluation, "kernel_time", counted)
    numbers = []
    for batches in ([1, 2], list(range(1, 65))):
        calls.clear()
        found = rl.compare("gpt2", ["h100-sxm", "t4"], phase="decode", mode="graph", batch=batches, context=128)
        assert found.best is not None
        numbers.append(len(calls))
    assert numbers[0] == numbers[1] > 0
    at = found.rows[40].estimate
    assert at is not None
    alone = rl.estimate("gpt2", "h100-sxm", phase="decode", mode="graph", batch=41, context=128)
    assert float(at.time) == pytest.approx(float(alone.time))
    assert at.memory.parts() == pytest.approx(alone.memory.parts())
