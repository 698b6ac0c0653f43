"""Elementwise operators, and those that only write."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import OPS

#: aten operators under the registry's names; of the others with the same name on both sides the table below knows.
_NAMES = {
    "add": "add", "sub": "sub", "rsub": "sub", "mul": "mul", "div": "div", "true_divide": "div",
    "maximum": "maximum", "minimum": "minimum", "fmax": "maximum", "fmin": "minimum",
    "clamp_min": "clamp", "clamp_max": "clamp", "hardtanh": "relu6", "threshold": "relu", "leaky_relu": "relu",
    "prelu": "mul", "_prelu_kernel": "mul", "masked_fill": "mask", "where": "where", "absolute": "abs",
    "elu": "exp", "celu": "exp", "selu": "exp", "log_sigmoid_forward": "softplus", "dropout": "dropout",
}  # fmt: skip

#: aten's functions whose derivative the registry declares, under its names.
_DERIVED = {
    **{name: name for name in ("gelu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "softplus", "mish")},
    "threshold": "relu", "hardtanh": "relu6",
}  # fmt: skip

#: Operations an element of what the registry has no name for; a transcendental counts one, a comparison none. Of a
#: gradient, those of the derivative's formula with the product by what comes in (PyTorch's derivatives.yaml).
_FLOPS = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
                     "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "isnan", "isinf", "isfinite", "sign",
                     "sgn", "__and__", "__or__", "__xor__", "floor", "ceil", "round", "trunc", "frac", "isin",
                     "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__", "bucketize",
                     "nan_to_num", "signbit", "isposinf", "isneginf", "heaviside", "copysign", "searchsorted"), 0),
    **dict.fromkeys(("exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
                     "asinh", "acosh", "atanh", "erfc", "erfinv", "lgamma", "digamma", "floor_divide", "fmod",
                     "remainder", "xlogy", "hypot", "logaddexp", "special_xlog1py", "polar", "angle", "complex"), 1),
    "addcmul": 3, "addcdiv": 3, "lerp": 3, "mse_loss": 3, "smooth_l1_loss": 4, "huber_loss": 4, "dist": 3,
    "binary_cross_entropy_with_logits": 7, "binary_cross_entropy": 6, "kl_div": 3, "square": 1, "pow": 1,
    **{f"{aten}_backward": slope.flops for aten, name in _DERIVED.items() if (slope := OPS[name].derivative)},
    "leaky_relu_backward": 1, "elu_backward": 2, "native_dropout_backward": 2,
    "log_sigmoid_backward": 4, "mse_loss_backward": 3, "smooth_l1_loss_backward": 3, "_prelu_kernel_backward": 2,
    "binary_cross_entropy_with_logits_backward": 4, "glu": 4, "glu_backward": 8, "masked_scatter": 0,
    "huber_loss_backward": 3, "_fake_quantize": 4, "nan_to_num_backward": 0, "quantize_per_tensor": 3,
    "dequantize": 2, "upsample_linear1d": 3, "upsample_bilinear2d": 8, "_upsample_bilinear2d_aa": 8,
    "upsample_bicubic2d": 35, "grid_sampler_2d": 12, "grid_sampler": 12, "upsample_trilinear3d": 18,
}  # fmt: skip

#: Operators that write values that they compute from nothing.
_FILLS = (
    "zeros", "ones", "full", "arange", "eye", "linspace", "logspace", "scalar_tensor", "rand", "randn",
    "randint", "randperm", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_zeros", "new_ones", "new_full",
    "bernoulli", "uniform", "normal", "normal_functional", "exponential", "random", "fill", "zero",
    "tril_indices", "triu_indices", "_efficientzerotensor", "rrelu_with_noise", "poisson", "multinomial", "geometric",
)  # fmt: skip

#: Operators that take memory and leave it as it is: no kernel.
_ROOM = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted")

#: PyTorch's number for a loss that is summed up.
_SUM = 2

#: What an addition or a product with a number is called.
_WITH_NUMBER = {"add": "add_scalar", "sub": "add_scalar", "mul": "mul_scalar", "div": "mul_scalar"}


def _named(op: str) -> Rule:
    def rule(site: Site) -> Result:
        inputs = site.tensors()
        return site.op(_WITH_NUMBER.get(op, op) if len(inputs) == 1 else op, *inputs)

    return rule


def _flops(count: int) -> Rule:
    def rule(site: Site) -> Result:
        terms = site.op("elementwise", *site.tensors(), flops=count)
        if site.out.shape or not site.b.shape(terms):
            return terms
        how = "sum" if site.get("reduction") == _SUM else "mean"  # a loss, term by term, then a number
        return emit.reduce(site.b, how, terms, name=how)

    return rule


def _fill(site: Site) -> Result:
    return site.op("fill", shape=site.out.shape)


def _room(site: Site) -> Result:
    """What is read of it without having been written becomes a buffer."""
    return None


def _gelu(site: Site) -> Result:
    return site.op("gelu_tanh" if site.get("approximate") == "tanh" else "gelu", site.tensor())


def _cast(site: Site) -> Result:
    source = site.value("self")
    same = source is not None and source.dtype == site.out.dtype
    return site.op("copy" if same else "cast", site.tensor(), name="copy" if same else f"to_{site.out.dtype}")


def _dropout(site: Site) -> Result:
    """Values and the mask that the backward needs, from one kernel; the mask's write is counted with it."""
    with site.b.kernel(site.name):
        kept = site.op("dropout", site.tensor("input"))
        return kept, site.b.op("elementwise", site.tensor("input"), name="mask", dtype="bool", flops=0)


def _glu(site: Site) -> Result:
    halves = [site.b.op("slice", site.tensor(), name=name, shape=site.out.shape) for name in ("value", "gate")]
    return site.op("elementwise", *halves, flops=4)


def _mask(site: Site) -> Result:
    """``masked_fill``: the value is a number, or a tensor of one."""
    return site.op("mask", site.tensor(), site.tensor("mask"))


def _resample(site: Site) -> Result:
    """Interpolation: every output element is weighed from a few input elements."""
    name = site.call.name.removeprefix("_").removesuffix("_aa")
    return site.op("resample", site.tensors()[0], shape=site.out.shape, flops=_FLOPS.get(name, 8))


def _polar(site: Site) -> Result:
    return site.op("elementwise", *site.tensors(), flops=4)


_SAME_NAME = ("relu", "relu6", "sigmoid", "silu", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "cos",
              "sin", "erf", "softplus", "mish", "hardswish", "hardsigmoid", "clamp", "abs", "pow")  # fmt: skip

assert POINTWISE.keys() >= {*_NAMES.values(), *_SAME_NAME}, "a name that the registry has not"

RULES: dict[str, Rule] = {
    **{name: _flops(count) for name, count in _FLOPS.items()},
    **{name: _named(op) for name, op in _NAMES.items()},
    **{name: _named(name) for name in _SAME_NAME},
    **dict.fromkeys(_FILLS, _fill),
    **dict.fromkeys(_ROOM, _room),
    **dict.fromkeys(("_to_copy", "to", "clone", "_copy_from", "type_as", "_to_dense", "pin_memory"), _cast),
    **dict.fromkeys((name for name in _FLOPS if name.startswith(("upsample", "_upsample", "grid_sampler"))), _resample),
    "gelu": _gelu,
    "native_dropout": _dropout,
    "masked_fill": _mask,
    "glu": _glu,
    "polar": _polar,
}
