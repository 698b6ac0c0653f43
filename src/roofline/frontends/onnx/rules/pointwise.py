"""Elementwise operators; whole numbers and truth values count as moves, their arithmetic being no floating-point."""

from __future__ import annotations

from roofline.frontends.aliases import POINTWISE
from roofline.frontends.call import with_options
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.sizes import prod

#: Elementwise operators of ONNX: an operator of the registry, or operations per element.
ELEMENTWISE = {name: what for name, what in POINTWISE.items() if name[0].isupper() or "." in name}

#: Operands that are no arrays of elements: limits, a choice of the diagonal, a target type.
_FIRST_ONLY = frozenset({"Clip", "CastLike", "Trilu", "com.microsoft.Trilu"})

#: Operators whose operands cannot change places.
_ORDERED = frozenset({"Sub", "Div", "Pow"})

#: Operators of any number of operands: operations for each after the first.
_VARIADIC = {"Sum": 1, "Mean": 1, "Max": 0, "Min": 0}


def _operands(call: Call) -> list[str]:
    """Return operands without constants of one element: they travel as arguments of the kernel."""
    places = [at for at in range(1 if call.what in _FIRST_ONLY else len(call.inputs)) if call.has(at)]
    rank = max((len(call.shape(at)) for at in places), default=0)
    full = [at for at in places if call.data(at) is None or prod(call.shape(at)) != 1]
    if not full or max(len(call.shape(at)) for at in full) < rank:
        full = places
    return [call.tensor(at) for at in full]


def elementwise(call: Call) -> Result:
    """Any elementwise operator of the tables, broadcast."""
    operands, what = _operands(call), ELEMENTWISE.get(call.what, 0)
    discrete = call.dtype == "bool" or call.dtype.startswith("int")
    if call.what in _VARIADIC and len(operands) > 2:
        flops = 0 if discrete else _VARIADIC[call.what] * (len(operands) - 1)
        return call.op("elementwise", *operands, flops=flops)
    if call.what in _ORDERED and len(operands) == 1 and call.data(0) is not None:
        what = 1  # of a constant and an array: another function of the array than of an array and a constant
    if isinstance(what, str) and (not discrete or call.what == "Cast"):
        return call.op(what, *operands)
    return call.op("elementwise", *operands, flops=0 if discrete or isinstance(what, str) else what)


def _sum(call: Call) -> Result:
    operands = _operands(call)
    return call.op("elementwise", *operands, flops=_VARIADIC[call.what] * max(len(operands) - 1, 0))


@with_options
def _biased(call: Call, op: str) -> Result:
    """An activation with a bias before it, one kernel."""
    if not call.has(1):
        return call.op(op, call.tensor())
    with call.b.kernel(call.name):
        return call.op(op, call.op("add", *call.tensors(0, 1), name=call.label("bias")))


def _split_gelu(call: Call) -> Result:
    """A bias, then one half times the activation of the other: the gate of a diffusion model's feed-forward."""
    *rows, width = call.shape()
    half = (*rows, width // 2)
    with call.b.kernel(call.name):
        x = call.op("add", *call.tensors(0, 1), name=call.label("bias"))
        gate = call.op("gelu", call.part(x, half, "gate"), name=call.label("gelu"))
        return call.op("mul", call.part(x, half, "up"), gate)


def _cast(call: Call) -> Result:
    return call.value(0) if call.value(0).dtype == call.dtype else elementwise(call)


def _prelu(call: Call) -> Result:
    """A slope a channel; old operator sets let one axis of slopes stand for the channels."""
    slope, shape = call.tensor(1), call.shape()
    if len(shape) > 1 and len(call.shape(1)) == 1 and call.shape(1)[0] == shape[1] != shape[-1]:
        slope = call.view(slope, (shape[1], *[1] * (len(shape) - 2)), "slope")
    return call.op("elementwise", call.tensor(), slope, flops=1)


def _same(call: Call) -> Result:
    """Nothing at inference; a mask of what was dropped is all true."""
    mask = call.rearrange(call.shape(), dtype="bool", part="mask") if call.is_read(1) else None
    return [call.value(0), mask]


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "PReLU": _prelu, "Sum": _sum, "Mean": _sum, "Cast": _cast, "CastLike": _cast,
    "Identity": _same, "Dropout": _same, "com.microsoft.BiasGelu": _biased("gelu"),
    "com.microsoft.FastGelu": _biased("gelu_tanh"), "com.microsoft.BiasSoftplus": _biased("softplus"),
    "com.microsoft.BiasSplitGelu": _split_gelu,
    "Gelu": lambda call: call.op("gelu_tanh" if call.attr("approximate") == "tanh" else "gelu", call.tensor()),
    "com.microsoft.BiasAdd": lambda call: call.op("elementwise", *call.tensors(0, 1, 2), flops=2),
    "LRN": lambda call: call.op("elementwise", call.tensor(), flops=call.number("size") + 5),
}  # fmt: skip
