"""Elementwise operators, and those that only write."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from roofline.frontends import emit
from roofline.frontends.aliases import POINTWISE
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, Rule, rows
from roofline.ops.registry import OPS

#: aten's functions whose derivative the registry declares, under its names.
_DERIVED = {
    **{name: name for name in ("gelu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "softplus", "mish")},
    "threshold": "relu", "hardtanh": "relu6",
}  # fmt: skip

#: Operations per element of gradients: those of the derivative's formula and the multiplication by what comes in
#: (PyTorch's derivatives.yaml).
_GRADIENTS = {
    **{f"{aten}_backward": slope.flops for aten, name in _DERIVED.items() if (slope := OPS[name].derivative)},
    "leaky_relu_backward": 1, "elu_backward": 2, "native_dropout_backward": 2,
    "log_sigmoid_backward": 4, "mse_loss_backward": 3, "smooth_l1_loss_backward": 3, "_prelu_kernel_backward": 2,
    "binary_cross_entropy_with_logits_backward": 4, "glu_backward": 8, "huber_loss_backward": 3,
    "nan_to_num_backward": 0,
}  # fmt: skip

#: Operations for each result of an interpolation, which weighs a few elements.
_RESAMPLED = {
    "upsample_linear1d": 3, "upsample_bilinear2d": 8, "_upsample_bilinear2d_aa": 8, "upsample_bicubic2d": 35,
    "grid_sampler_2d": 12, "grid_sampler": 12, "upsample_trilinear3d": 18,
}  # fmt: skip

#: Pointwise operators of PyTorch: an operator of the registry, or operations per element.
ELEMENTWISE = {**{name: what for name, what in POINTWISE.items() if name.islower()}, "square": 1, **_GRADIENTS}

#: Operators that take a number in place of a second tensor.
WITH_NUMBER = frozenset({"add", "sub", "rsub", "mul", "div", "true_divide", "pow", "masked_scatter", *_RESAMPLED}.union(
    name for name, what in ELEMENTWISE.items() if isinstance(what, int)))  # fmt: skip

#: Operators that write values that they compute from nothing.
FILLS = (
    "zeros", "ones", "full", "arange", "eye", "linspace", "logspace", "scalar_tensor", "rand", "randn",
    "randint", "randperm", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_zeros", "new_ones", "new_full",
    "bernoulli", "uniform", "normal", "normal_functional", "exponential", "random", "fill", "zero",
    "tril_indices", "triu_indices", "_efficientzerotensor", "rrelu_with_noise", "poisson", "multinomial", "geometric",
)  # fmt: skip

#: Operators that take memory and leave it as it is: no kernel; what is read of it unwritten becomes a buffer.
ROOM = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted")

#: PyTorch's number for a loss that is summed up.
_SUM = 2

#: What an addition or a multiplication with a number is called.
_BY_NUMBER = {"add": "add_scalar", "sub": "add_scalar", "mul": "mul_scalar", "div": "mul_scalar"}


#: The option of each operator with a number, and what that is of the argument.
_NUMBERS: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "add": ("other", "value", float), "sub": ("other", "value", operator.neg), "mul": ("other", "value", float),
    "div": ("other", "value", lambda number: 1 / number), "pow": ("exponent", "exponent", float),
}  # fmt: skip


def _number(call: Call) -> dict[str, Any]:
    """Return the number in place of a second tensor, so that the executor computes with it, where it is plain."""
    argument, option, of = _NUMBERS.get(call.what.removesuffix("_"), ("", "", float))
    number = call.get(argument)
    plain = type(number) in (int, float) and math.isfinite(number) and (number or call.what != "div")
    exact = call.get("alpha", 1) == 1 and call.get("rounding_mode") is None
    return {option: of(number)} if plain and exact else {}


def _elementwise(what: str | int) -> Rule:
    def named(call: Call) -> Result:
        inputs = call.tensors()
        if len(inputs) > 1:
            return call.op(str(what), *inputs)
        return call.op(_BY_NUMBER.get(str(what), str(what)), *inputs, **_number(call))

    def counted(call: Call) -> Result:
        terms = call.op("elementwise", *call.tensors(), flops=what)
        if call.out.shape or not call.b.shape(terms):
            return terms
        how = "sum" if call.get("reduction") == _SUM else "mean"  # a loss, term by term, then a number
        return emit.reduce(call.b, how, terms, name=how)

    return named if isinstance(what, str) else counted


def _fill(call: Call) -> Result:
    return call.op("fill", shape=call.out.shape, **_filled(call))


def _filled(call: Call) -> dict[str, Any]:
    """Return the number that is written, or the first one and the step to the next, where the call says so."""
    what = call.what.removeprefix("new_").removesuffix("_like").rstrip("_")
    if what == "arange":
        options = {"value": call.get("start", 0), "step": call.get("step", 1)}
    else:
        named = {"zeros": 0, "zero": 0, "ones": 1, "full": call.get("fill_value"), "fill": call.get("value"),
                 "scalar_tensor": call.get("s")}  # fmt: skip
        options = {"value": named.get(what)}
    return options if all(type(each) in (int, float) and math.isfinite(each) for each in options.values()) else {}


def _cast(call: Call) -> Result:
    source = call.value("self")
    same = source is not None and source.dtype == call.dtype
    return call.op("copy" if same else "cast", call.tensor(), name="copy" if same else f"to_{call.dtype}")


def _dropout(call: Call) -> Result:
    """Values and the mask that the backward needs, from one kernel; the mask's write is counted with it."""
    with call.b.kernel(call.name):
        values = call.op("dropout", call.tensor("input"))
        return values, call.op("elementwise", call.tensor("input"), name="mask", dtype="bool", flops=0)


def _masked(call: Call) -> Result:
    """A number, or a tensor of one, where a mask says so: in place, or in a copy that is made first."""
    copied: dict[str, Any] = {} if call.writes else {"copied": (("vector", 1, 0),)}
    value = call.get("value")
    number = {"value": value} if type(value) in (int, float) and math.isfinite(value) else {}
    return call.op("mask", call.tensor(), call.tensor("mask"), **number, **copied)


def _resample(call: Call) -> Result:
    flops = _RESAMPLED.get(call.what.removeprefix("_").removesuffix("_aa"), 8)
    image = call.value("input" if "grid" in call.what else "self")
    layout: dict[str, Any] = {"what": call.what, "channels_last": bool(image and image.channels_last)}
    return call.op("resample", call.tensors()[0], shape=call.out.shape, flops=flops, **layout)


ROWS: dict[str, Row] = {
    **{name: Row(_elementwise(what), forms.pointwise) for name, what in ELEMENTWISE.items()},
    **rows("where", _elementwise("where"), forms.where),
    **rows("bucketize searchsorted", _elementwise(0), lambda call: (call.tensor().shape, "int64")),
    **rows(FILLS, _fill, forms.filled),
    **rows("arange linspace logspace", _fill, forms.arange),
    **rows("eye", _fill, lambda call: (
        (call.get("n"), call.get("m", call.get("n"))), forms.requested(call, "fp32"))),
    **rows("randperm", _fill, lambda call: ((call.get("n"),), forms.requested(call, "int64"))),
    **rows("scalar_tensor", _fill, lambda call: ((), forms.requested(call, "fp32"))),
    **rows("tril_indices triu_indices multinomial", _fill, forms.untold),
    **rows(ROOM, lambda call: None),
    **rows("_to_copy to clone type_as", _cast, forms.cast),
    **rows("_copy_from _to_dense pin_memory", _cast),
    **rows((name for name in _RESAMPLED if "upsample" in name), _resample, forms.resized),
    **rows("grid_sampler_2d grid_sampler", _resample, forms.sampled),
    **rows("gelu", lambda call: call.op("gelu_tanh" if call.get("approximate") == "tanh" else "gelu", call.tensor())),
    **rows("native_dropout", _dropout, forms.like("input", "bool")),
    **rows("masked_fill", _masked, forms.like("self")),
    **rows("glu", lambda call: call.op("elementwise", *(
        call.b.op("slice", call.tensor(), name=name, shape=call.out.shape) for name in ("value", "gate")), flops=4),
        forms.halved),
    **rows("polar", lambda call: call.op("elementwise", *call.tensors(), flops=4)),
}  # fmt: skip
