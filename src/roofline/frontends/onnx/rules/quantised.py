"""Quantised operators. A weight that is dequantised before use stays small in memory: its reader dequantises it."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.onnx.known import Value
from roofline.frontends.onnx.rules.convolution import convolve, over_image
from roofline.frontends.onnx.rules.matmul import operand
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.dtypes import DTYPES

#: Scale (a multiplication) and shift of an element.
_SCALING = 2

DEQUANTISE = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})


def _dequantise(call: Call) -> Result:
    value = call.value(0)
    if not value.const:
        return call.op("elementwise", call.tensor(0), flops=_SCALING)
    bits = 4 if value.dtype == "int4" else 8
    stored = block_format(call, bits, call.attr("block_size", 0), call.has(2)) if bits == 4 else value.dtype
    return Value(value.name, value.shape, call.dtype, const=True, kind="weight" if len(value.shape) > 1 else "buffer",
                 stored=stored)  # fmt: skip


def block_format(call: Call, bits: int, block: int, zeros: bool) -> str:
    """Return the format of 4- or 8-bit weights with a scale per block; where none fits, one without its scales."""
    name = f"int{bits}-g{block}{'-z4' if zeros else '-sym'}" if bits == 4 else f"int{bits}-g{block}"
    if name in DTYPES:
        return name
    if block:
        call.note(f"scales of blocks of {block} at {bits} bits are not counted")
    return f"int{bits}" if bits in (4, 8) else "int8"


def _blockwise(call: Call) -> Result:
    """MatMulNBits: ``x W^T`` with W stored in blocks of few bits."""
    k, n, bits = call.number("K"), call.number("N"), call.number("bits", 4)
    stored = block_format(call, bits, call.number("block_size"), call.has(3))
    weight = Value(call.value(1).name, (n, k), call.dtype, const=True, kind="weight", stored=stored)
    return call.op("linear", call.tensor(0), call.walk.tensor(weight), *call.tensors(5))


@with_options
def _matmul(call: Call, scale: int | None, right: int, bias: int = -1) -> Result:
    """A matmul of whole numbers; with a scale the result is dequantised or quantised in the same kernel."""
    with call.b.kernel(call.name):
        out = call.matmul(call.tensor(0), call.tensor(right))
        if scale is None:
            return out
        out = call.op("elementwise", out, flops=_SCALING, name=f"{call.name}.scaled")
        biased = bias >= 0 and call.has(bias)
        return call.op("add", out, call.tensor(bias), name=f"{call.name}.bias") if biased else out


def _conv(call: Call) -> Result:
    """QLinearConv: image, scale, zero, weight, scale, zero, scale, zero, bias."""
    with call.b.kernel(call.name):
        out = convolve(call, call.tensor(0), call.tensor(3), call.maybe(8))
        return call.op("elementwise", out, flops=_SCALING, name=f"{call.name}.scaled")


def _dynamic(call: Call) -> Result:
    """Finds the range of a tensor, then quantises it: two passes over it."""
    low = emit.reduce(call.b, "max", call.tensor(0), None, name=f"{call.name}.range", dtype="fp32")
    zero = call.rearrange((), low, dtype="int8", part="zero") if call.is_read(2) else None
    return [call.op("elementwise", call.tensor(0), low, flops=_SCALING, dtype="int8"), low, zero]


def _scaled(flops: int) -> Rule:
    return lambda call: call.op("elementwise", call.tensor(), flops=flops)


def _gemm(call: Call) -> Result:
    """QGemm: A, scale, zero, B, scale, zero, C, scale, zero."""
    with call.b.kernel(call.name):
        left, right = operand(call, 0, "transA", "a_t"), operand(call, 3, "transB", "b_t")
        bias = call.tensor(6) if call.has(6) and len(call.shape(6)) == 1 else None
        out = call.matmul(left, right, bias)
        return call.op("elementwise", out, flops=_SCALING, name=f"{call.name}.scaled")


def _rows(call: Call) -> Result:
    """GatherBlockQuantized: rows of a table stored in blocks of few bits, two elements per byte."""
    value, bits = call.value(0), call.number("bits", 4)
    rows, width = call.shape(0)
    width = width * 2 if bits == 4 and value.dtype == "int8" else width
    stored = block_format(call, bits, call.number("block_size", 128), call.has(3))
    table = Value(value.name, (rows, width), call.dtype, const=True, kind="weight", stored=stored)
    return call.op("embedding", call.walk.tensor(table), call.tensor(1))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("QuantizeLinear", "com.microsoft.QuantizeLinear"), _scaled(_SCALING)),
    **dict.fromkeys(DEQUANTISE, _dequantise),
    "com.microsoft.MatMulNBits": _blockwise, "MatMulInteger": _matmul(None, 1),
    "com.microsoft.MatMulIntegerToFloat": _matmul(2, 1, 6), "com.microsoft.DynamicQuantizeMatMul": _matmul(2, 1, 4),
    "QLinearMatMul": _matmul(6, 3), "QLinearConv": _conv,
    "ConvInteger": lambda call: convolve(call, call.tensor(0), call.tensor(1), None),
    "DynamicQuantizeLinear": _dynamic,
    # Both operands dequantised, joined, quantised again.
    **dict.fromkeys(("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul"), lambda call: call.op(
        "elementwise", call.tensor(0), call.tensor(3), flops=3 * _SCALING + 1)),
    "com.microsoft.QLinearSigmoid": _scaled(2 * _SCALING + 3),
    "com.microsoft.QLinearLeakyRelu": _scaled(2 * _SCALING + 1), "com.microsoft.QGemm": _gemm,
    "com.microsoft.GatherBlockQuantized": _rows, "com.microsoft.QLinearGlobalAveragePool": over_image("mean"),
}  # fmt: skip
