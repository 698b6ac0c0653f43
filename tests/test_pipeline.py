"""A program's way: captured, cleaned, fused, planned, scheduled."""

from __future__ import annotations

import pytest
from command_line import Run

import roofline as rl


def wasteful() -> rl.Graph:
    """Two equal products, one of them used twice over, and a softmax that nobody reads."""
    b = rl.ops.Builder("wasteful", "bf16")
    x, w = b.input("x", (4096, 4096)), b.weight("w", (4096, 4096))
    same = [b.op("linear", x, w, name=name) for name in ("first", "second")]
    b.op("softmax", same[0], name="lost")
    return b.graph([b.op("relu", b.op("add", *same, name="sum"), name="y")])


def test_each_stage_has_its_figures_and_what_it_saves() -> None:
    way = rl.diagnosis.pipeline(wasteful(), "h100-sxm")
    by_name = {row["name"]: row for row in way.records()}
    assert list(by_name) == ["captured", "cleaned", "fused", "planned", "scheduled"]
    matrix = 2 * 4096**2  # bytes
    assert by_name["captured"]["nodes"] == 5
    # two products read two matrices and write one, softmax and relu one and one, the sum two and one
    assert by_name["captured"]["bytes"] == (3 + 3 + 2 + 3 + 2) * matrix
    assert by_name["cleaned"]["nodes"] == 3
    assert by_name["cleaned"]["bytes"] == (3 + 2 + 2) * matrix  # the sum reads one tensor twice
    assert by_name["fused"]["kernels"] < by_name["cleaned"]["kernels"]
    assert by_name["cleaned"]["saves"]["bytes"] == 6 * matrix
    assert by_name["planned"]["expected_s"] is None
    for before, after in zip(way.stages, way.stages[1:], strict=False):
        assert after.name == "scheduled" or after.time_s <= before.time_s * (1 + 1e-12)
    assert by_name["scheduled"]["time_s"] >= by_name["planned"]["time_s"]


def test_a_tile_that_reads_again_is_counted() -> None:
    b = rl.ops.Builder("wide", "bf16")
    y = b.op("linear", b.input("x", (16384, 16384)), b.weight("w", (16384, 16384)), name="y")
    way = rl.diagnosis.pipeline(b.graph([y]), "tpu-v5e")
    (tile,) = way.tiles
    assert tile.compulsory_bytes == 3 * 2 * 16384**2
    assert tile.moved_bytes > tile.compulsory_bytes  # 1.5 GiB of operands through 128 MiB
    planned, scheduled = way.stages[-2:]
    assert scheduled.bytes - planned.bytes == pytest.approx(tile.moved_bytes - tile.compulsory_bytes)
    assert scheduled.bytes >= rl.tiling.matmul_lower_bound(16384, 16384, 16384, 128 * 2**20, widths=2)


def test_each_matmul_has_its_fastest_schedule_and_the_time_of_the_library() -> None:
    b = rl.ops.Builder("product", "bf16")
    y = b.op("linear", b.input("x", (4096, 2048)), b.weight("w", (8192, 2048)), name="y")
    graph = b.graph([y])
    way, ranked = rl.diagnosis.pipeline(graph, "h100-sxm"), rl.schedules(graph, "h100-sxm")
    (blocks,) = way.schedules
    assert (blocks.best, blocks.library_s) == (ranked.best, ranked.library)
    (row,) = way.record()["matmuls"]
    assert row == {
        "kernel": "y", "count": 1, "time_s": ranked.best.time_s, "library_s": ranked.library,
        **{name: getattr(ranked.best, name) for name in ("bm", "bn", "bk", "group", "warps", "stages")},
    }  # fmt: skip
    assert rl.diagnosis.pipeline(graph, "tpu-v5e").schedules == ()  # schedules are those of NVIDIA's SMs
    assert rl.diagnosis.pipeline(rl.passes.cast(graph, "fp32"), "h100-sxm", tf32=False).schedules == ()


def test_weights_stay_narrow_up_to_their_matmul() -> None:
    b = rl.ops.Builder("narrow", "bf16")
    y = b.op("linear", b.input("x", (16, 8192)), b.weight("w", (8192, 8192)), name="y")
    graph = rl.passes.quantize(b.graph([y]), weights="int4")
    way = rl.diagnosis.pipeline(graph, "h100-sxm")
    moved = rl.count(graph).bytes
    assert moved < 2 * 8192**2 / 3
    assert {stage.bytes for stage in way.stages} == {moved}
    assert way.tiles[0].compulsory_bytes == pytest.approx(moved)
    assert way.schedules == ()
    with pytest.raises(rl.errors.UsageError, match=r"y: schedules are of operands .* stored in, not of int4"):
        rl.schedules(graph, "h100-sxm")


def test_without_a_memory_on_chip_nothing_is_tiled() -> None:
    way = rl.diagnosis.pipeline("resnet18", "h100-sxm", level="main", batch=1)
    assert way.tiles == ()
    assert way.stages[-1].what == "no tiles"
    assert way.stages[-2].what == "all in main memory"


def test_a_torch_import_goes_the_same_way() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Tanh()).eval()
    way = rl.diagnosis.pipeline(rl.from_torch(net, torch.zeros(2**17, 64)), "h100-sxm")
    assert [stage.kernels for stage in way.stages] == [3, 3, 2, 2, 2]
    assert way.stages[-1].time_s < way.stages[0].time_s
    assert way.record()["speed_up"] > 1
    assert "captured" in repr(way)


def test_the_table_fits_eighty_columns(run: Run) -> None:
    done = run("pipeline", "gpt2", "h100-sxm", "--phase", "decode", "-B", "8", "-S", "512")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    for stage in ("captured", "cleaned", "fused", "planned", "scheduled"):
        assert f"\n{stage} " in done.out


def test_a_policy_that_is_none_is_refused_with_its_name() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"unknown fusion policy 'chain'.*chains"):
        rl.diagnosis.pipeline("resnet18", "h100-sxm", policy="chain", batch=1)


def test_its_chart_is_that_of_passes() -> None:
    way = rl.diagnosis.pipeline("resnet18", "h100-sxm", batch=1)
    rows = rl.charts.plot(way, "passes").records()
    assert [row["step"] for row in rows] == ["cleaned", "fused", "planned", "scheduled"]
    assert rows[1]["bytes_ratio"] < 1
