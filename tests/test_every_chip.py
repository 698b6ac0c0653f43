"""Every shipped chip runs every kind of shipped model or says what would; no figure of a chip is taken unchecked."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest
from mutators import STRANGE, json_mutated, mutants, refused
from profiles import examples

import roofline as rl
from roofline.cost import kernel_time
from roofline.cost.machine import machine
from roofline.hardware.library import data_dir

#: A model of each kind, its phase, and sizes with the batch as an axis.
PROGRAMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.2-1b", "decode", {"C": 300}), ("gpt2", "prefill", {"S": 65}), ("bert-base-cased", "forward", {"S": 32}),
    ("resnet18", "forward", {}), ("t5-small", "forward", {"S": 24}),
    ("qwen1.5-moe-a2.7b", "decode", {"C": 100}),
)  # fmt: skip
#: A desktop processor of two channels of DDR5-5600: 12 cores with vector units, bf16 no faster than fp32.
DESKTOP = rl.Chip(
    name="desktop", cores=12, clock="4.4 GHz", matrix={"bf16": "1.3 TFLOP/s"}, vector={"fp32": "1.3 TFLOP/s"},
    memory=[{"name": "DDR", "capacity": "96 GB", "bandwidth": "89.6 GB/s"}],
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8"])
@pytest.mark.parametrize(("name", "phase", "sizes"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_all_chips_run_all_kinds_of_models(name: str, phase: str, sizes: dict[str, Any], dtype: str) -> None:
    graph = rl.model(
        name, phase=phase, dtype=dtype, **({"layers": 2} if "B" not in sizes and phase != "forward" else {})
    )
    batches = np.array([1, 9, 64])
    ran, refusals = 0, []
    for chip in rl.chips():
        try:
            found = rl.estimate(graph, chip, mode="graph", B=batches, **sizes)
        except rl.errors.MissingFigure as error:
            refusals.append(str(error))
            continue
        assert (found.floor > 0).all()
        assert (found.floor <= found.low).all()
        assert (found.low <= found.time).all()
        assert (found.time <= found.high).all()
        assert np.isfinite(found.high).all()
        assert found.time.dtype == np.float64
        assert (found.time[1:] >= 0.95 * found.time[:-1]).all(), chip
        ran += 1
    assert ran > 35
    options = ("--dtype", "--activations", "no peaks at all")
    assert all("it has" in text and any(option in text for option in options) for text in refusals)


# --- chips that are no GPU --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, "int8", "int4-g128"])
def test_a_cpu_streams_its_weights(weights: str | None) -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    if weights:
        graph = rl.passes.quantize(graph, weights=weights)
    found = rl.estimate(graph, DESKTOP, mode="graph", B=1, C=1024)
    # All weights but the table of embeddings are read once a token, at 82 % of 89.6 GB/s: 15.16 GB take 206.3 ms in
    # bf16, and some 290 launches of 3 us another 0.9.
    streamed = float(found.bytes) / (89.6e9 * 0.82)
    launches = sum(row.kernel.count for row in found.rows) * DESKTOP.efficiency.launch
    assert found.floor <= found.time <= 1.1 * streamed + launches
    if weights is None:
        assert float(found.bytes) == pytest.approx(15.16e9, rel=0.01)
        assert found.time == pytest.approx(0.2072, rel=0.02)


@pytest.mark.parametrize("name", ["tpu-v5e", "gaudi2", "xeon-8480", "wormhole-n150", "cloud-ai-100-pro", "groq-lpu-v1"])
def test_what_only_gpus_do_is_not_charged_to_other_chips(name: str) -> None:
    chip, share = rl.chip(name), rl.chip(name).efficiency
    dtype = "fp16" if name in ("cloud-ai-100-pro", "groq-lpu-v1") else "bf16"
    rows = [
        {"op": "gemm", "m": 512, "n": 50257, "k": 768},  # rows that no wide load of a GPU takes
        {"op": "layernorm", "rows": 25088, "cols": 96},  # waves of rows over an SM's threads
        {"op": "gemm", "m": 1, "n": 4096, "k": 4096},  # a tile's rows
    ]
    for row in rows:
        graph = rl.workload([row], dtype=dtype)
        (counts,) = rl.estimate(graph, chip, mode="graph").rows
        time = kernel_time(counts, chip)
        roofs = max(float(time.compute), float(time.memory))
        assert float(time.expected) <= share.launch + 1.5 * roofs, row


def test_a_gpu_is_told_by_the_name_of_its_cores() -> None:
    gpus = {name for name in rl.chips() if machine(rl.chip(name)).is_gpu}
    assert {rl.chip(name).vendor for name in gpus} == {"NVIDIA", "AMD", "Intel", "Apple"}
    assert not gpus & {"epyc-9654", "xeon-8480", "gaudi3", "tpu-v4", "trainium2", "cerebras-wse-3"}
    assert machine(rl.Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s")).is_gpu
    assert not machine(DESKTOP).is_gpu


def test_without_matrix_units_the_formats_of_the_file_decide() -> None:
    assert machine(rl.chip("h100-sxm")).has_matrix
    assert {name for name in rl.chips() if not machine(rl.chip(name)).has_matrix} == {
        "cerebras-wse-3", "epyc-9654", "gtx-1650", "m1-max", "m1-ultra", "m2", "m2-max", "m2-ultra", "m3-max",
        "m3-ultra", "m4", "m4-max", "m4-pro", "p100-sxm-16gb",
    }  # fmt: skip


@pytest.mark.parametrize("chip", ["m3-max", "gtx-1650", "p100-sxm-16gb"])
def test_narrow_weights_stream_on_gpus_without_matrix_units(chip: str) -> None:
    graph = rl.model("llama-3.2-1b", phase="decode", dtype="fp16")
    times = [rl.estimate(graph, chip, mode="graph", B=1, C=256)]
    times += [rl.estimate(rl.passes.quantize(graph, weights=each), chip, mode="graph", B=1, C=256)
              for each in ("int8", "int4-g128")]  # fmt: skip
    for found in times:
        launches = sum(row.kernel.count for row in found.rows) * rl.chip(chip).efficiency.launch
        assert (
            found.time
            <= 1.3 * float(found.bytes) / (rl.chip(chip).bandwidth * rl.chip(chip).efficiency.memory) + 3 * launches
        )
    assert times[2].time < times[1].time < times[0].time


# --- every number is checked where it comes in ------------------------------------------------------------------------


def table(name: str, kind: Any = "chips") -> dict[str, Any]:
    return tomllib.loads((data_dir(kind) / f"{name}.toml").read_text(encoding="utf-8"))


def read(made: Any) -> rl.Chip:
    """Read a chip's table and ask it for what programs ask."""
    chip = rl.Chip(**made) if isinstance(made, dict) and all(isinstance(key, str) for key in made) else rl.chip(made)
    assert repr(chip)
    assert all(1e6 <= peak.flops <= 1e21 for unit in (chip.matrix, chip.vector) for peak in unit.values())
    assert all(1e3 <= level.capacity <= 1e18 for level in chip.memory if level.capacity is not None)
    assert all(1e6 <= link.bandwidth <= 1e20 for link in chip.links)
    assert 0 < chip.efficiency.compute <= 1
    assert chip.cores is None or (type(chip.cores) is int and chip.cores > 0)
    return chip


@pytest.mark.parametrize("name", ["h100-sxm", "t4", "tpu-v4"])
def test_damaged_chip_files_are_refused_in_one_line(name: str) -> None:
    for made in mutants(json_mutated, table(name), examples(300)):
        refused(lambda made=made: read(made))


@pytest.mark.parametrize("name", ["dgx-h100", "tpu-v5p-pod"])
def test_damaged_cluster_files_are_refused_in_one_line(name: str) -> None:
    for made in mutants(json_mutated, table(name, "clusters"), examples(120)):
        if isinstance(made, dict) and all(isinstance(key, str) for key in made):
            refused(lambda made=made: repr(rl.Cluster(**made)))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: {"memory_capacity": value},
        lambda value: {"memory_bandwidth": value},
        lambda value: {"bf16": value},
        lambda value: {"cores": value},
        lambda value: {"clock": value},
        lambda value: {"year": value},
        lambda value: {"tdp": value},
        lambda value: {"clock_slack": value},
        lambda value: {"link_bandwidth": value},
        lambda value: {"efficiency": {"compute": value}},
        lambda value: {"efficiency": {"high": value}},
        lambda value: {"efficiency": {"launch": value}},
        lambda value: {"efficiency": {"parameters": {"matmul": {"share": value}}}},
        lambda value: {"fallback": {"fp4": {"runs_as": "bf16", "passes": value, "reason": "so"}}},
    ],
)
def test_strange_values_of_a_what_if_are_refused_in_one_line(change: Any) -> None:
    for value in STRANGE:
        refused(lambda value=value: read(rl.chip("h100-sxm").replace(**change(value)).model_dump()))


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"memory_capacity": 10**30}, "too large; allowed: at most 1 EB; a bare number is taken as B"),
        ({"memory_capacity": 10**400}, "not a finite number of B"),
        ({"memory_bandwidth": "-3 TB/s"}, "too small; allowed: at least 1 MB/s"),
        ({"memory_bandwidth": float("nan")}, "not a finite number"),
        ({"memory_bandwidth": True}, "not a quantity"),
        ({"cores": True}, "cores: input should be a valid integer"),
        ({"cores": "132"}, "cores: input should be a valid integer"),
        ({"efficiency": {"compute": "0.7"}}, "efficiency.compute: expected a finite number, given '0.7'"),
        ({"efficiency": {"compute": True}}, "efficiency.compute: expected a finite number, given True"),
    ],
)
def test_a_range_is_said(figures: dict[str, Any], message: str) -> None:
    with pytest.raises(rl.errors.ChipDataError) as caught:
        rl.chip("h100-sxm").replace(**figures)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_parameters_beyond_their_bounds_are_refused_where_they_are_used() -> None:
    odd = rl.chip("h100-sxm").replace(efficiency={"parameters": {"matmul": {"dram": 0.0}}})
    with pytest.raises(rl.errors.ChipDataError, match=r"matmul.dram is 0; allowed: about 0.4 to 1"):
        rl.estimate(rl.model("gpt2", phase="decode"), odd, B=1, C=8)


@pytest.mark.parametrize(("given", "near"), [("bf61", "bf16"), ("fp9", "fp8"), ("BF16", ""), ("torch.float16", "")])
def test_formats_have_aliases_and_nearest_names(given: str, near: str) -> None:
    if not near:
        assert rl.chip("h100-sxm").matmul_peak(given) == 989.4e12
        return
    with pytest.raises(rl.errors.UnknownDType, match=rf"did you mean .*{near}"):
        rl.chip("h100-sxm").matmul_peak(given)
