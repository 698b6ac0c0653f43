"""What each operator of ONNX does: one rule an operator, in a table a class of them."""

from __future__ import annotations

from collections.abc import Callable

from roofline.frontends.onnx.read import ELEMENTS
from roofline.frontends.onnx.rules import (  # fmt: skip
    attention,
    control,
    convolution,
    layout,
    matmul,
    norms,
    pointwise,
    quantised,
    recurrent,
)
from roofline.frontends.onnx.walk import Call, Rule

#: Rules by operator; those outside the standard set with their domain.
RULES: dict[str, Rule] = {
    **pointwise.RULES, **layout.RULES, **matmul.RULES, **convolution.RULES, **norms.RULES,
    **attention.RULES, **quantised.RULES, **recurrent.RULES, **control.RULES,
}  # fmt: skip

#: Operators that only look at a constant in another way: the result is the same constant.
LAYOUT = layout.VIEWS

#: Operators that only move elements, to a shape that the file may declare where it does not follow; a reshape must fit.
MOVES = layout.RULES.keys() - {"Reshape"}

#: Operators that are not computed once for all even where every operand is a constant; a lookup keeps its table.
AS_THEY_ARE = (
    LAYOUT | {"Gather", "GatherElements", "GatherND"} | control.RULES.keys() | quantised.DEQUANTISE | layout.FILLS
)

_BOOLEAN = frozenset({
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf",
})  # fmt: skip
_INDICES = frozenset({"Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "Multinomial"})


def _of(at: int) -> Callable[[Call], str]:
    """Return the format of an operand, of the first where it is left out."""
    return lambda call: call.value(at if call.has(at) else 0).dtype


def _named(attribute: str, default: int) -> Callable[[Call], str]:
    return lambda call: ELEMENTS.get(call.number(attribute, default), "fp32")


def _filled(call: Call) -> str:
    value = call.attr("value")
    return ELEMENTS.get(value.data_type, "fp32") if value is not None else "fp32"


def _random(call: Call) -> str:
    same = call.inputs and "dtype" not in call.attrs
    return call.value(0).dtype if same else _named("dtype", 1)(call)


#: The format of the result where it is not that of the first operand.
_FORMATS: dict[str, Callable[[Call], str]] = {
    **dict.fromkeys(_BOOLEAN, lambda call: "bool"), **dict.fromkeys(_INDICES, lambda call: "int64"),
    "Cast": _named("to", 1), "BitCast": _named("to", 1), "CastLike": _of(1), "Where": _of(1), "OneHot": _of(2),
    "ConstantOfShape": _filled,
    "EyeLike": _random, "RandomNormal": _random, "RandomUniform": _random, "RandomNormalLike": _random,
    "RandomUniformLike": _random, "Bernoulli": _random,
    "DequantizeLinear": _of(1), "DynamicQuantizeLinear": lambda call: "int8",
    "QLinearConv": _of(7), "QLinearMatMul": _of(7), "MatMulInteger": lambda call: "int32",
    "ConvInteger": lambda call: "int32", "com.microsoft.EmbedLayerNormalization": _of(2),
    "com.microsoft.DynamicQuantizeMatMul": lambda call: "fp32",
    "com.microsoft.MatMulIntegerToFloat": _of(2), **dict.fromkeys(("QuantizeLinear", "com.microsoft.QuantizeLinear"),
    lambda call: call.value(2).dtype if call.has(2) else "int8"),
    "com.microsoft.DequantizeLinear": _of(1), "com.microsoft.GatherBlockQuantized": _of(2),
}  # fmt: skip


def result_dtype(call: Call) -> str:
    """Return the number format of a node's first result."""
    if call.what in _FORMATS:
        return _FORMATS[call.what](call)
    first = next((value for value in call.inputs if value is not None), None)
    return first.dtype if first is not None else "fp32"
