"""Sizes that differ from run to run: draws against closed forms, times against the estimate at each draw."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, fails

import roofline as rl
from roofline.analysis.varied.distribution import Distribution, choice, exponential, from_csv, lognormal, uniform
from roofline.analysis.varied.experts import expert_parts, loads
from roofline.analysis.varied.variation import vary

GPT2 = rl.model("gpt2", phase="decode", layers=4)
MIXTRAL = rl.passes.shard(rl.model("mixtral-8x7b", phase="decode", layers=2), ep=4)
AT: dict[str, Any] = {"mode": "graph", "context": 512}


def near(values: Any, expected: float) -> None:
    """A mean of draws is within five standard errors of what is expected."""
    assert abs(np.mean(values) - expected) <= 5 * np.std(values) / math.sqrt(len(values)) + 1e-12


# --- distributions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("lognormal:mean=512,p95=1500", 512), ("lognormal:median=400,sigma=0.8", 400 * math.exp(0.32)),
        ("uniform:low=1,high=9", 5), ("geometric:mean=4", 4), ("exponential:mean=2", 2), ("choice:8=3,32=1", 14),
        ("choice:8,32", 20),
    ],
)  # fmt: skip
def test_draws_have_the_mean_that_is_promised(text: str, mean: float) -> None:
    of = Distribution.parse(text)
    assert of.mean == pytest.approx(mean)
    near(of.draw(50_000, 3, "seq"), mean)


@pytest.mark.parametrize("figures", [{"mean": 512.0}, {"median": 512.0}])
def test_a_lognormal_has_its_95th_percentile(figures: dict[str, float]) -> None:
    values = lognormal(p95=1500, **figures).draw(200_000, 0)
    assert np.percentile(values, 95) == pytest.approx(1500, rel=0.02)
    assert str(lognormal(p95=1500, **figures)).endswith("p95 1500")


def test_the_same_seed_and_name_give_the_same_draws() -> None:
    of = uniform(1, 10**9)
    assert (of.draw(9, 1, "a") == of.draw(9, 1, "a")).all()
    assert (of.draw(9, 1, "a") != of.draw(9, 2, "a")).any()
    assert (of.draw(9, 1, "a") != of.draw(9, 1, "b")).any()


def test_a_column_of_a_table_is_drawn_from(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("id,tokens\na,100\nb,\nc,300\n")
    of = Distribution.parse(f"csv:{tmp_path / 'lengths.csv'},column=tokens")
    assert set(of.draw(100, 0).tolist()) == {100.0, 300.0}
    with pytest.raises(rl.errors.UsageError, match="did you mean tokens"):
        from_csv(tmp_path / "lengths.csv", "token")
    with pytest.raises(rl.errors.UsageError, match="id='a'"):
        from_csv(tmp_path / "lengths.csv", "id")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lognormal:mean=512,p95=2000", "allowed: from 512 to 1980"), ("lognormal:mean=512", "p95 or sigma"),
        ("lognormal:mean=-1,p95=3", "mean='-1'"), ("lognormal:median=9,p95=3", "allowed: from 9"),
        ("lognormal:mean=nan,p95=3", "mean='nan'"), ("lognormal:meen=1", "did you mean mean"), ("normal:", "lognormal"),
        ("uniform:low=9,high=1", "the lower one first"), ("uniform:low=1.5,high=2", "whole numbers"),
        ("uniform:low=1", "give low= and high="), ("geometric:mean=0.5", "from 1"), ("choice:", "value="),
        ("choice:8=0", "8='0'"), ("csv:x", "csv:FILE,column=NAME"), ("", "no distribution"), ("8", "no distribution"),
        ("uniform:low=1,low=2", "once for each"), ("lognormal:mean=1,sigma=1e9", "sigma="),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_refused(text: str, words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        Distribution.parse(text)


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_each_draw_takes_the_time_of_the_estimate_at_its_sizes(mode: Any) -> None:
    some = vary(GPT2, "h100-sxm", mode=mode, samples=40, batch="choice:1,8,64", context=uniform(1, 1000))
    for at in range(0, 40, 13):
        sizes = {name: int(some.drawn[name][at]) for name in ("batch", "context")}
        est = rl.estimate(GPT2, "h100-sxm", mode=mode, **sizes)
        assert some.times[at] == pytest.approx(est.time)
        assert (some.low[at], some.high[at]) == pytest.approx((est.low, est.high))
    assert some.mean == pytest.approx(some.times.mean())
    assert some.percentile(0) == some.times.min() <= some.percentile(50) <= some.percentile(99)


def test_trips_multiply_the_time() -> None:
    once = rl.estimate(GPT2, "h100-sxm", batch=1, **AT).time
    assert vary(GPT2, "h100-sxm", samples=2000, batch=1, **AT).error == 0
    assert vary(GPT2, "h100-sxm", samples=2, trips=7, batch=1, **AT).times == pytest.approx([7 * once] * 2)
    some = vary(GPT2, "h100-sxm", samples=20_000, trips="geometric:mean=4", batch=1, **AT)
    near(some.times, 4 * once)
    assert some.at_means == pytest.approx(once * some.drawn["trips"].mean())


@pytest.mark.parametrize("batch", [1, 8])
def test_early_exit_runs_until_the_last_sequence_leaves(batch: int) -> None:
    chance, number = 0.3, 4
    est = rl.estimate(GPT2, "h100-sxm", batch=batch, **AT)
    by_layer: dict[str, float] = {}
    for run in rl.timeline(GPT2, "h100-sxm", batch=batch, **AT).tasks:
        by_layer[run.layer] = by_layer.get(run.layer, 0.0) + run.seconds
    layers = [by_layer[f"layers.{at}"] for at in range(number)]
    # a layer runs unless all have left before it: 1 - (1 - (1 - p)^l)^B
    runs = [1 - (1 - (1 - chance) ** at) ** batch for at in range(number)]
    expected = est.time - sum(layers) + sum(share * each for share, each in zip(runs, layers, strict=True))
    some = vary(GPT2, "h100-sxm", samples=20_000, leave=chance, batch=batch, **AT)
    near(some.times, expected)
    near(some.drawn["layers"], sum(runs))
    assert vary(GPT2, "h100-sxm", samples=9, leave=[1.0, 0, 0, 0], batch=batch, **AT).drawn["layers"].max() == 1
    assert vary(GPT2, "h100-sxm", samples=9, leave=1e-12, batch=batch, **AT).times == pytest.approx([est.time] * 9)


def test_the_busiest_of_devices_is_an_order_statistic() -> None:
    rng = np.random.default_rng(0)
    many = np.full(20_000, 10**9)
    for devices in (2, 4, 8):  # the largest of n shares that are uniform on the simplex: H_n / n
        near(loads(many, devices, devices, exponential(), rng), sum(1 / at for at in range(1, devices + 1)))
    assert loads(many, 8, 8, None, rng) == pytest.approx(np.ones(20_000), abs=1e-3)
    picks = 10  # even: the mean absolute deviation of a binomial
    apart = sum(math.comb(picks, at) * abs(at - picks / 2) for at in range(picks + 1)) / 2**picks
    near(loads(np.full(50_000, picks), 2, 8, None, rng), 1 + apart / (picks / 2))
    assert loads(many[:9], 2, 4, choice([0.0]), rng) == pytest.approx(np.ones(9), abs=1e-3)  # no expert has any appeal


def test_experts_slow_their_own_layers_alone() -> None:
    parts = expert_parts(MIXTRAL)
    assert list(parts) == ["layers.0", "layers.1"]
    assert {label.rpartition(".")[2] for label in parts["layers.0"]} == {"alltoall", "gate_up", "silu", "gated", "down"}
    even, skewed = (vary(MIXTRAL, "h100-sxm", samples=200, experts=each, batch=512, **AT)
                    for each in ("even", "exponential:mean=1"))  # fmt: skip
    time = rl.estimate(MIXTRAL, "h100-sxm", batch=512, **AT).time
    assert time <= even.times.min()
    assert even.mean < skewed.mean
    assert (even.drawn["busiest_device"] < skewed.drawn["busiest_device"].mean()).all()
    slow = np.corrcoef(skewed.drawn["busiest_device"], skewed.times)[0, 1]
    assert slow > 0.9


def test_lengths_beyond_a_table_of_positions_are_cut_and_said() -> None:
    some = vary(GPT2, "h100-sxm", samples=50, mode="graph", batch=1, context="choice:10,5000")
    assert some.drawn["context"].max() == 1024
    assert "cut to the 1,024 positions" in some.notes[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 1}, "samples=1"), ({"seed": -1}, "seed=-1"), ({"mode": "fast"}, "unknown mode"),
        ({"leave": 2.0}, "chance from 0 to 1"), ({"leave": [0.1]}, "one for each of 4 layers"),
        ({"leave": "x"}, "leave='x'"), ({"trips": 0}, "trips=0"), ({"trips": "x"}, "no distribution"),
        ({"experts": "even"}, "give --ep"), ({"batch": [1, 2]}, "one number, or what it is drawn from"),
        ({"batch": "8"}, "no distribution"), ({"batch": None}, "batch"), ({"trips": 1.5}, "expected a Distribution"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.RooflineError, match=words):
        vary(GPT2, "h100-sxm", **{"samples": 3, "batch": 1, "context": 8, **options})


def test_the_command_draws_what_python_draws(run: Run, tmp_path: Path) -> None:
    call = ("timeline", "gpt2", "h100-sxm", "--phase", "decode", "-S", "uniform:low=1,high=900", "--samples", "50")
    some = vary("gpt2", "h100-sxm", phase="decode", samples=50, batch=1, context="uniform:low=1,high=900")
    data = run(*call, "--json").data
    assert data["time_s"] == some.mean
    assert data["p95_s"] == some.percentile(95)
    assert [row["quantity"] for row in data["rows"]] == ["time_s", "context"]
    assert "mean time" in run(*call, "--leave", "0.1", "--trips", "2", "--plot", tmp_path / "x.svg").out
    assert (tmp_path / "x.svg").stat().st_size > 1000
    fails(run(*call, "--streams", "2"), "--streams is of one run")
    fails(run(*call, "--prefetch", "0"), "--prefetch is of one run")
    fails(run(*call[:5], "-S", "8", "--samples", "50"), "nothing is drawn")
    fails(run(*call, "--leave", "x"), "--leave 'x'")


def test_more_draws_than_can_be_timed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.analysis.varied.experts.MOST", 300)
    with pytest.raises(rl.errors.UsageError, match=r"samples=200 of 2 layers with experts; allowed: at most 150$"):
        vary(MIXTRAL, "h100-sxm", samples=200, experts="even", batch=512, **AT)
