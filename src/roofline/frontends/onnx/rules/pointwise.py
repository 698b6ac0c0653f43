"""Elementwise operators; whole numbers and truth values count as moves, their arithmetic being no floating-point."""

from __future__ import annotations

from roofline.frontends.onnx.call import Call, Result, Rule
from roofline.ir.sizes import prod

#: Operators of ONNX by what the registry calls them.
NAMES = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Neg": "neg", "Abs": "abs", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log", "Tanh": "tanh", "Erf": "erf", "Sigmoid": "sigmoid",
    "Relu": "relu", "Cos": "cos", "Sin": "sin", "HardSwish": "hardswish", "HardSigmoid": "hardsigmoid", "Mish": "mish",
    "Softplus": "softplus", "Swish": "silu", "Clip": "clamp", "Where": "where", "Max": "maximum", "Min": "minimum",
    "Cast": "cast", "CastLike": "cast", "com.microsoft.QuickGelu": "quick_gelu", "com.microsoft.Gelu": "gelu",
}  # fmt: skip

#: Other elementwise operators, by floating-point operations an element; a comparison or a choice counts none.
FLOPS = {
    "Elu": 3, "Selu": 4, "Celu": 4, "LeakyRelu": 1, "PRelu": 1, "ThresholdedRelu": 0, "Softsign": 2, "Shrink": 1,
    "Tan": 1, "Asin": 1, "Acos": 1, "Atan": 1, "Sinh": 1, "Cosh": 1, "Asinh": 1, "Acosh": 1, "Atanh": 1, "Mod": 1,
    "Sign": 0, "Floor": 0, "Ceil": 0, "Round": 0, "IsNaN": 0, "IsInf": 0, "And": 0, "Or": 0, "Xor": 0, "Not": 0,
    "Equal": 0, "Greater": 0, "GreaterOrEqual": 0, "Less": 0, "LessOrEqual": 0, "BitShift": 0, "BitwiseAnd": 0,
    "BitwiseOr": 0, "BitwiseXor": 0, "BitwiseNot": 0, "Trilu": 0, "com.microsoft.Trilu": 0,
}  # fmt: skip

#: Operands that are no arrays of elements: limits, a choice of the diagonal, a target type.
_FIRST_ONLY = frozenset({"Clip", "CastLike", "Trilu", "com.microsoft.Trilu"})


def _operands(call: Call) -> list[str]:
    """Operands, without constants of one element: they travel as arguments of the kernel."""
    given = [at for at in range(1 if call.what in _FIRST_ONLY else len(call.inputs)) if call.has(at)]
    rank = max((len(call.shape(at)) for at in given), default=0)
    plain = {at for at in given if call.value(at).data is not None and prod(call.shape(at)) == 1}
    full = [at for at in given if at not in plain]
    if not full or max(len(call.shape(at)) for at in full) < rank:
        full = given
    return [call.x(at) for at in full]


def elementwise(call: Call) -> Result:
    """Any elementwise operator of the tables, broadcast."""
    operands = _operands(call)
    discrete = call.dtype == "bool" or call.dtype.startswith("int")
    if call.what in ("Max", "Min", "Sum", "Mean") and len(operands) > 2:
        return call.op("elementwise", *operands, flops=0 if discrete else VARIADIC[call.what] * (len(operands) - 1))
    if discrete and call.what != "Cast":
        return call.op("elementwise", *operands, flops=0)
    if call.what in NAMES:
        return call.op(NAMES[call.what], *operands)
    return call.op("elementwise", *operands, flops=FLOPS[call.what])


#: Operators of any number of operands: operations for each after the first.
VARIADIC = {"Sum": 1, "Mean": 1, "Max": 0, "Min": 0}


def _variadic(call: Call) -> Result:
    operands = _operands(call)
    return call.op("elementwise", *operands, flops=VARIADIC[call.what] * max(len(operands) - 1, 0))


def _gelu(call: Call) -> Result:
    return call.op("gelu_tanh" if call.attr("approximate") == "tanh" else "gelu", call.x(0))


def _biased(op: str) -> Rule:
    """An activation with a bias before it, one kernel."""

    def run(call: Call) -> Result:
        if not call.has(1):
            return call.op(op, call.x(0))
        with call.b.kernel(call.name):
            return call.op(op, call.op("add", call.x(0), call.x(1), name=f"{call.name}.bias"))

    return run


def _split_gelu(call: Call) -> Result:
    """A bias, then one half times the activation of the other: the gate of a diffusion model's feed-forward."""
    shape = call.shape(0)
    half = (*shape[:-1], shape[-1] // 2)
    with call.b.kernel(call.name):
        x = call.op("add", call.x(0), call.x(1), name=f"{call.name}.bias")
        gate = call.op("gelu", call.cut(x, half, "gate"), name=f"{call.name}.gelu")
        return call.op("mul", call.cut(x, half, "up"), gate)


def _cast(call: Call) -> Result:
    return call.value(0) if call.value(0).dtype == call.dtype else elementwise(call)


def _prelu(call: Call) -> Result:
    """A slope a channel; old operator sets let one axis of slopes stand for the channels."""
    slope, shape = call.x(1), call.shape(0)
    if len(shape) > 1 and len(call.shape(1)) == 1 and call.shape(1)[0] == shape[1] != shape[-1]:
        slope = call.see(slope, (shape[1], *[1] * (len(shape) - 2)), "slope")
    return call.op("elementwise", call.x(0), slope, flops=1)


def _same(call: Call) -> Result:
    """Nothing at inference; a mask of what was dropped is all true."""
    mask = call.write(call.shape(0), dtype="bool", part="mask") if call.wants(1) else None
    return [call.value(0), mask]


RULES: dict[str, Rule] = {
    **dict.fromkeys(NAMES.keys() | FLOPS.keys(), elementwise),
    "PReLU": _prelu, "Sum": _variadic, "Mean": _variadic, "Gelu": _gelu, "Cast": _cast, "CastLike": _cast,
    "Identity": _same, "Dropout": _same, "com.microsoft.BiasGelu": _biased("gelu"),
    "com.microsoft.FastGelu": _biased("gelu_tanh"), "com.microsoft.BiasSoftplus": _biased("softplus"),
    "com.microsoft.BiasSplitGelu": _split_gelu,
    "com.microsoft.BiasAdd": lambda call: call.op("elementwise", *call.xs(0, 1, 2), flops=2),
    "LRN": lambda call: call.op("elementwise", call.x(0), flops=call.number("size") + 5),
}  # fmt: skip
