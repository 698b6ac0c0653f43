"""The backward of every operator: one rule an operator, which emits the nodes that its gradients take.

A rule gets the tape, the forward node and the gradient of its output, and hands a gradient to each input that wants
one. The nodes are what autograd launches in eager mode (PyTorch's derivatives.yaml); fused kernels have one backward
kernel, for which the tape sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.ir.graph import Node
from roofline.ir.sizes import Size
from roofline.ops.registry import node_work, single
from roofline.passes.training.tape import Tape, rows_of

Rule = Callable[[Tape, Node, str], None]

#: Options of a contraction that its backward takes over.
_CARRIED = ("compute", "padded", "groups", "stride", "padding", "dilation", "channels_last")


def _options(node: Node, *names: str) -> dict[str, Any]:
    return {key: value for key, value in node.attrs if key in (names or _CARRIED)}


# --- elementwise -------------------------------------------------------------------------------------------------

#: Operators of one input: what the backward reads beside the gradient (the input, the output or neither) and its
#: operations an element, the product with the gradient included.
UNARY: dict[str, tuple[str, int]] = {
    "abs": ("x", 1), "square": ("x", 2), "sqrt": ("y", 2), "rsqrt": ("y", 4),
    "exp": ("y", 1), "log": ("x", 1), "tanh": ("y", 3), "reciprocal": ("y", 3), "cos": ("x", 2), "sin": ("x", 2),
    "erf": ("x", 4), "softcap": ("y", 4), "sigmoid": ("y", 3), "silu": ("x", 8), "gelu": ("x", 15),
    "gelu_tanh": ("x", 18), "quick_gelu": ("x", 10), "softplus": ("x", 4), "mish": ("x", 10), "hardswish": ("x", 4),
    "hardsigmoid": ("x", 1), "relu": ("y", 0), "relu6": ("x", 0), "clamp": ("x", 0),
}  # fmt: skip


def _unary(reads: str, flops: int) -> Rule:
    def rule(t: Tape, node: Node, dy: str) -> None:
        (x, *_), (y,) = node.inputs, node.outputs
        read = t.kept({"x": x, "y": y}[reads])
        t.give(x, t.op("elementwise", dy, read, name="grad", like=x, flops=flops, what=f"{node.op}_grad"))

    return rule


def _as_forward(t: Tape, node: Node, dy: str) -> None:
    """Of what multiplies by a number: the same again."""
    x = node.inputs[0]
    t.give(x, t.op(node.op, dy, name="grad", like=x, **_options(node, "value")))


def _same(t: Tape, node: Node, dy: str) -> None:
    """The gradient as it comes."""
    for name in node.inputs:
        if t.wants(name):
            t.give(name, dy)


def _sub(t: Tape, node: Node, dy: str) -> None:
    a, b = node.inputs
    if t.wants(a):
        t.give(a, dy)
    if t.wants(b):
        t.give(b, t.op("neg", dy, name="grad_b", like=b))


def _mul(t: Tape, node: Node, dy: str) -> None:
    a, b = node.inputs
    for name, other, mine in (("grad_a", b, a), ("grad_b", a, b)):
        if t.wants(mine):
            t.give(mine, t.op("mul", dy, t.kept(other), name=name, like=mine))


def _div(t: Tape, node: Node, dy: str) -> None:
    a, b = node.inputs
    if t.wants(a):
        t.give(a, t.op("div", dy, t.kept(b), name="grad_a", like=a))
    if t.wants(b):
        read = (t.kept(node.outputs[0]), t.kept(b))
        t.give(b, t.op("elementwise", dy, *read, name="grad_b", like=b, flops=3, what="div_grad"))


def _pow(t: Tape, node: Node, dy: str) -> None:
    """``dy * (n * x^(n-1))``, three kernels."""
    x = node.inputs[0]
    power = t.op("pow", t.kept(x), name="grad_power", like=x)
    t.give(x, t.op("mul", dy, t.op("mul_scalar", power, name="grad_slope", like=x), name="grad", like=x))


def _masked(first: int) -> Rule:
    """Gradients that a mask lets through: of inputs from ``first`` on where the mask is the first input."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        mask = node.inputs[0] if first else node.inputs[1]
        for at, name in enumerate(node.inputs):
            if name != mask and t.wants(name):
                t.give(name, t.op("mask", dy, t.kept(mask), name=f"grad_{at}", like=name, value=0))

    return rule


def _dropout(t: Tape, node: Node, dy: str) -> None:
    """``dy * mask / (1 - p)``."""
    x, *mask = node.inputs
    t.give(x, t.op("elementwise", dy, *map(t.kept, mask), name="grad", like=x, flops=2, what="dropout_grad"))


def _any(t: Tape, node: Node, dy: str) -> None:
    """Of a function that only its operations are known of: as many again, and the product."""
    flops = dict(node.attrs).get("flops", 1) + 1
    for at, name in enumerate(node.inputs):
        if t.wants(name):
            read = [t.kept(i) for i in node.inputs]
            t.give(name, t.op("elementwise", dy, *read, name=f"grad_{at}", like=name, flops=flops))


def _chosen(t: Tape, node: Node, dy: str) -> None:
    """Maximum and minimum of two: comparisons."""
    for at, name in enumerate(node.inputs):
        if t.wants(name):
            read = [t.kept(i) for i in node.inputs]
            what = f"{node.op}_grad_{at}"
            t.give(name, t.op("elementwise", dy, *read, name=f"grad_{at}", like=name, flops=0, what=what))


def _xielu(t: Tape, node: Node, dy: str) -> None:
    x, *alphas = node.inputs
    t.give(x, t.op("elementwise", dy, t.kept(x), *alphas, name="grad_x", like=x, flops=10))
    for at, name in enumerate(alphas):
        if t.wants(name):
            t.give(name, t.op("elementwise", dy, t.kept(x), name=f"grad_alpha{at}", like=name, flops=4))


def _resample(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("resample", dy, name="grad", like=x, shape=t.shape(x), **_options(node, "flops")))


# --- matrix products ---------------------------------------------------------------------------------------------


def _turned(t: Tape, x: str, name: str) -> str:
    """The last two axes exchanged: a view."""
    rank = len(t.shape(x))
    return t.op("permute", x, name=name, like=x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _by_row(t: Tape, x: str, name: str) -> str:
    shape = t.shape(x)
    return t.reshaped(x, (rows_of(shape), shape[-1]), name)


def _linear(t: Tape, node: Node, dy: str) -> None:
    """``dX = dY W``, ``dW = dY^T X``; the bias gets the sum of the rows."""
    x, w, *bias = node.inputs
    options = _options(node, "compute", "padded")
    if t.wants(x):
        t.give(x, t.op("matmul", dy, t.kept(w), name="grad_x", like=x, **options))
    rows = _by_row(t, dy, "grad_rows")
    if t.wants(w):
        turned, read = _turned(t, rows, "grad_turned"), _by_row(t, t.kept(x), "rows")
        t.give(w, t.op("matmul", turned, read, name="grad_w", like=w, turned=True, **options))
    _bias(t, bias, rows, (0,))


def _bias(t: Tape, bias: list[str], dy: str, axes: tuple[int, ...]) -> None:
    for name in bias:
        if t.wants(name):
            t.give(name, t.op("reduce", dy, name="grad_b", like=name, axes=axes, how="sum"))


def _matmul(t: Tape, node: Node, dy: str) -> None:
    a, b, *bias = node.inputs
    options = _options(node, "compute", "padded")
    if t.wants(a):
        t.give(a, t.op("matmul", dy, _turned(t, t.kept(b), "b_turned"), name="grad_a", like=a, **options))
    rows = _by_row(t, dy, "grad_rows")
    if t.wants(b):
        turned = _turned(t, _by_row(t, t.kept(a), "rows"), "a_turned")
        t.give(b, t.op("matmul", turned, rows, name="grad_b", like=b, turned=True, **options))
    _bias(t, bias, rows, (0,))


def _bmm(t: Tape, node: Node, dy: str) -> None:
    a, b = node.inputs
    options = _options(node, "compute", "padded")
    if t.wants(a):
        t.give(a, t.op("bmm", dy, _turned(t, t.kept(b), "b_turned"), name="grad_a", like=a, **options))
    if t.wants(b):
        t.give(b, t.op("bmm", _turned(t, t.kept(a), "a_turned"), dy, name="grad_b", like=b, **options))


def _expert_linear(t: Tape, node: Node, dy: str) -> None:
    x, w, *bias = node.inputs
    experts, top_k = t.shape(w)[0], dict(node.attrs)["top_k"]
    options = _options(node, "compute", "padded")
    if t.wants(x):
        turned = _turned(t, t.kept(w), "w_turned")
        t.give(x, t.op("expert_linear", dy, turned, name="grad_x", like=x, top_k=top_k, **options))
    if t.wants(w):
        t.give(w, t.op("expert_linear_grad", dy, t.kept(x), name="grad_w", like=w, experts=experts, **options))
    for name in bias:
        if t.wants(name):
            t.give(name, t.op("scatter_add", dy, name="grad_b", like=name, t=experts))


# --- attention ---------------------------------------------------------------------------------------------------

_SEEN = ("causal", "window", "compute", "padded")


def _scores(t: Tape, node: Node, dy: str) -> None:
    q, k = node.inputs
    seen = _options(node, *_SEEN)
    if t.wants(q):
        t.give(q, t.op("attention_values", dy, t.kept(k), name="grad_q", like=q, **seen))
    if t.wants(k):
        groups = t.shape(k)[1]
        t.give(k, t.op("attention_keys_grad", dy, t.kept(q), name="grad_k", like=k, g=groups, **seen))


def _attention_softmax(t: Tape, node: Node, dy: str) -> None:
    scores, *sinks = node.inputs
    seen = _options(node, "causal", "window", "scale")
    back = t.op("attention_softmax_grad", dy, t.kept(node.outputs[0]), name="grad", like=scores, **seen)
    t.give(scores, back)
    for name in sinks:
        if t.wants(name):
            t.give(name, t.op("reduce", back, name="grad_sinks", like=name, axes=(0, 2, 3), how="sum"))


def _values(t: Tape, node: Node, dy: str) -> None:
    weights, v = node.inputs
    seen = _options(node, *_SEEN)
    if t.wants(v):
        groups = t.shape(v)[1]
        t.give(v, t.op("attention_keys_grad", t.kept(weights), dy, name="grad_v", like=v, g=groups, **seen))
    if t.wants(weights):
        t.give(weights, t.op("attention_scores", dy, t.kept(v), name="grad_weights", like=weights, **seen))


# --- along rows --------------------------------------------------------------------------------------------------


def _softmax(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("softmax_grad", dy, t.kept(node.outputs[0]), name="grad", like=x))


def _cross_entropy(t: Tape, node: Node, dy: str) -> None:
    """``(softmax(x) - one_hot) dy``, from the logits."""
    x, labels = node.inputs
    t.give(x, t.op("cross_entropy_grad", t.kept(x), labels, dy, name="grad", like=x))


def _norm(op: str, channels: bool = False) -> Rule:
    """To the input by a kernel of its own; scale and shift are sums over all rows, in one kernel more."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        x, *weights = node.inputs
        if t.wants(x):
            options = _options(node, "groups", "eps")
            t.give(x, t.op(op, dy, t.kept(x), *weights[:1], name="grad_x", like=x, **options))
        _scale_and_shift(t, weights[:2], t.kept(x), dy, channels, node.op)

    return rule


def _scale_and_shift(t: Tape, weights: list[str], x: str, dy: str, channels: bool, op: str) -> None:
    rank = len(t.shape(x))
    axes = (0, *range(2, rank)) if channels else tuple(range(rank - 1))
    with t.kernel("grad_w"):
        for at, name in enumerate(weights):
            if t.wants(name):
                terms = (
                    dy if at else t.op("elementwise", dy, x, name="grad_terms", like=name, flops=3, what=f"{op}_scale")
                )
                t.give(name, t.op("reduce", terms, name=f"grad_{'wb'[at]}", like=name, axes=axes, how="sum"))


def _fixed_norm(t: Tape, node: Node, dy: str) -> None:
    """Batch normalisation by kept statistics: a product."""
    x, *weights = node.inputs
    if t.wants(x):
        t.give(x, t.op("elementwise", dy, name="grad_x", like=x, flops=1))
    _scale_and_shift(t, weights[:2], t.kept(x), dy, True, node.op)


def _repeated(t: Tape, dy: str, x: str, axes: tuple[int, ...]) -> str:
    """A gradient laid along the axes that were summed up: a view."""
    shape = tuple(1 if at in axes else size for at, size in enumerate(t.shape(x)))
    return t.op("expand", t.reshaped(dy, shape), name="grad_repeated", like=x, shape=t.shape(x))


def _sum(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, _repeated(t, dy, x, (len(t.shape(x)) - 1,)))


def _mean(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    spread, columns = _repeated(t, dy, x, (len(t.shape(x)) - 1,)), t.shape(x)[-1]
    value = {"value": 1 / columns} if isinstance(columns, int) else {}
    t.give(x, t.op("mul_scalar", spread, name="grad", like=x, **value))


def _reduce(t: Tape, node: Node, dy: str) -> None:
    x, rank = node.inputs[0], len(t.shape(node.inputs[0]))
    named = dict(node.attrs).get("axes")
    axes = (named,) if isinstance(named, int) else tuple(named or range(rank))
    t.give(x, _repeated(t, dy, x, tuple(axis % rank for axis in axes)))


def _scan(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("scan", dy, name="grad", like=x, **_options(node, "flops")))


def _pool(reads: bool) -> Rule:
    def rule(t: Tape, node: Node, dy: str) -> None:
        x = node.inputs[0]
        beside = [t.kept(x)] if reads else []
        t.give(x, t.op("pool_grad", dy, *beside, name="grad", like=x, shape=t.shape(x)))

    return rule


# --- convolutions ------------------------------------------------------------------------------------------------


def _plane(t: Tape, x: str, name: str) -> str:
    """An array of any number of image axes as one of two: the first are joined, a lone one has height 1."""
    first, second, *axes = t.shape(x)
    height: Size = 1
    for size in axes[:-1]:
        height = height * size
    return t.reshaped(x, (first, second, height, axes[-1]), name)


def _plane_options(t: Tape, node: Node) -> dict[str, Any]:
    """Options of a convolution as one of planes: of a line it has none along the height, of a volume none are kept."""
    axes = len(t.shape(node.inputs[0])) - 2
    if axes == 2:
        return _options(node)
    kept = _options(node, "compute", "padded", "groups", "channels_last")
    if axes == 1:
        alone = {"stride": 1, "padding": 0, "dilation": 1}
        kept |= {key: (alone[key], single(value)) for key, value in node.attrs if key in alone}
    return kept


def _conv(t: Tape, node: Node, dy: str) -> None:
    x, w, *bias = node.inputs
    options, out = _plane_options(t, node), _plane(t, dy, "grad_plane")
    if t.wants(x):
        image = t.shape(_plane(t, x, "plane"))[1:]
        back = t.op("conv2d_grad_input", out, _plane(t, t.kept(w), "w_plane"), name="grad_x", like=x,
                    image=image, **options)  # fmt: skip
        t.give(x, t.reshaped(back, t.shape(x), "grad_x_shaped"))
    if t.wants(w):
        kernel = t.shape(_plane(t, w, "w_plane"))[1:]
        back = t.op("conv2d_grad_weight", _plane(t, t.kept(x), "plane"), out, name="grad_w", like=w,
                    kernel=kernel, **options)  # fmt: skip
        t.give(w, t.reshaped(back, t.shape(w), "grad_w_shaped"))
    _bias(t, bias, dy, (0, *range(2, len(t.shape(dy)))))


def _conv_transposed(t: Tape, node: Node, dy: str) -> None:
    """The gradient of the input is a plain convolution; for the kernel, image and gradient change places."""
    x, w, *bias = node.inputs
    options = _options(node)
    if t.wants(x):
        t.give(x, t.op("conv2d", dy, t.kept(w), name="grad_x", like=x, **options))
    if t.wants(w):
        read = (dy, t.kept(x))
        t.give(w, t.op("conv2d_grad_weight", *read, name="grad_w", like=w, kernel=t.shape(w)[1:], **options))
    _bias(t, bias, dy, (0, 2, 3))


# --- mixers with a state ----------------------------------------------------------------------------------------


def _mixer(times: int) -> Rule:
    """One kernel that reads what the forward read and writes all gradients.

    Each product and each operation of the forward has two gradients; a scan runs once more before them, because its
    states were never stored (Mamba, Gu and Dao 2023, section 3.3.2; Mamba-2's kernels do the same).
    """

    def rule(t: Tape, node: Node, dy: str) -> None:
        read = [t.kept(name) for name in node.inputs]
        work = node_work(node, [t.shape(name) for name in node.inputs])
        amounts = {"products": times * work.flops, "operations": times * work.vector}
        with t.kernel("grad"):
            for at, name in enumerate(dict.fromkeys(node.inputs)):
                if t.wants(name):
                    made = t.op("mixer_grad", dy, *read, name=f"grad_{at}", like=name, shape=t.shape(name), **amounts)
                    t.give(name, made)
                    amounts = {}

    return rule


# --- moves and views ---------------------------------------------------------------------------------------------


def _embedding(t: Tape, node: Node, dy: str) -> None:
    table, ids = node.inputs
    t.give(table, t.op("embedding_grad", dy, ids, name="grad_w", like=table, v=t.shape(table)[0]))


def _gather_rows(t: Tape, node: Node, dy: str) -> None:
    rows = node.inputs[0]
    t.give(rows, t.op("scatter_add", dy, name="grad", like=rows, t=t.shape(rows)[0]))


def _scatter_add(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("take", dy, name="grad", like=x, shape=t.shape(x)))


def _places(t: Tape, node: Node, dy: str) -> None:
    """Of what picks single elements: they go back to their places among zeros."""
    x, *picks = node.inputs
    t.give(x, t.placed(x, dy, *picks))


def _put(t: Tape, node: Node, dy: str) -> None:
    base, values = node.inputs[:2]
    if t.wants(base):
        t.give(base, dy)
    if t.wants(values):
        t.give(values, t.op("take", dy, name="grad_values", like=values, shape=t.shape(values)))


def _rearrange(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("rearrange", dy, name="grad", like=x, shape=t.shape(x)))


def _transposed(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("transpose_copy", dy, name="grad", like=x))


def _cat(t: Tape, node: Node, dy: str) -> None:
    axis = dict(node.attrs).get("axis", -1) % len(t.shape(dy))
    start: Size = 0
    for at, name in enumerate(node.inputs):
        if t.wants(name):
            t.give(name, t.op("slice", dy, name=f"grad_{at}", like=dy, shape=t.shape(name), axis=axis, start=start))
        start = start + t.shape(name)[axis]


def _upsample(t: Tape, node: Node, dy: str) -> None:
    x, scale = node.inputs[0], dict(node.attrs)["scale"]
    t.give(x, t.op("pool", dy, name="grad", like=x, shape=t.shape(x), flops=scale**2))


def _view(t: Tape, node: Node, dy: str) -> None:
    t.give(node.inputs[0], t.reshaped(dy, t.shape(node.inputs[0]), "grad"))


def _permute(t: Tape, node: Node, dy: str) -> None:
    axes = dict(node.attrs)["axes"]
    back = tuple(axes.index(at) for at in range(len(axes)))
    t.give(node.inputs[0], t.op("permute", dy, name="grad", like=dy, axes=back))


def _slice(t: Tape, node: Node, dy: str) -> None:
    t.give_part(node.inputs[0], dy, dict(node.attrs).get("start"))


# --- between devices ---------------------------------------------------------------------------------------------


def _collective(op: str) -> Rule:
    """The gradient goes the other way; collectives take arrays of one axis."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        x = node.inputs[0]
        shape = t.shape(dy)
        flat = t.reshaped(dy, (rows_of((*shape, 1)),), "grad_flat")
        back = t.op(op, flat, name="grad", like=x, **dict(node.attrs))
        t.b.restate(back, (rows_of((*t.shape(x), 1)),))
        t.give(x, t.reshaped(back, t.shape(x), "grad_shaped"))

    return rule


def _send(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, t.op("send", dy, name="grad", like=x, **dict(node.attrs)))


#: The backward of each operator.
RULES: dict[str, Rule] = {
    **{name: _unary(reads, flops) for name, (reads, flops) in UNARY.items()},
    **dict.fromkeys(("add", "bias_add", "add_scalar", "copy", "identity", "cast"), _same),
    **dict.fromkeys(("neg", "mul_scalar"), _as_forward),
    "sub": _sub, "mul": _mul, "div": _div, "pow": _pow, "mask": _masked(0), "where": _masked(1), "dropout": _dropout,
    "elementwise": _any, "maximum": _chosen, "minimum": _chosen, "xielu": _xielu, "resample": _resample,
    "linear": _linear, "matmul": _matmul, "bmm": _bmm, "expert_linear": _expert_linear,
    "attention_scores": _scores, "attention_softmax": _attention_softmax, "attention_values": _values,
    "softmax": _softmax, "cross_entropy": _cross_entropy, "layernorm": _norm("layernorm_grad"),
    "rmsnorm": _norm("rmsnorm_grad"), "groupnorm": _norm("channelnorm_grad", True),
    "layernorm2d": _norm("channelnorm_grad", True), "batchnorm_train": _norm("channelnorm_grad", True),
    "batchnorm2d": _fixed_norm, "sum": _sum, "mean": _mean, "reduce": _reduce, "scan": _scan,
    "maxpool2d": _pool(True), "pool": _pool(True), "avgpool2d": _pool(False), "global_avgpool": _pool(False),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv), "conv_transpose2d": _conv_transposed,
    "causal_conv": _mixer(2),
    **dict.fromkeys(("selective_scan", "ssd_scan", "delta_scan", "linear_recurrence"), _mixer(3)),
    "embedding": _embedding, "gather_rows": _gather_rows, "scatter_add": _scatter_add, "put": _put,
    **dict.fromkeys(("topk", "take", "gather"), _places), "rearrange": _rearrange, "transpose_copy": _transposed,
    "cat": _cat, "upsample2d": _upsample, "view": _view, "permute": _permute, "slice": _slice,
    "expand": _same, "parallel_input": _collective("all_reduce"), "all_reduce": _same,
    "all_gather": _collective("reduce_scatter"), "reduce_scatter": _collective("all_gather"),
    "alltoall": _collective("alltoall"), "send": _send,
}  # fmt: skip
