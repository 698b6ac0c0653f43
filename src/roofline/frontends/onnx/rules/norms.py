"""What runs along axes: normalisations, softmax, reductions, running sums and the largest of many."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.frontends.call import with_options
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.sizes import prod

#: Reductions of ONNX by the names that all frontends share.
_NAMES = {
    "Sum": "sum", "Mean": "mean", "Prod": "prod", "Max": "max", "Min": "min", "L1": "sum_of_magnitudes", "L2": "norm",
    "LogSum": "sum", "LogSumExp": "logsumexp", "SumSquare": "sum_of_squares",
}  # fmt: skip


def _softmax(call: Call) -> Result:
    """Along an axis; before version 13 along that axis and all behind it."""
    shape = call.shape(0)
    modern = call.version >= 13
    axis = call.axis(-1 if modern else 1, len(shape))
    if modern or axis == len(shape) - 1:
        return call.along(axis, lambda x: call.op("softmax", x), call.tensor(), back="back")
    flat = call.view(call.tensor(0), (prod(shape[:axis]), prod(shape[axis:])), "rows")
    return call.view(call.op("softmax", flat), shape)


def normalise(call: Call, op: str, x: str, weights: Sequence[str], axis: int = -1) -> str:
    """Add a layer or RMS norm over an axis and all behind it."""
    shape = call.b.shape(x)
    at = axis % len(shape)
    width = prod(shape[at:])
    scales = [call.view(call.expand(w, shape[at:], "scale"), (width,), "scale") for w in weights]
    rows = call.view(x, (*shape[:at], width), "rows")
    return call.view(call.op(op, rows, *scales), shape)


def _statistics(call: Call, first: int, axis: int) -> list[str | None]:
    """Return means and deviations, where they are read."""
    shape = call.shape(0)
    reduced = (*shape[: axis % len(shape)], *[1] * (len(shape) - axis % len(shape)))
    outputs = range(first, len(call.outputs))
    return [call.rearrange(reduced, part=f"statistic_{at}") if call.is_read(at) else None for at in outputs]


@with_options
def _layer(call: Call, op: str) -> Result:
    axis = call.axis(-1, len(call.shape(0)))
    return [normalise(call, op, call.tensor(0), call.tensors(1, 2), axis), *_statistics(call, 1, axis)]


@with_options
def _skip(call: Call, op: str, shift: int) -> Result:
    """The sum of a block's input and output, then the norm: one kernel, which may also return the sum."""
    with call.b.kernel(call.name):
        total = call.op("add", call.tensor(0), call.tensor(1), name=f"{call.name}.sum")
        if call.has(shift + 1):
            total = call.op("add", total, call.tensor(shift + 1), name=f"{call.name}.bias")
        weights = call.tensors(2, 3) if shift == 3 else call.tensors(2)
        return [normalise(call, op, total, weights), None, None, total]


def _embed(call: Call) -> Result:
    """Words, places and segments of BERT, summed and normalised in one kernel."""
    ids, width = call.tensor(0), call.shape(2)[-1]
    with call.b.kernel(call.name):
        x = call.op("embedding", call.tensor(2), ids, name=f"{call.name}.words")
        x = call.op(
            "add", x, call.part(call.tensor(3), (call.shape(0)[1], width), "places"), name=f"{call.name}.placed"
        )
        if call.has(1) and call.has(4):
            rows = call.op("embedding", call.tensor(4), call.tensor(1), name=f"{call.name}.segments")
            x = call.op("add", x, rows, name=f"{call.name}.summed")
        out = normalise(call, "layernorm", x, call.tensors(5, 6))
    mask = call.rearrange((call.shape(0)[0],), dtype="int32", part="mask") if call.is_read(1) else None
    return [out, mask, x if call.is_read(2) else None]


def _batch(call: Call) -> Result:
    for at in (3, 4):
        value = call.value(at)
        value.kind = "buffer" if value.kind == "weight" else value.kind  # running statistics are no parameters
    training = call.attr("training_mode", 0)
    operands = call.tensors(0, 1, 2) if training else call.tensors(0, 1, 2, 3, 4)
    out = call.op("batchnorm_train" if training else "batchnorm2d", *operands)
    rest = [call.rearrange(call.shape(3), part=f"running_{at}") if call.is_read(at) else None for at in (1, 2)]
    return [out, *rest]


def _group(call: Call) -> Result:
    """Before version 21 there is one scale per group, which its channels share."""
    channels, groups = call.shape(0)[1], call.number("num_groups")
    scales = []
    for at in (1, 2):
        scale = call.tensor(at)
        if call.shape(at) != (channels,):
            column = call.view(scale, (*call.shape(at), 1), "column")
            spread = call.expand(column, (groups, channels // groups), "spread")
            scale = call.view(spread, (channels,), "scale")
        scales.append(scale)
    return call.op("groupnorm", call.tensor(0), *scales)


def _nhwc_group(call: Call) -> Result:
    """com.microsoft.GroupNorm: channels last, with an activation in the same kernel."""
    rank = len(call.shape(0))
    first = [0, rank - 1, *range(1, rank - 1)]
    with call.b.kernel(call.name):
        out = call.op("groupnorm", call.permute(call.tensor(0), first), *call.tensors(1, 2))
        out = call.permute(out, [0, *range(2, rank), 1], "back")
        return call.op("silu", out, name=f"{call.name}.silu") if call.attr("activation", 0) else out


@with_options
def _rows(call: Call, op: str, flops: int) -> Result:
    axis = call.axis(-1, len(call.shape()))
    return call.along(axis, lambda x: call.op(op, x, flops=flops), call.tensor(), back="back")


@with_options
def _reduce(call: Call, how: str) -> Result:
    axes = call.integers(1, "axes")
    if not axes and call.attr("noop_with_empty_axes", 0):
        return call.value(0)
    return call.reduce(how, call.tensor(), axes or None, bool(call.attr("keepdims", 1)))


def _extreme(call: Call) -> Result:
    axis, keepdims = call.axis(0, len(call.shape())), bool(call.attr("keepdims", 1))
    return call.reduce("argmax", call.tensor(), [axis], keepdims, dtype="int64")


def _top(call: Call) -> Result:
    axis = call.axis(-1, len(call.shape()))
    count = (call.sizes(1) or [1])[0] if "k" not in call.attrs else call.attr("k")
    out = call.along(axis, lambda x: call.op("topk", x, k=count), call.tensor(), back="back")
    places = call.rearrange(call.b.shape(out), out, dtype="int64", part="places") if call.is_read(1) else None
    return [out, places]


def _running(call: Call) -> Result:
    known = call.data(1) is not None
    axis = (call.integers(1) or [-1] if known else [-1])[0] % len(call.shape())
    flops = 0 if call.dtype.startswith("int") else 1
    return call.along(axis, lambda x: call.op("scan", x, flops=flops), call.tensor(), back="back")


#: Square, sum, root, divide.
_LP_FLOPS = 3

RULES: dict[str, Rule] = {
    **{f"Reduce{name}": _reduce(how) for name, how in _NAMES.items()},
    "ArgMax": _extreme, "ArgMin": _extreme, "TopK": _top, "CumSum": _running, "CumProd": _running,
    "Softmax": _softmax, "LogSoftmax": _softmax, "LayerNormalization": _layer("layernorm"),
    "RMSNormalization": _layer("rmsnorm"), "SimplifiedLayerNormalization": _layer("rmsnorm"),
    "com.microsoft.SimplifiedLayerNormalization": _layer("rmsnorm"),
    "com.microsoft.LayerNormalization": _layer("layernorm"),
    "com.microsoft.SkipLayerNormalization": _skip("layernorm", 3),
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip("rmsnorm", 2),
    "com.microsoft.EmbedLayerNormalization": _embed, "BatchNormalization": _batch,
    "InstanceNormalization": lambda call: call.op("groupnorm", *call.tensors(0, 1, 2)),
    "GroupNormalization": _group, "com.microsoft.GroupNorm": _nhwc_group,
    "LpNormalization": _rows("scan", flops=_LP_FLOPS),
    "MeanVarianceNormalization": lambda call: call.op("groupnorm", call.tensor(0)), "Hardmax": _rows("scan", flops=0),
}  # fmt: skip
