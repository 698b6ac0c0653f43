"""What the gradients of elementwise functions and of norms' scales compute, by the option ``what``.

Each takes the call, the gradient of the output and what else the backward reads: the function's input or its output.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roofline.ops.reference import pointwise
from roofline.ops.reference.calls import Array, Call, means, mix
from roofline.ops.reference.pointwise import erf, sigmoid, softplus
from roofline.ops.reference.rowwise import EPSILON, normalised

_SLOPE_AT_0 = 2 / np.sqrt(np.pi)


def _gelu(call: Call, dy: Array, x: Array) -> Array:
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return dy * ((1 + erf(x / np.sqrt(2))) / 2 + x * density)


def _gelu_tanh(call: Call, dy: Array, x: Array) -> Array:
    inner, slope = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3), np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    t = np.tanh(inner)
    return dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope)


def _silu(call: Call, dy: Array, x: Array, steep: float = 1.0) -> Array:
    s = sigmoid(steep * x)
    return dy * (s + steep * x * s * (1 - s))


def _mish(call: Call, dy: Array, x: Array) -> Array:
    t = np.tanh(softplus(x))
    return dy * (t + x * (1 - t * t) * sigmoid(x))


def _softcap(call: Call, dy: Array, y: Array) -> Array:
    return dy * (1 - (y / call.free("cap", 1, 30)) ** 2)


def _clamp(call: Call, dy: Array, x: Array) -> Array:
    return dy * ((x > call.free("low", -2, -1)) & (x < call.free("high", 1, 2)))


def _scale(axes_of: Callable[[Array], tuple[int, ...]], centred: bool) -> Callable[..., Array]:
    """Times the normalised input, before the sum over rows."""

    def gradient(call: Call, dy: Array, x: Array) -> Array:
        return dy * normalised(x, axes_of(x), float(call.attrs.get("eps", EPSILON)), centred)[0]

    return gradient


def _last(x: Array) -> tuple[int, ...]:
    return (-1,)


def _batch(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


#: By the name that the backward gives.
GRADIENTS: dict[str, Callable[..., Array]] = {
    "abs_grad": lambda call, dy, x: dy * np.sign(x),
    "square_grad": lambda call, dy, x: 2 * x * dy,
    "sqrt_grad": lambda call, dy, y: dy / (2 * y),
    "rsqrt_grad": lambda call, dy, y: -dy * y**3 / 2,
    "exp_grad": lambda call, dy, y: dy * y,
    "log_grad": lambda call, dy, x: dy / x,
    "tanh_grad": lambda call, dy, y: dy * (1 - y * y),
    "reciprocal_grad": lambda call, dy, y: -dy * y * y,
    "cos_grad": lambda call, dy, x: -dy * np.sin(x),
    "sin_grad": lambda call, dy, x: dy * np.cos(x),
    "erf_grad": lambda call, dy, x: dy * _SLOPE_AT_0 * np.exp(-x * x),
    "sigmoid_grad": lambda call, dy, y: dy * y * (1 - y),
    "silu_grad": _silu,
    "quick_gelu_grad": lambda call, dy, x: _silu(call, dy, x, 1.702),
    "gelu_grad": _gelu,
    "gelu_tanh_grad": _gelu_tanh,
    "softplus_grad": lambda call, dy, x: dy * sigmoid(x),
    "mish_grad": _mish,
    "hardswish_grad": lambda call, dy, x: dy * np.where(x < -3, 0, np.where(x > 3, 1, (2 * x + 3) / 6)),
    "hardsigmoid_grad": lambda call, dy, x: dy * ((x > -3) & (x < 3)) / 6,
    "relu_grad": lambda call, dy, y: dy * (y > 0),
    "relu6_grad": lambda call, dy, x: dy * ((x > 0) & (x < 6)),
    "softcap_grad": _softcap,
    "clamp_grad": _clamp,
    "div_grad": lambda call, dy, y, b: -dy * y / b,
    "dropout_grad": lambda call, dy, *mask: dy * (mask[0] if mask else 1),
    "maximum_grad_0": lambda call, dy, a, b: dy * (a > b),
    "maximum_grad_1": lambda call, dy, a, b: dy * (b >= a),
    "minimum_grad_0": lambda call, dy, a, b: dy * (a < b),
    "minimum_grad_1": lambda call, dy, a, b: dy * (b <= a),
    "layernorm_scale": _scale(_last, True),
    "rmsnorm_scale": _scale(_last, False),
    "batchnorm_train_scale": _scale(_batch, True),
}


@means("mixer_grad")
def mixer(call: Call, *arrays: Array) -> Array:
    """Nothing says which of the gradients: a fixed function of all that is read."""
    return mix(call, arrays, call.shape)


@means("elementwise")
def elementwise(call: Call, *arrays: Array) -> Array:
    """A gradient by its name; what has none, or another, is a function of the node's own."""
    known = GRADIENTS.get(str(call.attrs.get("what", "")))
    return np.asarray(known(call, *arrays)) if known is not None else pointwise.elementwise(call, *arrays)
