"""The executor: what every operator computes, against PyTorch where PyTorch has it, and the comparison of programs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.test_law_evaluation import SAMPLES, bound
from profiles import examples

import roofline as rl
from roofline.ops.arrays import Call, fold
from roofline.ops.views import kept_axes, reordering
from roofline.programs.layers import primitives

B = rl.ops.symbol("B")
FEW = settings(deadline=None, max_examples=examples(5), derandomize=True, database=None)


def call(op: str, *arrays: Any, **attrs: Any) -> Any:
    """What an operator makes of arrays."""
    b = rl.ops.Builder(op, "fp32")
    given = {f"x{at}": np.asarray(array, dtype=np.float64) for at, array in enumerate(arrays)}
    y = b.op(op, *(b.input(name, array.shape) for name, array in given.items()), name="y", **attrs)
    return rl.ops.execute(b.graph([y]), given)["y"]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def positive(*shape: int) -> Any:
    return np.abs(normal(*shape)) + 0.5


# --- every operator ---------------------------------------------------------------------------------------------------


def test_every_operator_has_a_meaning() -> None:
    missing = [name for name, op in rl.ops.OPS.items() if op.reference is None]
    assert not missing, "say in its declaration what a new operator computes"


@pytest.mark.parametrize("name", SAMPLES)
@FEW
@given(sizes=st.fixed_dictionaries({name: st.integers(1, 6) for name in "BSC"}), seed=st.integers(0, 3))
def test_every_operator_gives_the_shape_that_the_registry_says(name: str, sizes: dict[str, int], seed: int) -> None:
    sizes["S"] += 4  # room for windows
    shapes, attrs = SAMPLES[name]
    shapes, attrs = bound(shapes, sizes), {key: bound(value, sizes) for key, value in attrs.items()}
    b = rl.ops.Builder(name, "fp32")
    y = b.op(name, *(b.input(f"x{at}", shape) for at, shape in enumerate(shapes)), name="y", **attrs)
    graph = b.graph([y])
    result = rl.ops.execute(graph, seed=seed)["y"]
    assert result.shape == rl.ops.OPS[name].output(shapes, attrs)
    assert not np.isinf(result).any()
    assert np.isfinite(result).any()
    assert np.array_equal(rl.ops.execute(graph, seed=seed)["y"], result, equal_nan=True), (
        "the same names, the same numbers"
    )


#: Operators of one device, of memory as it is, and of shapes, whose result may miss some of what they read.
PARTIAL = {"empty", "fill", "slice", "take", "embedding", "gather", "gather_rows", "topk", "argmax", "reduce_scatter",
           "cache_update", "put"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - PARTIAL))
def test_every_operand_matters(name: str) -> None:
    """Otherwise a rewriting that loses an operand would pass for the same program."""
    sizes = {"B": 3, "S": 5, "C": 2}
    shapes, attrs = (
        bound(SAMPLES[name][0], sizes),
        {key: bound(value, sizes) for key, value in SAMPLES[name][1].items()},
    )
    arrays = [np.abs(normal(*shape, seed=at)) + 0.1 for at, shape in enumerate(shapes)]
    if name == "mask":
        arrays[1] = normal(*shapes[1])  # some places hidden, some not
    before = call(name, *arrays, **attrs)
    for at, array in enumerate(arrays):
        changed = [*arrays]
        conditional = (name, at) in {("where", 0), ("mask", 1)}  # a condition only has two values
        changed[at] = -array if conditional else array + 0.25 * np.abs(normal(*array.shape, seed=99))
        assert not np.allclose(call(name, *changed, **attrs), before, equal_nan=True), f"operand {at}"


# --- against PyTorch --------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")
F = torch.nn.functional


def agree(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-9, atol=1e-9)


def tensors(*arrays: Any) -> list[Any]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


UNARY = {
    "relu": F.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid, "silu": F.silu, "tanh": torch.tanh, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "neg": torch.neg, "abs": torch.abs, "erf": torch.erf,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "mish": F.mish,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "square": torch.square, "cos": torch.cos, "sin": torch.sin,
    "reciprocal": torch.reciprocal, "copy": torch.clone, "softmax": lambda x: F.softmax(x, -1),
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1), "transpose_copy": lambda x: x.transpose(-1, -2),
    "argmax": lambda x: x.argmax(-1).double(), "identity": torch.clone,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str) -> None:
    x = positive(3, 4, 8) if name in ("log", "sqrt", "rsqrt") else 4 * normal(3, 4, 8)
    agree(call(name, x), UNARY[name](*tensors(x)))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_functions_of_two_arrays_broadcast(name: str) -> None:
    x, y = normal(3, 4, 8), positive(4, 1)
    agree(call(name, x, y), getattr(torch, name)(*tensors(x, y)))


def test_choices() -> None:
    x, y, chosen = normal(3, 8), normal(3, 8, seed=1), np.arange(24).reshape(3, 8) % 2
    agree(call("where", chosen, x, y), torch.where(*tensors(chosen != 0, x, y)))
    agree(call("mask", x, chosen, value=-7.0), tensors(x)[0].masked_fill(tensors(chosen != 0)[0], -7.0))
    agree(call("clamp", x, low=-0.5, high=0.25), tensors(x)[0].clamp(-0.5, 0.25))
    low, high = np.full((3, 8), -0.5), np.full((3, 8), 0.5)
    assert np.array_equal(call("clamp", low, x, high), call("clamp", x, low, high))


def test_products() -> None:
    x, w, bias = normal(2, 5, 7), normal(3, 7), normal(3)
    agree(call("linear", x, w, bias), F.linear(*tensors(x, w, bias)))
    agree(call("matmul", x, w.T, bias), torch.matmul(*tensors(x, w.T)) + tensors(bias)[0])
    agree(call("bmm", x, normal(2, 7, 4)), torch.bmm(*tensors(x, normal(2, 7, 4))))


CONVOLUTIONS = [
    # (image, kernel, options)
    ((2, 6, 9, 8), (4, 6, 3, 3), {}),
    ((2, 6, 9, 8), (4, 6, 3, 2), {"stride": 2, "padding": 1}),
    ((2, 6, 9, 8), (4, 3, 3, 3), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    ((2, 6, 9, 9), (6, 1, 3, 3), {"padding": 2, "dilation": 2, "groups": 6}),
    ((2, 6, 11, 9), (4, 6, 3, 3), {"stride": 3, "dilation": (1, 3)}),
    ((2, 6, 11), (4, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ((2, 4, 5, 7, 6), (6, 2, 2, 3, 3), {"stride": (1, 2, 2), "padding": 1, "groups": 2}),
]


@pytest.mark.parametrize(("image", "kernel", "options"), CONVOLUTIONS)
def test_convolutions(image: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]) -> None:
    x, w, bias = normal(*image), normal(*kernel), normal(kernel[0])
    axes = len(image) - 2
    theirs = getattr(F, f"conv{axes}d")(*tensors(x, w, bias), **options)
    agree(call(f"conv{axes}d", x, w, bias, **options), theirs)
    agree(call(f"conv{axes}d", x, w, **options), getattr(F, f"conv{axes}d")(*tensors(x, w), **options))


def test_a_convolution_padded_on_one_side_only() -> None:
    x, w = normal(1, 2, 5, 5), normal(3, 2, 2, 2)
    theirs = F.conv2d(F.pad(tensors(x)[0], (0, 1, 0, 1)), tensors(w)[0])
    agree(call("conv2d", x, w, padding=((0, 1), (0, 1))), theirs)


@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"stride": (2, 1), "padding": (0, 1), "groups": 2},
    {"stride": 3, "output_padding": 2, "dilation": 2},
])  # fmt: skip
def test_transposed_convolutions(options: dict[str, Any]) -> None:
    groups = options.get("groups", 1)
    x, w, bias = normal(2, 4, 5, 6), normal(4, 3, 3, 2), normal(3 * groups)
    agree(call("conv_transpose2d", x, w, bias, **options), F.conv_transpose2d(*tensors(x, w, bias), **options))
    x, w = normal(1, 4, 3, 4, 5), normal(4, 3, 2, 3, 3)
    wide = {key: (*value, 1) if isinstance(value, tuple) else value for key, value in options.items()}
    agree(call("conv_transpose3d", x, w, **wide), F.conv_transpose3d(*tensors(x, w), **wide))


def test_gradients_of_convolutions() -> None:
    x, w = tensors(normal(2, 4, 9, 8), normal(6, 2, 3, 3))
    x.requires_grad_()
    w.requires_grad_()
    options = {"stride": 2, "padding": 1, "groups": 2}
    y = F.conv2d(x, w, **options)
    grad = normal(*y.shape)
    y.backward(torch.from_numpy(grad))
    given = [each.detach().numpy() for each in (x, w)]
    agree(call("conv2d_grad_input", grad, given[1], image=(4, 9, 8), **options), x.grad)
    agree(call("conv2d_grad_weight", given[0], grad, kernel=(2, 3, 3), **options), w.grad)


def test_norms() -> None:
    x, w, bias = normal(2, 5, 8), positive(8), normal(8)
    agree(call("layernorm", x, w, bias), F.layer_norm(*tensors(x)[:1], (8,), *tensors(w, bias)))
    agree(call("rmsnorm", x, w, eps=1e-6), F.rms_norm(tensors(x)[0], (8,), tensors(w)[0], 1e-6))
    image, scale, shift = normal(3, 6, 4, 5), positive(6), normal(6)
    agree(call("groupnorm", image, scale, shift, groups=3), F.group_norm(tensors(image)[0], 3, *tensors(scale, shift)))
    mean, variance = normal(6, seed=3), positive(6)
    parts = tensors(image, mean, variance)
    agree(call("batchnorm2d", image, scale, shift, mean, variance), F.batch_norm(*parts, *tensors(scale, shift)))
    agree(call("batchnorm2d", image, mean, variance), F.batch_norm(*parts))
    trained = F.batch_norm(parts[0], None, None, *tensors(scale, shift), training=True)
    agree(call("batchnorm_train", image, scale, shift), trained)
    channels_last = F.layer_norm(parts[0].permute(0, 2, 3, 1), (6,), *tensors(scale, shift)).permute(0, 3, 1, 2)
    agree(call("layernorm2d", image, scale, shift), channels_last)


def test_cross_entropy() -> None:
    """Entered for the graphs of training; called as an operator of the registry would be."""
    x, labels = normal(5, 7), np.array([0, 3, 6, 2, 2])
    rows = torch.from_numpy(x).requires_grad_()
    losses = F.cross_entropy(rows, torch.from_numpy(labels), reduction="none")
    one = Call("loss", "cross_entropy", {}, (5,), "fp32", 0)
    agree(rl.ops.OPS["cross_entropy"].reference(one, x, labels.astype(float)), losses)
    grad = normal(5)
    losses.backward(torch.from_numpy(grad))
    agree(rl.ops.OPS["cross_entropy_grad"].reference(one, x, labels.astype(float), grad), rows.grad)


GRADIENTS = {
    "softmax_grad": (lambda x, w: F.softmax(x, -1), True, False),
    "layernorm_grad": (lambda x, w: F.layer_norm(x, (8,), w), False, True),
    "rmsnorm_grad": (lambda x, w: F.rms_norm(x, (8,), w, 1e-5), False, True),
    "channelnorm_grad": (lambda x, w: F.batch_norm(x, None, None, w, training=True), False, True),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_rows(name: str) -> None:
    function, from_result, scaled = GRADIENTS[name]
    x, w = tensors(normal(4, 8), positive(8))
    x.requires_grad_()
    y = function(x, w)
    grad = normal(4, 8, seed=5)
    y.backward(torch.from_numpy(grad))
    kept = (y if from_result else x).detach().numpy()
    agree(call(name, grad, kept, *([w.numpy()] if scaled else [])), x.grad)


def test_pooling() -> None:
    x = normal(2, 3, 9, 8)
    agree(call("maxpool2d", x, r=3, stride=2, padding=1), F.max_pool2d(*tensors(x), 3, 2, 1))
    agree(call("maxpool2d", x, r=2), F.max_pool2d(*tensors(x), 2))
    agree(call("avgpool2d", x, r=(3, 2), stride=(2, 1), padding=1), F.avg_pool2d(*tensors(x), (3, 2), (2, 1), 1))
    agree(call("global_avgpool", x), F.adaptive_avg_pool2d(*tensors(x), 1)[:, :, 0, 0])
    agree(call("upsample2d", x, scale=2), F.interpolate(*tensors(x), scale_factor=2.0))


def test_gathers() -> None:
    table, ids = normal(11, 4), np.array([[0, 10, 3], [3, 7, 1]])
    agree(call("embedding", table, ids), F.embedding(*tensors(ids, table)))
    assert np.array_equal(call("embedding", table, ids + 22), call("embedding", table, ids)), "round again at the end"
    agree(call("cat", table, 2 * table, axis=0), torch.cat(tensors(table, 2 * table)))
    agree(call("topk", table, k=2), torch.topk(*tensors(table), 2).values)
    grad = normal(2, 3, 4)
    agree(call("embedding_grad", grad, ids, v=11),
          torch.ops.aten.embedding_dense_backward(*tensors(grad, ids), 11, -1, False))  # fmt: skip


@pytest.mark.parametrize("axes", [None, (1,), (0, 2), (-1,)])
def test_reductions_by_name(axes: Any) -> None:
    x = normal(3, 4, 5)
    for how, theirs in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}.items():
        along = axes or (0, 1, 2)
        agree(call("reduce", x, axes=axes, how=how), theirs(*tensors(x), dim=along))
        agree(call("reduce", x, axes=axes, how=how, keepdim=True), theirs(*tensors(x), dim=along, keepdim=True))


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    b = rl.ops.Builder("attention", "fp32")
    given = {"q": q, "k": k, "v": v}
    y = primitives.attention(b, *(b.input(name, array.shape) for name, array in given.items()), **options)
    return next(iter(rl.ops.execute(b.graph([y]), given).values()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_with_grouped_heads(causal: bool, groups: int) -> None:
    q, k, v = normal(2, 4, 6, 64), normal(2, groups, 6, 64), normal(2, groups, 6, 32)
    theirs = F.scaled_dot_product_attention(*tensors(q, k, v), is_causal=causal, enable_gqa=True)
    agree(attention(q, k, v, causal=causal), theirs)


@pytest.mark.parametrize("window", [0, 3])
def test_the_last_query_stands_at_the_last_key(window: int) -> None:
    q, k, v = normal(1, 2, 3, 64), normal(1, 2, 8, 64), normal(1, 2, 8, 64)
    place, key = np.arange(5, 8)[:, None], np.arange(8)[None, :]
    seen = (key <= place) & (key > place - (window or 99))
    theirs = F.scaled_dot_product_attention(*tensors(q, k, v, seen))
    agree(attention(q, k, v, causal=True, window=window), theirs)


def test_gradients_of_attention() -> None:
    q, k, v = (each.requires_grad_() for each in tensors(normal(2, 4, 5, 64), normal(2, 2, 5, 64), normal(2, 2, 5, 64)))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    grad = normal(*y.shape, seed=9)
    y.backward(torch.from_numpy(grad))
    given = [each.detach().numpy() for each in (q, k, v)]
    weights = call("attention_softmax", call("attention_scores", *given[:2]), causal=True)
    back = call("attention_softmax_grad", call("attention_scores", grad, given[2]), weights, causal=True)
    agree(call("attention_values", back, given[1]), q.grad)
    agree(call("attention_keys_grad", back, given[0], g=2), k.grad)
    agree(call("attention_keys_grad", weights, grad, g=2), v.grad)


def test_sinks_take_their_share() -> None:
    x, sink = normal(2, 3, 4, 5), normal(3)
    joined = np.concatenate([x, np.broadcast_to(sink.reshape(1, 3, 1, 1), (2, 3, 4, 1))], axis=-1)
    agree(call("attention_softmax", x, sink, scale=1.0), F.softmax(*tensors(joined), -1)[..., :5])


def test_a_causal_convolution_carries_its_state() -> None:
    x, w, bias = normal(2, 7, 3), normal(3, 4), normal(3)
    padded = F.pad(tensors(x)[0].transpose(1, 2), (3, 0))
    theirs = F.conv1d(padded, tensors(w)[0][:, None], tensors(bias)[0], groups=3).transpose(1, 2)
    whole = call("causal_conv", x, w, bias)
    agree(whole, theirs)
    state = x[:, 2:6].transpose(0, 2, 1)
    np.testing.assert_allclose(call("causal_conv", x[:, 6:], w, bias, state), whole[:, 6:])


def state_space(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Mamba's recurrence as a plain loop in PyTorch."""
    h, rows = torch.zeros(*x[:, 0].shape, a.shape[1], dtype=x.dtype), []
    for at in range(x.shape[1]):
        h = torch.exp(dt[:, at, :, None] * a) * h + (dt[:, at] * x[:, at])[..., None] * b[:, at, None]
        rows.append((h * c[:, at, None]).sum(-1) + d * x[:, at])
    return torch.stack(rows, 1)


def test_a_scan_in_one_go_is_a_scan_in_two() -> None:
    """The state between them is what the first part leaves: the outputs of the whole tell what it must be."""
    x, dt, a, b, c = normal(2, 6, 4), positive(2, 6, 4), -positive(4, 3), normal(2, 6, 3), normal(2, 6, 3, seed=1)
    d = normal(4)
    agree(call("selective_scan", x, dt, a, b, c, d), state_space(*tensors(x, dt, a, b, c, d)))
    h = np.zeros((2, 4, 3))
    for at in range(4):
        h = np.exp(dt[:, at, :, None] * a) * h + (dt[:, at] * x[:, at])[..., None] * b[:, at, None]
    rest = call("selective_scan", x[:, 4:], dt[:, 4:], a, b[:, 4:], c[:, 4:], d, h)
    np.testing.assert_allclose(rest, call("selective_scan", x, dt, a, b, c, d)[:, 4:])


def test_experts_share_the_rows() -> None:
    x, w = normal(5, 4), normal(2, 3, 4)
    rows = call("expert_linear", x, w, top_k=1)
    np.testing.assert_allclose(rows[[0, 2, 4]], x[[0, 2, 4]] @ w[0].T)
    np.testing.assert_allclose(rows[[1, 3]], x[[1, 3]] @ w[1].T)


def test_a_module_of_pytorch_computes_what_its_graph_does() -> None:
    """Nothing here is free: layer norm, a linear layer, attention by head, residual."""

    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = (
                torch.nn.LayerNorm(128), torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(3)),
                torch.nn.Linear(128, 128),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            q, k, v = (layer(y).view(2, 5, 2, 64).transpose(1, 2) for layer in self.qkv)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + F.gelu(self.out(y.transpose(1, 2).reshape(2, 5, 128)))

    module, x = Block().double(), torch.from_numpy(normal(2, 5, 128))
    graph = rl.from_torch(module, x)
    weights = {name: value.detach().numpy() for name, value in module.named_parameters()}
    inputs = [name for name, tensor in graph.tensors.items() if tensor.kind == "input"]
    result = rl.ops.execute(graph, {**weights, inputs[0]: x.numpy()})
    agree(next(iter(result.values())), module(x))


# --- programs ---------------------------------------------------------------------------------------------------------


def chain(*ops: str) -> rl.Graph:
    b = rl.ops.Builder("chain", "fp32")
    x = b.input("x", (B, 8))
    for op in ops:
        x = b.op(op, x)
    return b.graph([x])


def test_equal_names_get_equal_numbers_and_other_seeds_others() -> None:
    graph = chain("relu", "mul_scalar")
    first, again, other = (rl.ops.execute(graph, seed=seed, B=3) for seed in (0, 0, 1))
    name = graph.outputs[0]
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])


def test_two_nodes_that_leave_something_open_are_not_the_same() -> None:
    b = rl.ops.Builder("open", "fp32")
    x = b.input("x", (64, 64))
    outputs = [b.op("slice", x, name="a", shape=(64, 8)), b.op("slice", x, name="b", shape=(64, 8)),
               b.op("mul_scalar", x, name="c"), b.op("mul_scalar", x, name="d")]  # fmt: skip
    found = rl.ops.execute(b.graph(outputs))
    assert not np.array_equal(found["a"], found["b"])
    assert not np.array_equal(found["c"], found["d"])


def test_options_close_what_is_open() -> None:
    x = normal(4, 8)
    assert np.array_equal(call("slice", x, shape=(4, 3), axis=1, start=2), x[:, 2:5])
    assert np.array_equal(call("mul_scalar", x, value=3.0), 3 * x)
    assert np.array_equal(call("pow", x, exponent=3), x**3)


def test_differences_are_seen() -> None:
    found = rl.ops.same(chain("relu", "tanh"), chain("relu", "sigmoid"), B=4)
    assert not found
    assert found.largest > 0.1
    assert "differ" in str(found)
    agreed = rl.ops.same(chain("relu", "tanh"), chain("relu", "tanh"), B=4)
    assert agreed
    assert agreed.largest == 0
    assert "agree" in str(agreed)


def test_what_cannot_be_compared_says_so() -> None:
    two = rl.ops.Builder("two", "fp32")
    x = two.input("x", (B, 8))
    outputs = [two.op("relu", x), two.op("tanh", x)]
    with pytest.raises(rl.errors.UsageError, match="chain has 1 outputs but two 2"):
        rl.ops.same(chain("relu"), two.graph(outputs), B=2)
    with pytest.raises(rl.errors.UsageError, match="not finite anywhere"):
        rl.ops.same(chain("abs", "neg", "log"), chain("abs", "neg", "log"), B=2)
    with pytest.raises(rl.errors.ShapeError, match="before and"):
        rl.ops.same(chain("relu"), chain("sum"), B=2)


def test_bad_input_is_refused_in_one_line() -> None:
    graph = chain("relu")
    with pytest.raises(rl.errors.UnboundSize, match="chain needs a value for batch"):
        rl.ops.execute(graph)
    with pytest.raises(rl.errors.UsageError, match="no input is called 'xx'"):
        rl.ops.execute(graph, {"xx": [1.0]}, B=2)
    with pytest.raises(rl.errors.ShapeError, match=r"'x' is \[2, 8\], not \[1\]"):
        rl.ops.execute(graph, {"x": [1.0]}, B=2)
    with pytest.raises(rl.errors.DoesNotFit, match=r"elements are alive at once"):
        rl.ops.execute(graph, B=10**8)


def test_an_operator_without_a_meaning_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rl.ops.OPS, "relu", replace(rl.ops.OPS["relu"], reference=None))
    with pytest.raises(rl.errors.UnknownOp, match="no reference implementation of relu"):
        rl.ops.execute(chain("relu"), B=2)


def test_a_node_writes_one_tensor() -> None:
    graph = chain("relu")
    node = graph.nodes[0]
    both = graph.with_tensors([rl.ops.Tensor("more", (B, 8), "fp32")]).with_nodes(
        [rl.ops.Node(node.name, node.op, node.inputs, (*node.outputs, "more"))]
    )
    with pytest.raises(rl.errors.UsageError, match="relu writes 2 tensors"):
        rl.ops.execute(both, B=2)


def test_memory_is_given_back_along_the_way() -> None:
    """A long chain needs no more than a short one."""

    def peak(steps: int) -> int:
        tracemalloc.start()
        try:
            rl.ops.execute(chain(*["relu"] * steps), B=2**14)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(40) == pytest.approx(peak(4), rel=0.2)


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), target=st.lists(st.integers(1, 6), max_size=3))
@FEW
def test_folding_loses_no_element(shape: list[int], target: list[int]) -> None:
    ones = np.ones(shape)
    first = fold(ones, tuple(target))
    assert first.shape == tuple(target)
    ones.flat[-1] = 5.0
    assert not np.array_equal(fold(ones, tuple(target)), first)


def test_views_follow_the_sizes() -> None:
    assert reordering((2, 3, 4, 5), (2, 4, 5, 3)) == ((2, 3, 4, 5), (0, 2, 3, 1))
    assert reordering((2, 8, 3, 4), (2, 12, 8)) == ((2, 8, 3, 4), (0, 2, 3, 1))
    assert reordering((2, 3, 4), (6, 4)) is None
    assert kept_axes((2, 5, 4), (2, 1, 4)) == (0, 1, 2)
    assert kept_axes((3, 3), ()) == ()
