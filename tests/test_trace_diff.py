"""Two traces compared: what grew, shrank, came and went, on traces with known times; the differences add up."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import Made, chain

import roofline as rl
from roofline.diagnosis.trace_diff import IDLE, OpChange

ROOT = Path(__file__).resolve().parent.parent
MM, WIDE, X = [[512, 512], [512, 512]], [[512, 512], [512, 2048]], [[512, 512]]
Calls = Sequence[Any]
#: A block whose matmul, chain and gather take 30, 10 and 5 us.
BLOCK: Calls = [("aten::mm", MM, 30.0, {"kernel": "gemm_128x128"}), ("aten::relu", X, 10.0, {}),
                ("aten::index", X, 5.0, {})]  # fmt: skip


def diff(folder: Path, before: Made, after: Made) -> rl.diagnosis.TraceDiff:
    found = rl.diagnosis.compare_traces(before.write(folder, "before.json"), after.write(folder, "after.json"))
    adds_up(found)
    return found


def adds_up(found: rl.diagnosis.TraceDiff) -> None:
    """The sum of all differences is the difference, by operator and by part."""
    change = found.after.seconds - found.before.seconds
    most = 1e-15 * max(found.before.seconds, found.after.seconds)
    assert found.change_s == math.fsum(row.change_s for row in found.rows)
    assert math.fsum(row.change_s for row in found.operators) == pytest.approx(found.change_s, rel=0, abs=most)
    assert found.change_s == pytest.approx(change, rel=0, abs=most)
    assert math.fsum(part.change_s for part in found.parts) == pytest.approx(change, rel=0, abs=most)
    json.dumps(found.record(), allow_nan=False)


def of(folder: Path, before: Calls, after: Calls) -> dict[str, OpChange]:
    """What became of each operator."""
    rows = diff(folder, chain(Made(), before), chain(Made(), after)).rows
    return {row.op: row for row in rows if row.role != IDLE}


def test_the_same_trace_twice(tmp_path: Path) -> None:
    found = diff(tmp_path, chain(Made(), BLOCK, gap=7), chain(Made(), BLOCK, gap=7))
    assert found.change_s == 0
    assert {(row.outcome, row.change_s) for row in found.rows} == {("same", 0.0)}
    assert found.notes == ()


def test_what_grew_and_shrank(tmp_path: Path) -> None:
    after = [("aten::mm", MM, 20.0, {"kernel": "gemm_128x128"}), BLOCK[1], ("aten::index", X, 9.0, {})]
    found = of(tmp_path, BLOCK, after)
    assert {op: round(row.change_s * 1e6, 6) for op, row in found.items()} == {
        "aten::mm": -10, "aten::relu": 0, "aten::index": 4,
    }  # fmt: skip
    assert {row.outcome for row in found.values()} == {"same"}


def test_another_tile_is_the_same_operator(tmp_path: Path) -> None:
    row = of(tmp_path, BLOCK, [("aten::mm", MM, 18.0, {"kernel": "nvjet_sm90_256x128"}), *BLOCK[1:]])["aten::mm"]
    assert (row.outcome, row.kernels_before, row.kernels_after) == (
        "other kernel", ("gemm_128x128",), ("nvjet_sm90_256x128",),
    )  # fmt: skip
    assert row.change_s == pytest.approx(-12e-6)


def test_two_tiles_that_become_one(tmp_path: Path) -> None:
    other = ("aten::mm", MM, 40.0, {"kernel": "gemm_64x64"})
    row = of(tmp_path, [*BLOCK, other], [*BLOCK, BLOCK[0]])["aten::mm"]
    assert (row.outcome, row.calls_before, row.calls_after) == ("other kernel", 2, 2)
    assert row.change_s == pytest.approx(-10e-6)


def test_what_came_and_went(tmp_path: Path) -> None:
    found = of(tmp_path, BLOCK, [*BLOCK[:2], ("mine::fused", X, 3.0, {})])
    assert (found["aten::index"].outcome, found["mine::fused"].outcome) == ("gone", "new")
    assert found["aten::index"].change_s == pytest.approx(-5e-6)
    assert found["mine::fused"].change_s == pytest.approx(3e-6)


def test_other_shapes_are_matched_in_order(tmp_path: Path) -> None:
    def calls(rows: int) -> Calls:
        return [("aten::mm", [[rows, 512], [512, n]], 10.0 * n * rows / 2**19, {}) for n in (512, 2048, 1024)]

    found = diff(tmp_path, chain(Made(), calls(1024)), chain(Made(), calls(2048)))
    rows = [row for row in found.rows if row.role != IDLE]
    assert {row.outcome for row in rows} == {"other shapes"}
    assert [row.shapes for row in rows] == [
        f"1024x512, 512x{n} -> 2048x512, 512x{n}" for n in (2048, 1024, 512)
    ]  # fmt: skip
    assert [row.time_after_s / row.time_before_s for row in rows] == pytest.approx([2, 2, 2])


def inside(made: Made, outer: str, calls: Calls, at: float) -> float:
    """Calls within an operator or a range around them on the host."""
    begin = at
    for op, dims, duration, options in calls:
        at = made.call(op, dims, at, duration, issued=at - 500, host=2.0, **options)
    category = "python_function" if outer.startswith("nn.Module") else "cpu_op"
    made.slice(category, outer, begin - 502, at - begin + 1)
    return at


def test_another_way_to_compute_one_operator(tmp_path: Path) -> None:
    heads = [[8, 512, 64]] * 3
    written_out = [("aten::bmm", [[8, 512, 64], [8, 64, 512]], 20.0, {}), ("aten::_softmax", [[8, 512, 512]], 30.0, {}),
                   ("aten::bmm", [[8, 512, 512], [8, 512, 64]], 25.0, {})]  # fmt: skip
    flash = [("aten::_scaled_dot_product_flash_attention", heads, 15.0, {})]
    traces = [Made(), Made()]
    for made, calls in zip(traces, (written_out, flash), strict=True):
        inside(made, "aten::scaled_dot_product_attention", calls, 2000)
    row = next(row for row in diff(tmp_path, *traces).rows if row.role != IDLE)
    assert (row.op, row.outcome) == ("aten::scaled_dot_product_attention", "replaced")
    assert (row.time_before_s, row.time_after_s) == (pytest.approx(75e-6), pytest.approx(15e-6))


def test_equal_operators_of_two_modules_stay_apart(tmp_path: Path) -> None:
    def made(second: float) -> Made:
        trace = Made()
        at = inside(trace, "nn.Module: Encoder_0", [("aten::mm", MM, 30.0, {})], 2000)
        at = inside(trace, "nn.Module: Decoder_0", [("aten::mm", MM, second, {})], at + 100)
        trace.call("aten::relu", X, at, 10)  # or the two would be two iterations
        return trace

    found = diff(tmp_path, made(30.0), made(45.0))
    rows = {row.place: row.change_s for row in found.rows if row.op == "aten::mm"}
    assert rows == {"nn.Module: Encoder_0": pytest.approx(0), "nn.Module: Decoder_0": pytest.approx(15e-6)}
    (together,) = (row for row in found.operators if row.op == "aten::mm")
    assert (together.calls_before, together.place) == (2, "")
    assert together.change_s == pytest.approx(15e-6)


def test_all_is_per_iteration(tmp_path: Path) -> None:
    found = diff(tmp_path, chain(Made(), BLOCK, iterations=2), chain(Made(), BLOCK, iterations=5))
    assert found.change_s == pytest.approx(0, abs=1e-12)
    assert found.notes == ("2 iterations before and 5 after: all is per iteration",)


def test_steps_that_the_profiler_marked_are_no_places(tmp_path: Path) -> None:
    made = chain(Made(), BLOCK)
    for step in range(2):
        made.slice("user_annotation", f"ProfilerStep#{step}", 945 + 45 * step, 45)
    found = diff(tmp_path, chain(Made(), BLOCK), made)
    assert {row.place for row in found.rows} == {""}
    assert {row.outcome for row in found.rows} == {"same"}


def test_idle_time_by_its_reason(tmp_path: Path) -> None:
    def made(pause: float) -> Made:
        trace = Made()
        trace.call("aten::relu", X, 1000, 10, issued=999)
        trace.call("aten::relu", X, 1010 + pause, 10, issued=1009 + pause)  # the host does nothing for so long
        trace.call("aten::mm", MM, 1020 + pause, 10, issued=1019 + pause)
        return trace

    found = diff(tmp_path, made(0), made(1000))
    row = next(row for row in found.rows if row.op == "idle: host-bound")
    assert (row.role, row.outcome) == (IDLE, "new")
    assert row.change_s == pytest.approx(1e-3, rel=0.02)
    assert next(part for part in found.parts if part.part == "host_bound").change_s == pytest.approx(1e-3, rel=0.02)


def test_kernels_without_operators(tmp_path: Path) -> None:
    text = "Start (ns),Duration (ns),CorrId,GrdX,Device,Strm,Name\n"
    rows = {"before": ("ampere_gemm_128x64", "relu_kernel"), "after": ("ampere_gemm_256x128", "relu_kernel")}
    for name, (gemm, relu) in rows.items():
        long = 300 if name == "before" else 200
        (tmp_path / name).write_text(f"{text}0,{long},1,1,0,7,{gemm}\n{long},100,2,1,0,7,{relu}\n")
    found = rl.diagnosis.compare_traces(tmp_path / "before", tmp_path / "after")
    adds_up(found)
    states = {row.op: (row.outcome, round(row.change_s * 1e9)) for row in found.rows if row.role != IDLE}
    assert states == {"ampere_gemm_128x64": ("other kernel", -100), "relu_kernel": ("same", 0)}


def test_what_limits_it_is_said(tmp_path: Path) -> None:
    other = chain(Made("Tesla T4"), [("mine::a", X, 30.0, {})], iterations=4)
    other.document = dict(reversed(other.document.items()))  # the device's name is not in what is cut off
    path = other.write(tmp_path, "t4.json")
    path.write_text(path.read_text()[:-40])
    found = rl.diagnosis.compare_traces(chain(Made(), BLOCK).write(tmp_path), path)
    notes = "\n".join(found.notes)
    for words in ("different chips: h100-sxm before, t4 after", "partial: only a part of the trace after",
                  "2 iterations before", "operators that both have take 0% of the time"):  # fmt: skip
        assert words in notes
    adds_up(found)


def test_sums_against_starts(tmp_path: Path) -> None:
    (tmp_path / "sums.csv").write_text("name,time_us\nmm,30\n")
    found = rl.diagnosis.compare_traces(tmp_path / "sums.csv", chain(Made(), BLOCK, gap=9).write(tmp_path))
    assert any("no starts before" in note for note in found.notes)
    assert {part.part for part in found.parts} >= {"busy"}  # no floor, since the sums are of an unknown chip
    adds_up(found)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_any_two_traces_add_up(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    folder = tmp_path_factory.mktemp("any")

    def made() -> Made:
        names = draw.choices(["aten::mm", "aten::relu", "mine::x", "nccl:all_reduce"], k=draw.randint(1, 6))
        calls = [(name, draw.choice([MM, X, WIDE, None]), draw.uniform(0.3, 90), {"kernel": draw.choice("abc")})
                 for name in names]  # fmt: skip
        return chain(Made(), calls, iterations=draw.randint(1, 3), gap=draw.uniform(0, 50))

    diff(folder, made(), made())


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    after = [("aten::mm", MM, 18.0, {"kernel": "nvjet_sm90_256x128"}), BLOCK[1], ("mine::secret", X, 3.0, {})]
    return chain(Made(), BLOCK).write(tmp_path, "a.json"), chain(Made(), after, gap=30.0).write(tmp_path, "b.json")


def test_text_fits_80_columns(run: Run, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run("trace", *pair, "--diff").out
    assert max(map(len, out.splitlines())) <= 80
    for words in ("a.json -> b.json on h100-sxm", "other kernel", "gone", "new", "gemm_128x128 -> nvjet_sm90_256x128"):
        assert words in out


def test_json_and_csv_have_the_same_rows(run: Run, pair: tuple[Path, Path]) -> None:
    data = run("trace", *pair, "--diff", "--json").data
    assert data["schema"]["name"] == "trace_diff"
    assert math.fsum(row["change_s"] for row in data["rows"]) == data["change_s"]
    assert len(run("trace", *pair, "--diff", "--csv").out.splitlines()) == len(data["rows"]) + 1


def test_a_chip_after_the_files(run: Run, pair: tuple[Path, Path]) -> None:
    assert run("trace", *pair, "a100-80gb-sxm", "--diff", "--json").data["chip"] == "a100-80gb-sxm"
    assert run("trace", pair[0], "a100-80gb-sxm", "--json").data["chip"] == "a100-80gb-sxm"


def test_wrong_use(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    fails(run("trace", pair[0], "--diff"), "--diff compares two traces, given 1")
    fails(run("trace", *pair, pair[0], "--diff"), "given 3")
    fails(run("trace", *pair, "--diff", "--html", tmp_path / "x.html"), "--html is of one trace")
    fails(run("trace", pair[0], tmp_path / "nowhere.json", "--diff"), "nowhere.json")
    fails(run("trace", *pair, "h100-sxn", "--diff"), "h100-sxn", "h100-sxm")


def test_the_recorded_pair(run: Run) -> None:
    pair = [ROOT / "examples" / f"block_{name}.json.gz" for name in ("before", "after")]
    found = rl.diagnosis.compare_traces(*pair)
    adds_up(found)
    lost = {part.part: part for part in found.parts}
    assert lost["host_copy"].time_after_s == lost["materialised"].time_after_s == 0
    assert found.rows[0].op == "aten::copy_"
    assert {row.outcome for row in found.rows if row.op == "aten::addmm"} == {"same"}
