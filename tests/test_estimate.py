"""The estimate by hand, on a chip with round figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import roofline as rl
from roofline.cost import GROUPS
from roofline.cost.host import LAUNCH, UNCOUNTED, VIEW
from roofline.ir.graph import HostCalls

B, S = rl.ops.symbol("B"), rl.ops.symbol("S")
CHIP = rl.Chip(
    name="hand",
    matrix={"bf16": "100 TFLOP/s", "tf32": "50 TFLOP/s"},
    vector={"fp32": "10 TFLOP/s"},
    memory_bandwidth="1 TB/s",
    memory_capacity="16 GB",
    efficiency={"compute": 0.5, "memory": 0.8, "launch": "1 us", "host": "5 us", "low": 0.6, "high": 1.5},
)
#: A gemm of 4096^3 in bf16: its FLOPs and its bytes.
FLOPS, BYTES = 2 * 4096**3, 3 * 2 * 4096**2


def gemm(dtype: str = "bf16", rows: object = 4096) -> rl.Graph:
    b = rl.ops.Builder("gemm", dtype)
    return b.graph([b.op("linear", b.input("x", (rows, 4096)), b.weight("w", (4096, 4096)))], items=rows, item="token")


def copy(n: int) -> rl.Graph:
    b = rl.ops.Builder("copy", "bf16")
    return b.graph([b.op("copy", b.input("x", (n,)))])


def test_a_compute_bound_kernel_by_hand() -> None:
    est = rl.estimate(gemm(), CHIP, mode="graph")
    assert est.time >= FLOPS / (0.5 * 100e12), "half the peak is for large tiles; edges and steps cost more"
    assert est.floor == FLOPS / 100e12
    factor = GROUPS["spread"]["matmul"].prior
    assert (est.low, est.high) == (pytest.approx(est.time / factor), pytest.approx(est.time * factor))
    assert (est.bound, est.flops, est.bytes) == ("compute", FLOPS, BYTES)
    assert est.intensity == FLOPS / BYTES
    assert est.mfu == est.floor / est.time <= 0.5
    assert est.mbu == pytest.approx(BYTES / 1e12 / est.time)
    assert est.throughput == 4096 / est.time


def stream_seconds(moved: float) -> float:
    """The formula of cost/stream.py for a copy without a cache: launch, first read, traffic, ramp."""
    prior = GROUPS["stream"]
    traffic, ramp = moved / (0.8 * 1e12), prior["ramp"].prior
    return 1e-6 + prior["latency"].prior + traffic + ramp * traffic / (traffic + ramp)


def test_a_memory_bound_kernel_by_hand() -> None:
    est = rl.estimate(copy(2**26), CHIP, mode="graph")
    assert est.time == pytest.approx(stream_seconds(2 * 2 * 2**26))
    assert est.floor == pytest.approx(2 * 2 * 2**26 / 1e12)
    assert (est.bound, est.mfu) == ("memory", 0.0)
    assert est.mbu == pytest.approx(est.floor / est.time)


def test_a_small_kernel_takes_a_launch() -> None:
    est = rl.estimate(copy(8), CHIP, mode="graph")
    assert (est.time, est.bound) == (pytest.approx(stream_seconds(32)), "launch")
    assert est.time > 1e-6
    assert est.floor == pytest.approx(32 / 1e12), "no launch cost in the speed of light"


def test_the_low_end_is_never_under_the_floor() -> None:
    wide = CHIP.replace(efficiency={"parameters": {"spread": {"matmul": 10.0}}})
    est = rl.estimate(gemm(), wide, mode="graph")
    assert est.time / 10 < est.low == est.floor < est.time


def test_kernels_of_a_class_err_together_and_classes_on_their_own() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (4096, 4096))
    for inner, width in ((4096, 4096), (4096, 2048), (2048, 1024)):
        x = b.op("linear", x, b.weight(f"w{width}", (width, inner)))
    est = rl.estimate(b.graph([b.op("softmax", x)]), CHIP, mode="graph")
    known = {name: math.log(each.prior) for name, each in GROUPS["program"].items()}
    assert math.isclose(sum(row["time_s"] for row in est.kernel_rows()), est.time)
    # A matmul reads at the shipped share of the bandwidth; the rest of its time is arithmetic's.
    shares: dict[str, float] = {}
    for row in est.kernel_rows():
        reading = row["count"] * row["bytes"] / CHIP.bandwidth / CHIP.efficiency.memory
        split = {"matmul_memory": reading, "matmul": row["time_s"] - reading}
        for name, seconds in (split if row["op"] == "linear" else {"rowwise": row["time_s"]}).items():
            shares[name] = shares.get(name, 0.0) + seconds / est.time
    parts = {name: share * known[name] for name, share in shares.items()} | {"whole_program": known["whole_program"]}
    assert math.log(est.high / est.time) == pytest.approx(math.hypot(*parts.values()))
    assert sum(est.uncertainty.values()) == pytest.approx(1)
    assert est.uncertainty == pytest.approx({k: v**2 / math.hypot(*parts.values()) ** 2 for k, v in parts.items()})


def test_a_wide_range_says_which_kernels_make_it_wide() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (16, 64, 65536))
    x = b.op("relu", b.op("conv1d", x, b.weight("w", (64, 64, 7)), padding=3))
    est = rl.estimate(b.graph([x]), "h100-sxm", mode="graph")
    assert est.high > 1.6 * est.low
    assert est.wide_because().startswith("conv other ")
    assert est.record()["rows"][0]["uncertainty"] == pytest.approx(est.uncertainty)
    assert rl.estimate(gemm(), "h100-sxm", mode="graph").wide_because() == ""
    assert rl.estimate(gemm(rows=16), "h100-sxm").wide_because() == "what a launch costs the host"
    two = rl.estimate(b.graph([x]), ["h100-sxm", "a100-80gb-sxm"], mode="graph")
    assert {name: each[0] for name, each in two.uncertainty.items()} == pytest.approx(est.uncertainty)
    with pytest.raises(rl.errors.UsageError, match="range"):
        two.wide_because()


def test_the_expected_time_is_never_under_the_floor() -> None:
    fed = {"share": 1.2, "tile_half": 1.0, "step": 5e-9, "cache": 50.0, "throttle": 0.0, "knee": 8.0}
    quick = CHIP.replace(efficiency={"launch": 0.0, "parameters": {"matmul": fed, "power": {"ratio": 0.0}}})
    est = rl.estimate(gemm(), quick, mode="graph")
    assert est.low == est.floor == est.time


def test_arithmetic_of_vectors_takes_its_own_units() -> None:
    b = rl.ops.Builder("g", "bf16")
    graph = b.graph([b.op("elementwise", b.input("x", (2**24,)), flops=1000)])
    # 1000 operations an element at 10 TFLOP/s against 4 bytes: the units are the bottleneck.
    est = rl.estimate(graph, CHIP, mode="graph")
    assert est.floor == pytest.approx(1000 * 2**24 / 10e12)
    assert est.time >= est.floor
    assert (est.bound, est.mfu) == ("compute", 0.0)


# --- modes -----------------------------------------------------------------------------------------------------------


def chain(steps: int, n: int = 8) -> rl.Graph:
    b = rl.ops.Builder("chain", "bf16")
    x = b.input("x", (n,))
    for _ in range(steps):
        x = b.op("relu", x)
    return b.graph([x])


def test_eager_is_the_slower_of_host_and_device() -> None:
    est = rl.estimate(chain(10), CHIP)
    assert (est.launches, est.mode) == (10, "eager")
    assert est.host_time == pytest.approx(10 * 5e-6 * (1 + LAUNCH))
    assert est.device_time == pytest.approx(10 * stream_seconds(32))
    assert (est.time, est.bound) == (est.host_time, "host")
    assert est.low == est.host_time / UNCOUNTED
    assert est.high == est.host_time * UNCOUNTED


def test_eager_with_large_kernels_hides_the_host() -> None:
    est = rl.estimate(gemm(), CHIP)
    assert est.time == est.device_time > est.host_time > 0
    assert est.bound == "compute"


def test_graph_has_the_same_kernels_and_no_host() -> None:
    eager, graph = (rl.estimate(chain(10), CHIP, mode=mode) for mode in ("eager", "graph"))
    assert graph.host_time == 0
    assert (graph.launches, graph.bytes, graph.device_time) == (10, eager.bytes, eager.device_time)
    assert graph.time == graph.device_time < eager.time


def test_compiled_fuses_first() -> None:
    est = rl.estimate(chain(10, n=2**24), CHIP, mode="compiled")
    assert (est.launches, est.host_time) == (1, 0)
    assert est.bytes == 2 * 2 * 2**24
    assert est.time == pytest.approx(rl.estimate(chain(1, n=2**24), CHIP, mode="graph").time)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(
        rl.errors.UsageError, match="unknown mode 'compile'; allowed: eager, graph, compiled; did you mean compiled"
    ):
        rl.estimate(chain(1), CHIP, mode="compile")  # type: ignore[arg-type]


# --- traps -----------------------------------------------------------------------------------------------------------


def test_no_chip_is_ever_a_default() -> None:
    for unknown, fault in (("h100", "matches several"), ("h1000", "not known"), ("", "not known")):
        with pytest.raises(rl.errors.UnknownChip, match=fault):
            rl.estimate(gemm(), unknown)
    with pytest.raises(TypeError):
        rl.estimate(gemm())  # type: ignore[call-arg]
    with pytest.raises(rl.errors.UsageError, match="no chip given"):
        rl.estimate(gemm(), [])


def test_a_peak_that_is_not_published_is_never_made_up() -> None:
    for dtype in ("int8", "fp8", "fp16"):
        with pytest.raises(rl.errors.MissingFigure, match=f"hand has no published {dtype} matmul peak"):
            rl.estimate(gemm(dtype), CHIP)
    assert rl.estimate(gemm("int8"), CHIP.replace(int8="150 TFLOP/s"), mode="graph").floor == FLOPS / 150e12


def test_sparse_figures_predict_nothing() -> None:
    sparse = rl.Chip(name="sparse", matrix={"bf16": {"flops": "100 TFLOP/s", "sparse": "200 TFLOP/s"}},
                     memory_bandwidth="1 TB/s")  # fmt: skip
    assert rl.estimate(gemm(), sparse, mode="graph").floor == FLOPS / 100e12
    assert rl.estimate(gemm(), "h100-sxm", mode="graph").floor == FLOPS / 989.4e12


def test_fp32_matmuls_have_a_vector_peak_and_a_switch_to_tf32() -> None:
    plain, switched = (rl.estimate(gemm("fp32"), CHIP, mode="graph", tf32=tf32) for tf32 in (False, True))
    assert plain.floor == FLOPS / 10e12
    assert switched.floor == FLOPS / 50e12
    assert switched.time < plain.time
    for est in (plain, switched):
        assert est.mfu == pytest.approx(est.floor / est.time)
        assert est.mfu <= 0.5


def test_storage_formats_multiply_as_the_activations_do() -> None:
    b = rl.ops.Builder("g", "bf16")
    y = b.op("linear", b.input("x", (4096, 4096)), b.weight("w", (4096, 4096), dtype="int4-g128"))
    assert rl.estimate(b.graph([y]), CHIP, mode="graph").floor == FLOPS / 100e12


def test_the_traffic_of_a_program_is_a_lower_bound_of_its_time() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    est = rl.estimate(graph, "h100-sxm", mode="graph", B=1, C=2048)
    assert est.time > 2 * (graph.parameters - 128256 * 4096) / 3.35e12


# --- shapes and points -----------------------------------------------------------------------------------------------


def test_numbers_in_are_numbers_out() -> None:
    est = rl.estimate(gemm(rows=B), CHIP, B=7)
    assert est.shape == ()
    for name in ("time", "low", "high", "floor", "mfu", "mbu", "throughput", "intensity", "host_time"):
        assert type(getattr(est, name)) is float, name
    assert (type(est.bound), type(est.fits), type(est.flops)) == (str, bool, int)


def test_every_result_has_the_shape_of_the_grid() -> None:
    est = rl.estimate(gemm(rows=B * S), [CHIP, "h100-sxm"], B=[1, 2, 3], S=[4, 5])
    assert (est.shape, est.axis_names) == ((2, 3, 2), ("chip", "B", "S"))
    times = "time low high floor host_time device_time"
    for name in f"{times} flops vector_flops bytes intensity mfu mbu throughput bound fits capacity".split():
        assert np.shape(getattr(est, name)) == est.shape, name
    assert all(np.shape(value) == est.shape for value in est.memory.parts().values())
    assert len(est.records()) == 12


def test_one_point_of_a_grid() -> None:
    est = rl.estimate(gemm(rows=B), [CHIP, "h100-sxm"], B=[1, 4096])
    assert est[0, 1].time == rl.estimate(gemm(), CHIP).time == est.time[0, 1]
    assert est[1, -1].chip.name == "h100-sxm"
    assert est[0, 1].grid.values == {"B": 4096}
    for index in (0, (0,), (0, 1, 0)):
        with pytest.raises(rl.errors.UsageError, match=r"axes \('chip', 'B'\); index all of them"):
            est[index]
    with pytest.raises(IndexError):
        est[0, 2]
    with pytest.raises(rl.errors.UsageError, match="spans 2 chips"):
        _ = est.chip
    assert rl.estimate(gemm(), CHIP)[()].time == rl.estimate(gemm(), CHIP).time


def test_kernels_are_listed_slowest_first_for_one_point() -> None:
    est = rl.estimate(rl.model("gpt2", layers=3), "h100-sxm", B=1, S=64, mode="graph")
    rows = est.kernel_rows()
    times = [row["time_s"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(est.device_time)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["count"] for row in rows) == est.launches
    assert sum(row["count"] * row["flops"] for row in rows) == est.flops
    assert sum(row["count"] * row["bytes"] for row in rows) == est.bytes
    assert list(est.top(2)["kernel"]) == [row["kernel"] for row in rows[:2]]
    assert len(est.kernels()) == len(rows)
    with pytest.raises(
        rl.errors.UsageError, match=r"listed for one point; give batch \(B\) one number, or index the estimate first"
    ):
        rl.estimate(gemm(rows=B), CHIP, B=[1, 2]).kernel_rows()


KEYS = (
    "model chip phase mode batch context time_s low_s high_s floor_s flops bytes intensity bound tokens_per_s "
    "memory_bytes calibrated"
)


def test_records_hold_the_stable_keys() -> None:
    record = rl.estimate(rl.model("llama-3-8b", phase="decode", layers=1), "h100-sxm", B=[1, 8], S=100).records()[1]
    assert set(KEYS.split()) <= record.keys()
    assert (record["batch"], record["context"], record["chip"], record["phase"]) == (8, 100, "h100-sxm", "decode")
    parts = record["memory_bytes"]
    assert {"weights", "kv_cache", "activations", "total"} <= parts.keys()
    assert parts["total"] == sum(value for key, value in parts.items() if key != "total")
    assert record["tokens_per_s"] == pytest.approx(8 / record["time_s"])


def test_frames_and_text() -> None:
    est = rl.estimate(gemm(rows=B), CHIP, B=[1, 2])
    frame = est.frame()
    assert len(frame) == 2
    assert {"time_s", "memory_bytes_weights", "batch"} <= set(frame.columns)
    assert "axes {'B': 2}" in repr(est)
    assert repr(est[1]).startswith("<Estimate gemm on hand, eager: ")
    assert "<table" in est._repr_html_()
    assert "<table" in est[0]._repr_html_()


def test_images_are_not_tokens() -> None:
    record = rl.estimate(rl.model("resnet18"), "h100-sxm", B=4).records()[0]
    assert record["tokens_per_s"] is None
    assert record["images_per_s"] == pytest.approx(4 / record["time_s"])


def test_fit_is_by_chip() -> None:
    est = rl.estimate(rl.model("llama-3-8b", phase="decode"), ["h100-sxm", CHIP], B=1, C=2048)
    assert list(est.fits) == [True, False]
    assert list(est.capacity) == [84.94e9, 16e9]


def test_a_chip_whose_capacity_nobody_published_has_an_estimate() -> None:
    sizes = {"phase": "decode", "B": 1, "C": 512}
    one = rl.estimate("gpt2", "xeon-8480", **sizes)  # memory of a CPU depends on the system
    assert one.fits is None
    record = one.records()[0]
    assert (record["capacity_bytes"], record["fits"]) == (None, None)
    assert record["time_s"] == one.time > 0
    both = rl.estimate("gpt2", ["xeon-8480", "h100-sxm"], **sizes)
    assert list(both.fits) == [None, True]
    assert [row["fits"] for row in both.records()] == [None, True]
    step = rl.training.train("gpt2", "xeon-8480", batch=1, seq=64)
    assert (step.capacity, step.fits) == (None, None)
    assert "capacity unknown" in repr(step)


def test_where_the_shares_come_from_is_the_weakest_of_all_chips() -> None:
    assert rl.estimate(gemm(), CHIP).calibrated == "prior"
    assert rl.estimate(gemm(), "h100-sxm").calibrated == "measured"
    assert rl.estimate(gemm(), ["h100-sxm", CHIP]).calibrated == "prior"
    assert rl.estimate(gemm(), CHIP).not_modelled


def test_a_chip_without_vector_peaks_says_what_it_leaves_out() -> None:
    bare = rl.Chip(name="bare", matrix={"bf16": "100 TFLOP/s"}, memory_bandwidth="1 TB/s")
    notes = rl.estimate(gemm(), bare).not_modelled
    assert any("no vector peak published for bare" in note for note in notes)


def test_nothing_to_time_is_an_error() -> None:
    b = rl.ops.Builder("empty", "bf16")
    graph = b.graph([b.op("view", b.input("x", (4,)), shape=(2, 2))])
    with pytest.raises(rl.errors.UsageError, match="empty has no kernel"):
        rl.estimate(graph, CHIP)


def test_counts_are_those_of_the_program_as_it_runs() -> None:
    graph = rl.model("gpt2", layers=2)
    sizes = {"B": 2, "S": 16}
    assert rl.estimate(graph, "h100-sxm", **sizes).bytes == rl.count(graph, **sizes).bytes
    assert (
        rl.estimate(graph, "h100-sxm", mode="compiled", **sizes).bytes == rl.count(rl.passes.fuse(graph), **sizes).bytes
    )


# --- the host --------------------------------------------------------------------------------------------------------


def test_a_capture_counts_what_the_host_calls() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(64, 64)
    graph = rl.from_torch(lambda x: layer(torch.relu(x.view(16, 64)).t().t()), torch.empty(4, 4, 64))
    calls = graph.info.calls
    assert (calls.kernels, calls.operators) == (2, 2), "relu and addmm"
    assert calls.views == 4, "view, twice t, and that of the weight"
    host = rl.chip("h100-sxm").efficiency.host
    expected = host * (calls.operators + VIEW * calls.views + LAUNCH * rl.estimate(graph, "h100-sxm").launches)
    assert rl.estimate(graph, "h100-sxm").host_time == pytest.approx(expected)


def test_what_the_host_calls_grows_with_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    graph = rl.from_torch(lambda x: torch.softmax((x * 2 + 1).relu().sin(), -1) @ x.t(), torch.empty(64, 64))
    fused = rl.passes.fuse(graph)
    alone, together = (rl.estimate(each, "h100-sxm") for each in (graph, fused))
    assert together.launches < alone.launches
    assert together.host_time / alone.host_time == pytest.approx(together.launches / alone.launches, rel=0.05)


def test_another_host_is_a_factor_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text('[efficiency]\nhost = "11 us"\n')
    of = {"phase": "decode", "batch": 1, "context": 64}
    own, half, other = (rl.estimate("gpt2", "h100-sxm", host=host, **of) for host in (None, 0.5, file))
    assert half.host_time == pytest.approx(own.host_time / 2)
    assert other.host_time == pytest.approx(own.host_time * 11e-6 / rl.chip("h100-sxm").efficiency.host)
    assert half.device_time == own.device_time
    file.write_text("[efficiency]\n")
    for host, why in ((0, "from 0.001"), (file, "no host in"), (float("nan"), "from 0.001")):
        with pytest.raises(rl.errors.UsageError, match=why):
            rl.estimate("gpt2", "h100-sxm", host=host, **of)
    assert rl.check("gpt2", "h100-sxm", 1e-3, host=1e-3, **of).estimate.bound != "host"


# Wall times of eager runs that their host sets, on the H100 of measurements/h100-sxm/zoo: PyTorch 2.11.
HOST_BOUND = {
    "dit-b2": (10505.2, {"operators": 237, "views": 246, "kernels": 262}),
    "bert-large": (10225.7, {"operators": 297, "views": 653, "kernels": 297}),
    "t5-small": (25314.2, {"operators": 499, "views": 496, "kernels": 703}),
    "lstm-2x512": (5450.9, {"operators": 12, "views": 12, "kernels": 548}),
    "unet-bn-32": (2991.0, {"operators": 66, "views": 0, "kernels": 132}),
    "dlrm-small": (2281.6, {"operators": 62, "views": 56, "kernels": 63}),
}


@pytest.mark.parametrize("name", HOST_BOUND)
def test_host_bound_programs_take_their_calls_and_launches(name: str) -> None:
    wall, calls = HOST_BOUND[name]
    graph = chain(calls["kernels"]).with_info(calls=HostCalls(**calls))
    est = rl.estimate(graph, "h100-sxm")
    assert est.low <= wall * 1e-6 <= est.high
    assert est.high / est.low < 3.01
