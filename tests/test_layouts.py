"""Channels first or last: the same numbers, the copies that it takes, and which mix is fastest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ops.builder import Builder
from roofline.ops.reference import same
from roofline.passes.rewriting.layouts import copies, images
from roofline.planning.cut import FIXED, Network

STEPS = ("conv", "point", "norm", "group", "relu", "join", "add", "pool", "flat", "double", "grow")


def net(steps: list[str], last: bool = False, batch: int = 2, channels: int = 4, size: int = 8) -> rl.Graph:
    """A program of some steps, each on what the one before made, whose operators have images in one layout."""
    b = Builder("net", "fp16")
    x = b.input("x", (batch, channels, size, size))
    kept = [x]
    for at, step in enumerate(steps):
        name, shape, way = f"{step}{at}", b.shape(x), {"channels_last": last}
        if step == "conv":
            x = b.op("conv2d", x, b.weight(f"{name}.w", (channels, shape[1], 3, 3)), name=name, padding=1, **way)
        elif step == "point":
            x = b.op("conv2d", x, b.weight(f"{name}.w", (channels, shape[1], 1, 1)), name=name, **way)
        elif step in ("norm", "group"):
            vectors = [b.weight(f"{name}.{v}", (shape[1],)) for v in ("s", "b", "m", "v")[: 4 if step == "norm" else 2]]
            more = {"groups": 2} if step == "group" else {}
            x = b.op("batchnorm2d" if step == "norm" else "groupnorm", x, *vectors, name=name, **way, **more)
        elif step == "join":
            x = b.op("cat", x, x, name=name, axis=1)
        elif step == "add":
            x = b.op("add", x, next((each for each in reversed(kept) if b.shape(each) == shape), x), name=name)
        elif step == "pool":
            x = b.op("avgpool2d", x, name=name, r=3, stride=1, padding=1)
        elif step == "flat":  # out of the order of images and back
            rows = b.op("view", x, name=f"{name}.rows", shape=(shape[0] * shape[1], shape[2] * shape[3]))
            x = b.op("view", b.op("softmax", rows, name=name), name=f"{name}.image", shape=shape)
        elif step == "grow":
            x = b.op("upsample2d", x, name=name, scale=2) if shape[2] < 4 * size else x
        else:
            x = b.op("mul" if step == "double" else "relu", *([x] * (1 + (step == "double"))), name=name)
        kept.append(x)
    return b.graph([x, b.op("global_avgpool", x, name="mean")])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8), st.booleans(), st.data())
def test_any_layout_of_any_kernel_gives_the_same_numbers(steps: list[str], last: bool, data: st.DataObject) -> None:
    graph = net(steps, last, channels=data.draw(st.sampled_from([2, 4, 64])), size=4)
    free = list(images(graph).free)
    chosen = tuple(name for name in free if data.draw(st.booleans()))
    turned = rl.passes.layout(graph, "channels_first" if last else "channels_last", chosen)
    assert same(graph, turned)
    back = rl.passes.layout(turned, "channels_last" if last else "channels_first")
    assert [(node.op, node.inputs) for node in back.nodes] == [(node.op, node.inputs) for node in graph.nodes]
    assert images(turned).free == {name: last != (name in chosen) for name in free}


def test_a_chain_of_images_takes_two_copies_and_its_shortest_runs_none() -> None:
    graph = net(["conv", "norm", "relu", "conv", "add", "pool"])
    turned = rl.passes.layout(graph, "channels_last")
    assert [(copy.source, copy.last) for copy in copies(turned).values()] == [("x", True), ("pool5", False)]
    assert all(dict(node.attrs)["channels_last"] for node in turned.nodes if node.op in ("conv2d", "batchnorm2d"))
    assert rl.count(turned).flops == rl.count(graph).flops
    image = 2 * 4 * 8 * 8 * 2
    assert rl.count(turned).bytes == rl.count(graph).bytes + 2 * 2 * image
    assert [repr(step) for step in turned.history] == ["layout(layout='channels_last')"]


def test_what_has_no_channels_is_no_image() -> None:
    """Scores of attention, single points and single channels have one layout, and so have positions."""
    b = Builder("none", "fp16")
    scores = b.op("relu", b.input("scores", (2, 4, 8, 8)))
    point = b.op("conv2d", b.input("point", (2, 8, 1, 1)), b.weight("w", (8, 8, 1, 1)), channels_last=False)
    grey = b.op("conv2d", b.input("grey", (2, 1, 8, 8)), b.weight("v", (8, 1, 3, 3)), channels_last=False)
    assert not images(b.graph([scores, point, grey])).last.keys() & {"scores", "point", "grey"}
    assert images(rl.model("gpt2")).free == images(rl.model("llama-3-8b")).free == {}
    convnext = images(rl.model("convnext-tiny"))
    assert not [name for name in convnext.free if "gelu" in name]


def test_models_come_back_as_they_were() -> None:
    for name in ("resnet50", "mobilenet-v2", "convnext-tiny"):
        graph = rl.model(name)
        first = rl.passes.layout(graph, "channels_first")
        assert first is not graph
        back = rl.passes.layout(first, "channels_last")
        assert [(node.op, node.inputs) for node in back.nodes] == [(node.op, node.inputs) for node in graph.nodes]
        assert rl.count(back, batch=2).bytes == rl.count(graph, batch=2).bytes


def test_kernels_of_several_nodes_have_one_layout() -> None:
    graph = rl.passes.fuse(rl.model("resnet18"))
    turned = rl.passes.layout(graph, "channels_first")
    assert [copy.source for copy in copies(turned).values()] == ["image"]
    assert len(turned.kernels) == len(graph.kernels) + 4  # the copy, and the views around it
    assert rl.estimate(turned, "h100-sxm", batch=1).time > 0


def test_a_training_step_takes_the_layout_over() -> None:
    graph = rl.passes.layout(rl.model("resnet18"), "channels_first")
    step = rl.passes.backward(graph)
    assert {dict(node.attrs)["channels_last"] for node in step.nodes if node.op.startswith("conv2d_grad")} == {False}
    with pytest.raises(rl.errors.UsageError, match="before backward"):
        rl.passes.layout(step, "channels_last")


def test_an_option_of_a_what_if() -> None:
    graph = rl.what_if("resnet18", layout="channels_first", fuse="chains")
    assert [step.name for step in graph.history] == ["layout", "fuse"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g: rl.passes.layout(g, "channel_last"), ["allowed: channels_first, channels_last", "did you mean"]),
        (lambda g: rl.passes.layout(g, 3), ["layout '3'"]),
        (lambda g: rl.passes.layout(g, "channels_last", ("mean",)), ["no kernel 'mean'"]),
        (lambda g: rl.passes.layout("resnet18", "channels_last"), ["takes a Graph"]),
        (lambda g: rl.layouts("gpt2", "h100-sxm", batch=1, seq=8), ["no kernel may have images"]),
        (lambda g: rl.layouts("resnet18", "h100-sxm", batch=[1, 2]), ["layouts are chosen for"]),
        (lambda g: rl.what_if("resnet18", layout="nhwc"), ["allowed: channels_first, channels_last"]),
    ],
)
def test_nonsense_is_refused_in_one_line(call: Any, words: list[str]) -> None:
    with pytest.raises(rl.RooflineError) as caught:
        call(net(["conv"]))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


# --- the cut ----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 5), st.data())
def test_a_cut_is_as_cheap_as_the_best_of_all(number: int, data: st.DataObject) -> None:
    nodes = ["s", *range(number), "t"]
    edges = [(a, b, data.draw(st.sampled_from([0, 1, 2, 5, 9, FIXED]))) for a in nodes for b in nodes
             if a != b and b != "s" and a != "t" and (a, b) != ("s", "t")]  # fmt: skip
    network = Network()
    for edge in edges:
        network.join(*edge)

    def cost(side: set[Any]) -> int:
        return sum(capacity for a, b, capacity in edges if a in side and b not in side)

    every = (set(some) | {"s"} for size in range(number + 1) for some in itertools.combinations(range(number), size))
    assert cost(network.side("s", "t")) == min(map(cost, every))


# --- the fastest mix --------------------------------------------------------------------------------------------------


def test_the_mix_is_as_fast_as_the_best_of_all() -> None:
    """Wide convolutions want channels last, the group norm first: all 2^6 ways are tried."""
    graph = net(["conv", "relu", "conv", "group", "group", "conv"], batch=16, channels=128, size=56)
    found = rl.layouts(graph, "h100-sxm")
    free = list(images(graph).free)
    every = {
        some: rl.estimate(rl.passes.layout(graph, "channels_last", some), "h100-sxm", mode="graph").time
        for size in range(len(free) + 1) for some in itertools.combinations(free, size)
    }  # fmt: skip
    assert found.times["best"] == pytest.approx(min(every.values()), rel=2e-3)
    assert found.times["best"] < 0.97 * min(found.times["channels_first"], found.times["channels_last"])
    mixed = {row["best_layout"] for row in found.records()}
    assert mixed == {"channels_first", "channels_last"}
    assert found.summary()["layout_copies"]["best"] == len(copies(found.best)) > 0
    assert found.summary()["layout_copies"]["given"] == 0


def test_the_best_is_never_slower_than_one_layout_for_all() -> None:
    for name, dtype in (("resnet18", "fp16"), ("mobilenet-v2", "fp16")):
        times = rl.layouts(rl.passes.layout(rl.model(name, dtype=dtype), "channels_first"), "h100-sxm", batch=8).times
        assert times["best"] == min(times.values())
        assert times["channels_last"] < times["given"]


def test_chips_without_kernels_of_their_own_gain_nothing_by_copies() -> None:
    found = rl.layouts("resnet18", "tpu-v5e", dtype="bf16", batch=8)
    assert found.times["best"] == found.times["given"] == found.times["channels_last"]


#: Measured on an H100 SXM with PyTorch 2.11 (measurements/h100-sxm): a 3x3 and a 1x1 convolution of odd planes, bf16,
#: 64 images; channels first and last [us].
MEASURED = [
    ({"c_in": 256, "c_out": 256, "h": 14, "w": 14, "r": 3, "s": 3, "padding": 1}, 48.3, 28.8),
    ({"c_in": 1024, "c_out": 256, "h": 14, "w": 14, "r": 1, "s": 1}, 37.4, 16.1),
    ({"c_in": 512, "c_out": 2048, "h": 7, "w": 7, "r": 1, "s": 1}, 38.4, 13.1),
    ({"c_in": 128, "c_out": 512, "h": 28, "w": 28, "r": 1, "s": 1}, 26.3, 28.1),
]


@pytest.mark.parametrize(("sizes", "first", "last"), MEASURED)
def test_the_gain_is_that_of_measurements(sizes: dict[str, int], first: float, last: float) -> None:
    graph = rl.workload([{"op": "conv2d", "n": 64, **sizes, "channels_last": False}], dtype="bf16")
    turned = rl.passes.layout(graph, "channels_last")
    times = [rl.estimate(each, "h100-sxm", mode="graph", regime="cold").device_time for each in (graph, turned)]
    assert times[0] / times[1] == pytest.approx(first / last, rel=0.25)


def test_advice_names_it_with_what_it_saves() -> None:
    conv = {"op": "conv2d", "n": 64, "c_in": 256, "h": 14, "w": 14, "c_out": 256, "r": 3, "s": 3, "padding": 1}
    graph = rl.workload([{**conv, "channels_last": False}], dtype="bf16")
    verdict = rl.check(graph, "h100-sxm", "49 us", mode="graph")
    (advice,) = [one for one in verdict.advice if "channels last" in one.change]
    assert (advice.option, advice.call) == ("--layout channels_last", 'rl.passes.layout(graph, "channels_last")')
    assert 20e-6 < advice.time_s < 35e-6
    already = rl.check(rl.workload([conv], dtype="bf16"), "h100-sxm", "29 us", mode="graph")
    assert not [one for one in already.advice if "channels last" in one.change]


# --- captured programs ------------------------------------------------------------------------------------------------


def test_a_program_of_pytorch_keeps_its_numbers() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Small(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
            self.norm, self.point, self.head = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1), nn.Linear(32, 3)

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            y = torch.cat([self.norm(self.point(y)) + y, y], 1)[:, :8]
            return self.head(torch.flatten(nn.functional.interpolate(y, scale_factor=0.5), 1))

    graph = rl.from_torch(Small().eval(), torch.empty(2, 4, 8, 8))
    turned = rl.passes.layout(graph, "channels_last")
    assert same(graph, turned)
    assert len(copies(turned)) == 4  # the input, around a slice, and what a view reads
    assert rl.passes.layout(turned, "channels_first").nodes == graph.nodes


def test_a_program_of_onnx_keeps_its_numbers(tmp_path: Any) -> None:
    onnx = pytest.importorskip("onnx")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    weights = {"w": [8, 4, 3, 3], "v": [8, 8, 1, 1]}
    nodes = [
        make.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), make.make_node("Relu", ["a"], ["b"]),
        make.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        make.make_node("Conv", ["c", "v"], ["d"]), make.make_node("Add", ["c", "d"], ["y"]),
    ]  # fmt: skip
    filled = [make.make_tensor(name, number, shape, [0.1] * (shape[0] * shape[1] * shape[2] * shape[3]))
              for name, shape in weights.items()]  # fmt: skip
    ends = [[make.make_tensor_value_info(name, number, shape)] for name, shape in (("x", [2, 4, 8, 8]),
                                                                               ("y", [2, 8, 4, 4]))]  # fmt: skip
    model = make.make_model(make.make_graph(nodes, "small", *ends, filled), opset_imports=[make.make_opsetid("", 17)])
    path = tmp_path / "small.onnx"
    onnx.save(model, path)
    graph = rl.from_onnx(path)
    turned = rl.passes.layout(graph, "channels_last")
    assert same(graph, turned)
    assert [copy.source for copy in copies(turned).values()] == ["x", graph.outputs[0]]
