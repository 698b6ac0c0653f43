"""Fronts over layers and formats."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.cli import main
from roofline.ops.builder import Builder

ITEM = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=5))
def test_front_is_that_of_trying_every_combination(items):
    sums = {tuple(map(sum, zip(*choice, strict=True))) for choice in product(*items)}
    unbeaten = sorted(one for one in sums if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in sums))
    front = rl.quant.front(*([[pair[part] for pair in item] for item in items] for part in (0, 1)))
    assert list(zip(front.costs, front.errors, strict=True)) == unbeaten
    assert front.gap == 0
    for cost, error, choice in zip(front.costs, front.errors, front.choices, strict=True):
        assert (cost, error) == tuple(
            map(sum, zip(*(item[at] for item, at in zip(items, choice, strict=True)), strict=True))
        )


def test_a_thinned_front_stays_within_its_gap():
    dice = np.random.default_rng(0)
    costs, errors = dice.uniform(0, 1, (2, 60, 4))
    exact, thin = rl.quant.front(costs, errors), rl.quant.front(costs, errors, most=100)
    assert exact.gap == 0
    assert len(thin.costs) <= 101 < len(exact.costs)
    assert 0 < thin.gap < 0.3 * exact.costs[-1]
    for cost, error in zip(exact.costs, exact.errors, strict=True):
        assert thin.costs[thin.errors <= error + 1e-9].min() <= cost + thin.gap


@pytest.mark.parametrize(("costs", "errors"), [([[]], [[]]), ([[1, 2]], [[1]]), ([[1.0]], [[float("nan")]])])
def test_front_refuses_what_cannot_be_summed(costs, errors):
    with pytest.raises(rl.errors.UsageError, match="item 0"):
        rl.quant.front(costs, errors)


# --- layers and formats ----------------------------------------------------------------------------------------------

FORMATS = ("int8", "int4-g32")


def network(layers=3, width=64):
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts[:-1]), torch.randn(48, width)


@pytest.fixture(scope="module")
def costs():
    net, x = network()
    return rl.quant.sensitivity(net, [x], FORMATS)


def test_sensitivity_is_the_noise_of_one_layer_rounded(costs):
    net, x = network()
    y, w = net(x).detach().double(), net[2].weight.detach()
    with pytest.importorskip("torch").no_grad():
        net[2].weight.copy_(rl.quant.fake(w, "int4-g32"))
    row = next(row for row in costs.rows if (row.weight, row.format) == ("2.weight", "int4-g32"))
    noise = float(((net(x).detach().double() - y) ** 2).sum() / (y**2).sum())
    assert row.error == pytest.approx(noise, rel=1e-4)
    assert (row.elements, row.bits) == (64 * 64, 5)  # 4 bits, and a 16-bit scale and zero point a group of 32


def test_a_module_and_its_program_cost_the_same(costs):
    net, x = network()
    weights = {name: each.numpy() for name, each in net.state_dict().items()}
    batches = [{"input": x.numpy()}]
    again = rl.quant.sensitivity(costs.graph, batches, FORMATS, weights=weights)
    assert [row.error for row in again.rows] == pytest.approx([row.error for row in costs.rows], rel=1e-3)
    gptq = rl.quant.Recipe(method="gptq")
    better, module = (
        rl.quant.sensitivity(*of, FORMATS, recipe=gptq, layers="2*", **more)
        for of, more in (((costs.graph, batches), {"weights": weights}), ((net, [x]), {}))
    )
    assert [row.error for row in better.rows] == pytest.approx([row.error for row in module.rows], rel=1e-2)
    both = rl.quant.Recipe(activations="int8", scales="dynamic")
    of = rl.quant.sensitivity(costs.graph, batches, ["int8"], weights=weights, recipe=both)
    as_module = rl.quant.sensitivity(net, [x], ["int8"], recipe=both)
    assert [row.error for row in of.rows] == pytest.approx([row.error for row in as_module.rows], rel=1e-2)
    assert all(row.error > other.error for row, other in zip(of.rows, costs.rows[::2], strict=True))
    plain = [row.error for row in costs.rows if row.weight == "2.weight"]
    assert all(one.error < other for one, other in zip(better.rows, plain, strict=True))


def test_the_front_of_layers_is_that_of_every_combination(costs):
    widths = rl.quant.mixed(costs, "h100-sxm", against="memory", plans=99)
    choices = [(None, *FORMATS)] * 3
    rows = {(row.weight, row.format): row for row in costs.rows}
    sums = set()
    for words in product(*choices):
        picked = [rows[name, word] for name, word in zip(costs.layers, words, strict=True) if word]
        saved = sum(row.elements * (32 - row.bits) / 8 for row in picked)
        sums.add((4 * 3 * 64 * 64 - saved, sum(row.error for row in picked)))
    unbeaten = [one for one in sums if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in sums)]
    assert [(plan.weight_bytes, plan.error_sum) for plan in widths.plans] == [
        pytest.approx(one) for one in sorted(unbeaten, reverse=True)
    ]
    assert (widths.points, widths.gap) == (len(unbeaten), 0)


@pytest.mark.parametrize("limit", [{"error_limit": 4e-4}, {"memory_limit": "9 kB"}])
def test_the_best_plan_holds_its_limit_as_a_whole(costs, limit):
    widths = rl.quant.mixed(costs, "h100-sxm", against="memory", plans=2, **limit)
    best = widths.best
    assert best.error == costs.error(best.formats)
    every = rl.quant.mixed(costs, "h100-sxm", against="memory", plans=99).plans
    if "error_limit" in limit:
        assert best.weight_bytes == min(plan.weight_bytes for plan in every if plan.error <= 4e-4)
    else:
        assert best.error == min(plan.error for plan in every if plan.weight_bytes <= 9e3)
    assert widths.record()["best"]["formats"] == best.formats


def decode(layers=3, width=4096):
    """Weights of the same names where they set the pace."""
    b = Builder("decode", "bf16")
    x = b.input("x", (4, width))
    for layer in range(layers):
        x = b.op("linear", x, b.weight(f"{2 * layer}.weight", (width, width)), name=f"{2 * layer}")
    return b.graph([x])


def test_a_plan_is_a_pass_that_gives_its_time(costs):
    program = decode()
    ends = [plan.time for plan in rl.quant.mixed(costs, "h100-sxm", program=program, plans=2).plans]
    limit = sum(ends) / 2
    widths = rl.quant.mixed(costs, "h100-sxm", program=program, latency_limit=limit)
    best = widths.best
    assert 0 < len(best.formats) < 3
    again = eval(best.call, {"rl": rl, "graph": program})  # the plan as it is printed
    assert rl.estimate(again, "h100-sxm", mode="graph").time == best.time <= limit
    assert again.tensors == best.apply(program).tensors
    assert best.time == pytest.approx(best.time_sum, rel=2e-3)  # three launches that take nearly what each takes alone
    assert abs(best.time / best.time_sum - 1) <= widths.additivity + 1e-12 < 2e-3
    assert widths.plans[0].formats == {}
    assert len(widths.plans[-1].formats) == 3
    slower = [plan for plan in rl.quant.mixed(costs, "h100-sxm", program=program, plans=99).plans if plan.time > limit]
    assert slower
    assert all(plan.error <= best.error for plan in slower)


def test_where_times_do_not_add_up_plans_are_compared_as_wholes():
    """A prefill at the power cap: more layers in int8 are slower from some on, as the program is estimated."""
    graph = rl.model("llama-3-8b", phase="prefill", layers=4)
    names = [name for name in graph.tensors if name.startswith("layers") and len(graph.tensors[name].shape) > 1]
    names = [name for name in names if name.endswith("weight") and graph.tensors[name].kind == "weight"]
    rows = tuple(rl.quant.LayerCost(name, "int8", 1, 8.0, 1.0 + at / 100, None) for at, name in enumerate(names))
    error = lambda formats: (sum(row.error for row in rows if row.weight in formats), None)  # noqa: E731
    costs = rl.quant.Sensitivity(graph, rl.quant.Recipe(activations="int8"), rows, None, "made up", error)
    sizes = {"batch": 8, "seq": 4096}
    widths = rl.quant.mixed(costs, "h100-sxm", plans=99, error_limit=100, **sizes)
    times, errors = [plan.time for plan in widths.plans], [plan.error for plan in widths.plans]
    assert times == sorted(times, reverse=True)
    assert errors == sorted(errors)
    every = rl.estimate(costs.quantized(dict.fromkeys(names, "int8")), "h100-sxm", mode="graph", **sizes)
    assert widths.best.time == min(times) < 0.99 * every.time  # the sums end with every layer in int8
    limit = (times[0] + times[-1]) / 2
    best = rl.quant.mixed(costs, "h100-sxm", plans=1, latency_limit=limit, **sizes).best
    assert best.time <= limit
    assert best.error == min(plan.error for plan in widths.plans if plan.time <= limit)


def test_layers_that_are_alike_are_timed_once(costs, monkeypatch):
    calls = []
    timed = rl.estimate
    monkeypatch.setattr(
        "roofline.quant.bit_widths.estimate", lambda *args, **more: calls.append(1) or timed(*args, **more)
    )
    rl.quant.mixed(costs, "h100-sxm", program=decode(), plans=1)
    points = rl.quant.mixed(costs, "h100-sxm", program=decode(), plans=1).points
    assert len(calls) == 2 * (1 + 2 + points)  # before, one layer in each format, and the points of the front


def test_limits_that_cannot_be_held_say_how_near_they_come(costs):
    with pytest.raises(rl.errors.DoesNotFit, match=r"memory within 1 kB; the least is 7\.68 kB"):
        rl.quant.mixed(costs, "h100-sxm", memory_limit="1 kB")
    with pytest.raises(rl.errors.DoesNotFit, match="latency within 1 ns; the least is"):
        rl.quant.mixed(costs, "h100-sxm", latency_limit="1 ns")
    with pytest.raises(rl.errors.UsageError, match="error_limit and memory_limit: give one"):
        rl.quant.mixed(costs, "h100-sxm", error_limit=1, memory_limit="1 GB")
    with pytest.raises(rl.errors.UsageError, match="memory_limit holds on a front against memory, not against time"):
        rl.quant.mixed(costs, "h100-sxm", memory_limit="1 GB", against="time")
    with pytest.raises(rl.errors.UsageError, match=r"decode has no weight '4\.weight'"):
        rl.quant.mixed(costs, "h100-sxm", program=decode(layers=2))
    with pytest.raises(rl.errors.UsageError, match="plans=0"):
        rl.quant.mixed(costs, "h100-sxm", plans=0)


def test_an_evaluation_of_ones_own_is_what_counts():
    net, x = network(layers=2)
    seen = []

    def mean(module):
        seen.append(module)
        return float(module(x).detach().mean())

    costs = rl.quant.sensitivity(net, [x], ["int8"], evaluate=mean, better="higher")
    assert seen[0] is net
    assert costs.base == mean(net)
    assert [row.error for row in costs.rows] == [costs.base - row.score for row in costs.rows]
    assert costs.measured == f"what the evaluation becomes worse by, from {costs.base:.6g}"
    both = {"0.weight": "int8", "2.weight": "int8"}
    assert costs.error(both) == costs.base - mean(rl.quant.quantize_module(net, [], "int8").module)
    with pytest.raises(rl.errors.UsageError, match=r"evaluate\(\.\.\.\)=nan: expected a number"):
        rl.quant.sensitivity(net, [x], ["int8"], evaluate=lambda _: float("nan"))
    with pytest.raises(rl.errors.UsageError, match="better='more'; allowed: lower, higher"):
        rl.quant.sensitivity(net, [x], ["int8"], better="more")


def test_what_no_format_fits_is_refused(costs):
    net, x = network(layers=1)
    with pytest.raises(rl.errors.UsageError, match="int4-g128 fits no layer of Sequential"):
        rl.quant.sensitivity(net, [x], ["int4-g128"])
    with pytest.raises(rl.errors.UsageError, match=r"names none of 0\.weight"):
        rl.quant.sensitivity(net, [x], ["int8"], layers="attention*")
    with pytest.raises(rl.errors.UsageError, match="at least one calibration batch"):
        rl.quant.sensitivity(net, [], ["int8"])


def test_the_chart_has_what_was_added_up_and_what_was_measured(costs):
    widths = rl.quant.mixed(costs, "h100-sxm", against="memory", plans=3, error_limit=1e-3)
    chart = rl.charts.plot(widths)
    line, points, best = chart.drawing().panels[0].marks
    assert sorted(line.x) == sorted(points.x) == sorted(plan.weight_bytes for plan in widths.shown)
    assert sorted(points.y) == sorted(plan.error for plan in widths.shown)
    assert (list(best.x), list(best.y)) == ([widths.best.weight_bytes], [widths.best.error])
    assert chart.records() == widths.records()
    assert "fp32" in "".join(points.labels)
    assert best.labels[0]
    with pytest.raises(rl.errors.UsageError, match="expected BitWidths of"):
        rl.charts.plot_bit_widths(costs)


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint():
    dice = np.random.default_rng(5)
    return {f"{name}.weight": scale * dice.standard_t(3, (16, 64)) for name, scale in (("a", 1), ("b", 9), ("c[0]", 2))}


@pytest.mark.parametrize("limit", [2000, 2200, 2700, 9999])
def test_a_checkpoint_within_a_size_has_the_least_error(checkpoint, limit):
    words = ["int8", "int4-g16", "int4"]
    every = {}
    for word in words:
        for layer in rl.quant.quantize_arrays(checkpoint, word).layers:
            every[layer.name, word] = layer.rounded.bits / 8, 10 ** (-layer.error.sqnr_db / 10)
    best = rl.quant.formats_within(checkpoint, [*words, "int4-g48"], limit)
    sums = lambda picks: tuple(sum(every[pair][at] for pair in zip(checkpoint, picks, strict=True)) for at in (0, 1))  # noqa: E731
    fitting = [sums(picks) for picks in product(words, repeat=3) if sums(picks)[0] <= limit]
    size, error = sums(best.values())
    assert size <= limit
    assert error == pytest.approx(min(error for _, error in fitting))


@pytest.mark.parametrize(("chip", "limit"), [(None, 0.02), (None, 0.05), ("l4", 0.05)])
def test_a_checkpoint_within_an_error_has_the_least_size_or_time(checkpoint, chip, limit):
    """As :func:`roofline.estimate` has a program of that matrix alone; of three matrices every choice is tried."""
    words = ["int8", "int4-g16", "int4"]
    every = {}
    for word in words:
        for layer in rl.quant.quantize_arrays(checkpoint, word).layers:
            alone = rl.workload([{"op": "gemm", "m": 8, "n": 16, "k": 64}], dtype="bf16")
            small = rl.passes.quantize(alone, weights=word)
            cost = rl.estimate(small, chip, mode="graph").time if chip else layer.rounded.bits / 8
            every[layer.name, word] = cost, 10 ** (-layer.error.sqnr_db / 10)
    best = rl.quant.formats_within(checkpoint, words, error_limit=limit, chip=chip, batch=8)
    sums = lambda picks: tuple(sum(every[pair][at] for pair in zip(checkpoint, picks, strict=True)) for at in (0, 1))  # noqa: E731
    cost, error = sums(best.values())
    assert error <= limit
    assert cost == pytest.approx(min(sums(picks)[0] for picks in product(words, repeat=3) if sums(picks)[1] <= limit))
    if chip:
        again = rl.quant.formats_within(checkpoint, words, latency_limit=cost * (1 + 1e-9), chip=chip, batch=8)
        assert sums(again.values())[1] <= error


def test_a_limit_of_a_checkpoint_is_one_that_can_be_held(checkpoint):
    words = ["int8", "int4"]
    with pytest.raises(rl.errors.DoesNotFit, match=r"error_limit=1e-09: these formats add .* \(--error-budget"):
        rl.quant.formats_within(checkpoint, words, error_limit=1e-9)
    with pytest.raises(rl.errors.DoesNotFit, match=r"latency_limit=1 ns: these formats take .* \(--latency-limit"):
        rl.quant.formats_within(checkpoint, words, latency_limit="1 ns", chip="l4")
    for options in ({"latency_limit": "1 ms"}, {"memory_limit": "1 MB", "chip": "l4"}):
        with pytest.raises(rl.errors.UsageError, match="latency_limit needs chip"):
            rl.quant.formats_within(checkpoint, words, **options)
    with pytest.raises(rl.errors.UsageError, match="give memory_limit, error_limit or latency_limit"):
        rl.quant.formats_within(checkpoint, words)
    with pytest.raises(rl.errors.DoesNotFit, match="has 4 axes; only a program"):
        rl.quant.formats_within({"c.weight": np.ones((4, 8, 3, 3))}, ["int8"], latency_limit="1 ms", chip="l4")


def test_quantize_on_the_command_line_chooses_formats(checkpoint, tmp_path, capsys):
    np.savez(tmp_path / "w.npz", **checkpoint)
    words = ["quantize", f"{tmp_path}/w.npz", "--mixed", "int8,int4", "--memory-limit", "2.3kB"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["weights_bytes"] <= 2300
    formats = {row["weight"]: row["format"].partition("-")[0] for row in printed["rows"]}
    assert formats == rl.quant.formats_within(checkpoint, ["int8", "int4"], 2300)
    assert set(formats.values()) == {"int8", "int4"}
    assert main([*words[:-1], "1 kB"]) == 2
    assert "take 1.73 kB at least (--memory-limit, --mixed)" in capsys.readouterr().err
    assert main(words[:4]) == 2
    assert "--mixed FORMATS goes with one of --memory-limit, --error-budget" in capsys.readouterr().err
    for limit, library in (
        (["--error-budget", "2%"], {"error_limit": 0.02}),
        (["--latency-limit", "1ms", "--chip", "l4", "-B", "64"],
         {"latency_limit": "1 ms", "chip": "l4", "batch": 64}),
    ):  # fmt: skip
        assert main([*words[:4], *limit, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        picked = rl.quant.formats_within(checkpoint, ["int8", "int4"], **library)
        assert {row["weight"]: row["format"].partition("-")[0] for row in rows} == picked
