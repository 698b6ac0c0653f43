"""Rounding and pruning on real data: digits, and text that ships with Python; networks are trained here, in seconds."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import roofline as rl

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
small_networks = pytest.importorskip("small_networks")
quantised_accuracy = pytest.importorskip("quantised_accuracy")
Recipe = rl.quant.Recipe


@pytest.fixture(scope="module")
def digits():
    """Half of the digits to train on, and a network that has."""
    if find_spec("sklearn") is None:
        pytest.skip("no scikit-learn")
    data, net = small_networks.digits(), small_networks.digits_net(12)
    small_networks.train_digits(net, data, epochs=15)
    return data, net


@pytest.fixture(scope="module")
def language():
    """A piece of Python's own reference, a transformer that has read some, and calibration batches."""
    data = small_networks.text(60_000)
    net = small_networks.language_net(data, width=32)
    small_networks.train_language(net, data, steps=80, batch=16, rate=1e-2)
    return data, net, [x for x, _ in data.batches(2, 16, 64)]


def perplexity(data, net):
    return data.perplexity(net, pieces=64)


def signal(net, module, x):
    """Return how far the outputs are above the noise that rounding adds [dB]."""
    return rl.quant.deviation(net(x), module(x)).sqnr_db


def test_digits_in_int8_are_read_as_well(digits):
    data, net = digits
    whole = data.accuracy(net)
    assert whole > 0.9
    small = rl.quant.quantize_module(net, [data.images], Recipe("int8", activations="int8")).module
    assert abs(data.accuracy(small) - whole) <= 0.005
    assert data.loss(small) == pytest.approx(data.loss(net), rel=0.03)


def test_second_order_rounding_keeps_what_nearest_loses(digits):
    data, net = digits
    costs = {
        method: rl.quant.sensitivity(net, [data.images[:64]], ["int4"], recipe=Recipe(method=method))
        for method in ("nearest", "gptq")
    }
    every = dict.fromkeys(costs["gptq"].layers, "int4")
    assert costs["gptq"].error(every) < 0.7 * costs["nearest"].error(every)
    alone = [[row.error for row in each.rows] for each in costs.values()]
    assert sum(alone[1]) < 0.7 * sum(alone[0])


def test_digits_with_a_format_for_each_layer(digits):
    data, net = digits
    loss = quantised_accuracy.loss_of_digits(data)
    formats, recipe = ["int8", "int4", "int3-g16-z3"], Recipe(method="gptq")
    some = [data.images[:64]]
    costs = rl.quant.sensitivity(net, some, formats, recipe=recipe, evaluate=loss)
    widths = rl.quant.mixed(costs, "h100-sxm", against="memory", error_limit=0.003, plans=2)
    best = widths.best
    assert best.error <= 0.003
    assert best.score == pytest.approx(loss(net) + best.error)
    eight = rl.estimate(costs.quantized(dict.fromkeys(costs.layers, "int8")), "h100-sxm").memory.weights
    assert best.weight_bytes == rl.estimate(costs.quantized(best.formats), "h100-sxm").memory.weights < eight
    small = rl.quant.quantize_module(net, some, Recipe(dict(best.formats), method="gptq")).module
    assert loss(small) == pytest.approx(best.score, abs=1e-6)
    assert data.accuracy(small) > data.accuracy(net) - 0.02


def test_a_pruned_network_comes_back_with_little_training(digits):
    data, net = digits
    whole, losses = data.accuracy(net), quantised_accuracy.losses_of_digits(data)
    for by in ("weight", "activation", "taylor"):
        small = rl.quant.prune(net, data.images, by=by, loss=losses, channels=0.3)
        before = data.accuracy(small.module)
        small_networks.train_digits(small.module, data, epochs=3)
        after = data.accuracy(small.module)
        assert 0.2 < before < whole, by
        assert after > max(before, whole - 0.05), by
    share = rl.count(small.smaller).flops / rl.count(small.graph).flops
    assert 0.35 < share < 0.6  # 0.7 of the channels on both sides of the second convolution, which does most
    times = [rl.estimate(graph, "xeon-8480", mode="graph").time for graph in (small.graph, small.smaller)]
    assert times[1] < times[0]


def test_language_in_fewer_bits(language):
    data, net, batches = language
    whole = perplexity(data, net)
    assert whole < 0.25 * data.symbols

    def rounded(*recipe, **more):
        return rl.quant.quantize_module(net, batches, Recipe(*recipe, **more)).module

    x = data.test[: 64 * 32].reshape(32, 64)
    eight = rounded("int8")
    assert perplexity(data, eight) == pytest.approx(whole, rel=2e-3)
    sqnr = [
        signal(net, module, x)
        for module in (
            eight, rounded("int8", activations="int8"), rounded("int4-g32", method="gptq"), rounded("int4-g32"),
            rounded("int4-g32", activations="int8"), rounded("mxfp4", activations="mxfp4"),
        )
    ]  # fmt: skip
    assert sqnr == sorted(sqnr, reverse=True)
    assert sqnr[0] > sqnr[3] + 15  # a bit is 6 dB
    assert signal(net, rounded("nvfp4"), x) > signal(net, rounded("mxfp4"), x)


def test_smoothing_leaves_a_transformer_as_it_is(language):
    """Norms hand on to matmuls through views, as PyTorch's linear layers have them."""
    data, net, batches = language
    graph, batches = rl.from_torch(net, batches[0]), batches[:1]
    largest = {name: seen.largest for name, seen in rl.quant.observe(net, batches).items()}
    state = net.state_dict()
    new = rl.quant.smooth(graph, {name: each for name, each in state.items() if name in graph.tensors}, largest)
    changed = {name for name in new if not torch.equal(torch.as_tensor(new[name]).float(), state[name])}
    assert {"layers.0.norm1.weight", "layers.0.qkv.weight", "layers.1.norm2.bias", "layers.1.up.weight"} <= changed
    assert not changed & {"layers.0.out.weight", "layers.0.down.weight"}
    again = small_networks.language_net(data, width=32)
    again.load_state_dict({**state, **{name: torch.as_tensor(each).float() for name, each in new.items()}})
    torch.testing.assert_close(again(batches[0]), net(batches[0]), atol=1e-3, rtol=1e-3)


def test_a_quantised_cache_costs_more_the_fewer_bits_it_has(language):
    data, net, _ = language
    x = data.test[: 64 * 32].reshape(32, 64)
    eight, four = (signal(net, quantised_accuracy.cached_in(net, word), x) for word in ("int8", "int4"))
    assert 30 < four < eight - 15  # a bit is 6 dB
    assert perplexity(data, quantised_accuracy.cached_in(net, "int8")) == pytest.approx(perplexity(data, net), rel=1e-3)


def test_formats_for_each_layer_of_a_language_model(language):
    _data, net, batches = language
    costs = rl.quant.sensitivity(net, batches[:1], ["int8", "int4-g32"])
    four = costs.error(dict.fromkeys(costs.layers, "int4-g32"))
    widths = rl.quant.mixed(costs, "h100-sxm", against="memory", error_limit=four / 2, plans=4)
    best = widths.best
    assert best.error <= four / 2
    assert set(best.formats.values()) == {"int8", "int4-g32"}
    assert best.error == pytest.approx(best.error_sum, rel=0.5)  # noise of layers adds up to first order
    falling = [plan.error for plan in widths.plans]
    assert falling == sorted(falling)
