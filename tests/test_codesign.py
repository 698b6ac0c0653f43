"""Co-design: published yields, energies and dies; parts that add up; the least chip that meets every limit."""

from __future__ import annotations

import tomllib
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.codesign import Goal, die_yield, dies, dies_per_wafer, search, silicon, technology
from roofline.codesign.silicon import RETICLE, YIELDS, _transistors, energy
from roofline.codesign.technology import SHIPPED
from roofline.hardware.figures import FIGURES

DECODE = "gpt2 decode batch=8 context=512"


# --- published figures ------------------------------------------------------------------------------------------------


def test_dies_and_yields_are_those_of_the_textbook() -> None:
    # Hennessy and Patterson, Computer Architecture: section 1.6, wafers of 300 mm, dies of 1.5 and 1.0 cm; solutions to
    # the 4th edition's case study 1: dies of 3.89, 1.86 and 3.80 cm2, 0.30, 0.70 and 0.75 defects per cm2, alpha 4;
    # a good die of a wafer of 500 USD for 9.38 USD.
    assert [round(dies_per_wafer(area)) for area in (225.0, 100.0, 389.0, 186.0)] == [270, 640, 148, 331]
    yields = [die_yield(area, defects, clusters=4) for area, defects in ((389.0, 0.30), (186.0, 0.70), (380.0, 0.75))]
    assert [round(share, 2) for share in yields] == [0.36, 0.32, 0.12]
    assert 500 / (dies_per_wafer(389.0) * yields[0]) == pytest.approx(9.38, rel=0.01)
    # Murphy 1964 and Poisson, at one defect a die: (1 - 1/e)^2 and 1/e.
    assert die_yield(100.0, 1.0, "murphy") == pytest.approx((1 - exp(-1)) ** 2)
    assert die_yield(100.0, 1.0, "poisson") == pytest.approx(exp(-1))


def test_figures_are_as_they_were_published() -> None:
    n7, n5 = technology("N7"), technology("N5")
    assert (n7.figure("node", "wafer"), n5.figure("node", "wafer")) == (9346, 16988)  # CSET 2020, table 9
    assert (n7.figure("node", "defects"), n5.figure("node", "defects")) == (0.09, 0.105)  # AnandTech 2020
    # Jouppi et al., ISCA 2021, table 2, 7 nm: int8 0.07 + int32 add 0.03; FP32 1.31 + 0.38; 64 bits of 1 MB 14 [pJ].
    assert n7.figure("energy", "int8") == pytest.approx(0.07 + 0.03)
    assert n7.figure("energy", "fp32") == pytest.approx(1.31 + 0.38)
    assert n7.figure("energy", "sram") == pytest.approx(14 / 8)
    assert n7.figure("energy", "fp8") is None
    assert "read in: " in n7.source("energy", "fp32")  # second-hand, and said so
    joules = energy(silicon("h100-sxm", n7), {"bf16": 2e12}, 1e9, 2e9, 0.0)
    assert joules == pytest.approx(0.59 + 0.04375 + 0.0035)  # 10^12 multiply-adds of 0.59 pJ; 43.75 and 1.75 a byte
    half = energy(silicon("h100-sxm", "N5"), {}, 0.0, 0.0, 0.5)
    assert half == pytest.approx(0.5 * 0.098 * silicon("h100-sxm", "N5").area)  # 0.098 W/mm2: 80 W of 814 mm2


def test_multipliers_stand_to_each_other_as_in_silicon() -> None:
    """Areas of Horowitz, ISSCC 2014, 45 nm: multipliers of fp16 1640, fp32 7700, int8 282, int32 3495 um2."""
    sizes = {name: _transistors(technology(), name, False) for name in ("fp16", "fp32", "int8", "int32")}
    assert sizes["fp16"] / sizes["fp32"] == pytest.approx(1640 / 7700, rel=0.15)  # type: ignore[operator]
    assert sizes["int8"] / sizes["int32"] == pytest.approx(282 / 3495, rel=0.3)  # type: ignore[operator]


def test_dies_that_no_figure_was_fitted_to_come_out() -> None:
    errors = {row["die"]: row["error"] for row in dies() if not row["fitted"]}
    assert max(map(abs, (errors["GH100"], errors["AD102"]))) < 0.1
    assert abs(errors["GV100"]) < 0.2  # N16, by one ratio of densities
    left_out = next(row["left_out"] for row in dies() if row["die"] == "TPUv4")
    assert "ICI interface" in left_out  # an underestimate that says so


def test_every_figure_has_a_source() -> None:
    tables = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    sources = tables["sources"]

    def figures(table: Any) -> list[Any]:
        if "value" in table:
            return [table]
        return [figure for part in table.values() for figure in figures(part)]

    others = ("sources", "copies", "die")
    every = [figure for name, table in tables.items() if name not in others for figure in figures(table)]
    assert len(every) > 50
    assert all(figure["source"] in sources and figure["value"] > 0 for figure in every)
    assert {figure["source"] for figure in every} <= sources.keys()
    assert tables["copies"].keys() <= sources.keys()
    assert all(die["source"].startswith("https://") for die in tables["die"].values())


# --- laws -------------------------------------------------------------------------------------------------------------


@given(st.floats(1.0, 2.0), st.sampled_from(["peak", "vector_peak", "memory_bandwidth", "sram", "link_bandwidth"]))
@settings(max_examples=examples(40), deadline=None)
def test_area_adds_up_and_never_falls(factor: float, figure: str) -> None:
    chip = rl.chip("h100-sxm")
    more = silicon(rl.analysis.changed(chip, **{figure: factor}), "N5")
    base = silicon(chip, "N5")
    assert base.area == pytest.approx(sum(row["area_mm2"] for row in base.records()))
    assert more.area >= base.area * (1 - 1e-12)
    assert more.cost >= base.cost * (1 - 1e-12)
    assert all(more.parts[name] >= base.parts[name] * (1 - 1e-12) for name in base.parts)


@given(st.floats(1, 800), st.floats(0, 2), st.sampled_from(YIELDS))
@settings(max_examples=examples(100), deadline=None)
def test_yields_are_shares_that_fall(area: float, defects: float, model: str) -> None:
    share = die_yield(area, defects, model)
    assert 0 < share <= 1
    assert die_yield(area * 1.1, defects, model) <= share
    assert dies_per_wafer(area) > dies_per_wafer(area * 1.1)


@given(st.floats(1.2e-3, 6e-3), st.floats(1.0, 3.0), st.sampled_from(["area", "cost"]))
@settings(max_examples=examples(12), deadline=None)
def test_the_best_meets_every_limit_and_a_looser_one_never_takes_more(limit: float, looser: float, least: str) -> None:
    figures = {"bandwidth": "0.5..4TB/s", "flops": "100T,400T,1600T"}

    def of(seconds: float) -> rl.codesign.CoDesign:
        goals = [Goal("gpt2", seconds, "decode", sizes={"batch": 64, "context": 512}), f"{DECODE}: 10ms"]
        return search(goals, figures, points=4, objective=least)

    strict, loose = of(limit), of(limit * looser)
    if strict.best is None:
        assert not strict.meets.any()
        return
    assert all(strict.times[at, strict.best] <= goal.seconds for at, goal in enumerate(strict.goals))  # type: ignore[operator]
    assert strict.values[strict.best] == strict.values[strict.meets].min()
    assert loose.best is not None
    assert loose.values[loose.best] <= strict.values[strict.best]


@pytest.mark.parametrize("base", ["h100-sxm", "mi300x", "tpu-v5e"])
def test_a_chip_with_every_figure_as_it_is_takes_what_the_base_takes(base: str) -> None:
    chip, made = rl.chip(base), silicon(base)
    same = {name: "x1" for name, figure in FIGURES.items() if figure.known(chip)}
    design = search(f"{DECODE}: 2ms", {"flops": "x1,x2", **same} if base == "h100-sxm" else same, base=base)
    est = rl.estimate("gpt2", chip, phase="decode", mode="graph", batch=8, context=512)
    assert design.silicon_at(0).parts == pytest.approx(dict(made.parts))
    assert (design.values[0], np.ravel(design.chips.cost)[0]) == pytest.approx((made.area, made.cost), nan_ok=True)
    assert design.times[0, 0] == pytest.approx(est.time)


def test_matrix_units_are_counted_at_the_clock_of_their_peak() -> None:
    # 989.4 TFLOP/s at 1.83 GHz, multipliers of 685,300 x (10/52)^2 transistors, 138.2 million of them in a mm2.
    by_hand = 989.4e12 / (2 * 1.83e9) * 685_300 * (10 / 52) ** 2 / 138.2e6
    design = search(f"{DECODE}: 2ms", {"flops": "x1,x2"})
    assert [design.silicon_at(at).parts["matrix units"] for at in (0, 1)] == pytest.approx([by_hand, 2 * by_hand])


def test_energy_is_that_of_each_chip() -> None:
    goal, tech = "gpt2 prefill batch=8 seq=512 dtype=bf16: 1s", technology("N5")
    design = search(goal, {"l2": "5MiB,50MiB", "bandwidth": "1,4TB/s", "flops": "x0.5,x1"}, objective="energy")
    each = []
    for number in range(design.values.size):
        est = rl.estimate(design.goals[0].graph, design.chip_at(number), mode="graph", batch=8, seq=512)
        (levels,), flops = rl.analysis.levels.run_bytes(est), float(est.flops)
        on_chip = levels["L2"] + levels["SRAM"]
        each.append(1e-12 * (0.7 * (flops / 2 * 0.59 + on_chip * 1.75) + levels["HBM"] * 43.75)
                    + 0.098 * silicon(design.chip_at(number), tech).area * est.time)  # fmt: skip
    assert design.values == pytest.approx(np.array(each))
    assert len(set(design.values.tolist())) == design.values.size


@pytest.mark.parametrize("objective", ["area", "cost", "energy"])
def test_the_best_chip_is_on_the_front(objective: str) -> None:
    figures = {"bandwidth": "1..8TB/s", "flops": "200T..2P", "launch": "x0.5,x1"}
    design = search(f"{DECODE} dtype=bf16: 0.7ms", figures, objective=objective, points=4)
    assert design.meets.any()
    assert not design.meets.all()
    assert design.best in design.front


def test_a_chip_says_which_limits_it_misses() -> None:
    goals = [f"{DECODE}: 2ms", f"{DECODE}: 1us"]
    design = search(goals, {"bandwidth": "1,4TB/s"}, base="mi300x", objective="cost")
    assert [(name, missed.tolist()) for name, missed in design.misses] == [
        ("die", [True, True]), ("memory", [False, False]), (design.goals[0].name, [False, False]),
        (design.goals[1].name, [True, True])]  # fmt: skip
    assert [row["misses"] for row in design.records()] == [["die", design.goals[1].name]] * 2
    small = search(f"{DECODE}: 1s", {"capacity": "1GB,80GB"})
    assert [name for name, missed in small.misses if missed[0]] == ["memory"]
    assert small.meets.tolist() == [False, True]


def test_times_and_areas_of_many_chips_are_those_of_each() -> None:
    design = search(f"{DECODE}: 2ms", {"bandwidth": "1,3TB/s", "l2": "10MiB,60MiB", "flops": "x0.5,x1"})
    for number in range(design.values.size):
        chip = design.chip_at(number)
        assert design.values[number] == pytest.approx(silicon(chip, "N5").area)
        est = rl.estimate("gpt2", chip, phase="decode", mode="graph", batch=8, context=512)
        assert design.times[0, number] == pytest.approx(est.time)
    front = list(design.front)
    assert np.all(np.diff(design.values[front]) > 0)
    assert np.all(np.diff(design.pace[front]) < 0)
    for number in np.flatnonzero(design.fits):
        assert any(design.values[f] <= design.values[number] and design.pace[f] <= design.pace[number] for f in front)


def test_sensitivities_are_those_of_a_comparison() -> None:
    design = search([f"{DECODE}: 2ms", "resnet-50 batch=8 weight=3"], {"bandwidth": "3.35TB/s"})
    row = rl.compare("gpt2", design.chip_at(0), phase="decode", mode="graph", batch=8, context=512).rows[0]
    own = design.sensitivity[design.goals[0].name]
    assert own == pytest.approx(dict(row.elasticity))
    weights = np.array([1, 3]) * design.times[:, 0]
    both = [design.sensitivity[goal.name]["memory_bandwidth"] for goal in design.goals]
    assert design.sensitivity["all"]["memory_bandwidth"] == pytest.approx(np.average(both, weights=weights))


def test_one_die_is_what_a_scanner_exposes_and_energy_wants_its_figures() -> None:
    large = search(f"{DECODE}: 1s", {"flops": "x1,x4"})
    assert large.values.max() > RETICLE
    assert large.meets.tolist() == [True, False]
    assert search(f"{DECODE}: 1s", {"flops": "x1,x4"}, dies=2).meets.all()
    with pytest.raises(rl.errors.UsageError, match=r"energy: no figure in N16 for node\.energy, node\.static"):
        search(f"{DECODE} dtype=bf16: 1s", {"flops": "x1"}, objective="energy", node="N16")
    joules = [search(f"{DECODE} dtype=bf16: 1s", {"flops": "x1"}, objective="energy", node=node).values[0]
              for node in ("N7", "N5")]  # fmt: skip
    assert joules[0] > joules[1] > 0


# --- what is given ----------------------------------------------------------------------------------------------------


def test_goals_and_figures_say_what_is_wrong(tmp_path: Path) -> None:
    assert Goal.read("llama-3-8b decode B=4 C=128 tp=2 weights=int8 weight=2: 5 ms").weight == 2
    for wrong, message in (("", "expected a program"), ("gpt2 decod: 1ms", "'decod': expected a phase"),
                           ("gpt2 batch=x: 1ms", "batch='x': expected a whole number from 1"), ("gpt2: 5", "target"),
                           ("gpt2 batch=1.5: 1ms", "'1.5': expected a whole number"), ("gpt2 tp=1.5: 1ms", "a whole"),
                           ("gpt2 weight=0: 1ms", "a number above zero"), ("gpt2: 0ms", "limits must be positive"),
                           ("gpt2: -6ms", "'-6ms': limits must be positive")):  # fmt: skip
        with pytest.raises(rl.errors.RooflineError, match=message):
            Goal.read(wrong)
    goal = f"{DECODE}: 2ms"
    for options, message in (
        ({"objective": "price"}, "allowed: area, cost, energy"), ({"node": "N2"}, "allowed: N16, N7, N6, N5"),
        ({"memory_kind": "hbm9"}, "did you mean"), ({"yield_model": "best"}, "allowed: negative_binomial"),
        ({"own": {"node": {"N5": {"wafer": -1}}}}, r"node\.N5\.wafer=-1: expected a number above zero"),
        ({"own": {"nodes": {}}}, "did you mean"), ({"own": {"node": {"N5": {"wafre": 3}}}}, "did you mean wafer"),
        ({"own": {"energy": {"fp9": 3}}}, "'fp9': allowed: int8"), ({"own": tmp_path / "none.toml"}, "no such file"),
    ):  # fmt: skip
        with pytest.raises(rl.errors.UsageError, match=message):
            search(goal, {"flops": "x1"}, **options)
    with pytest.raises(rl.errors.UsageError, match=r"seconds=-1\.0: limits must be positive"):
        Goal("gpt2", -1.0)
    for values in ("-1T..1P", "x0..x2", [-1e12, 1e12]):
        with pytest.raises(rl.errors.UsageError, match=r"set flops=.*: expected values above zero"):
            search(goal, {"flops": values})
    with pytest.raises(rl.errors.UsageError, match="no figure to vary"):
        search(goal, {})
    with pytest.raises(rl.errors.UsageError, match="no program"):
        search([], {"flops": "x1"})


def test_own_figures_stand_over_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[node.N3]\ndensity = 200\nbit = 0.2\nwafer = 20000\ndefects = 0.1\n[memory.hbm3]\nprice = 15\n")
    made = silicon("h100-sxm", technology("N3", "hbm3", path))
    assert made.area < silicon("h100-sxm", "N5").area
    assert made.memory_cost == pytest.approx(15 * rl.chip("h100-sxm").capacity / 1e9)
    assert technology("N3", "hbm3", path).source("node", "wafer") == "given"


def test_a_chart_shows_the_front() -> None:
    design = search(f"{DECODE}: 2ms", {"bandwidth": "1,2,4TB/s"})
    chart = rl.charts.plot(design)
    assert chart.drawing().panels[0].x.label == "area [mm2]"
    assert len(chart.records()) == len(design.front)
    none = rl.charts.plot(search(f"{DECODE}: 2ms", {"bandwidth": "1,2TB/s"}, base="mi300x"))
    names = [getattr(mark, "name", "") for mark in none.drawing().panels[0].marks]
    assert "comes nearest, misses die" in names
