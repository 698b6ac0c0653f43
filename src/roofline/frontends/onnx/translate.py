"""Node by node: what follows from the file alone first, then the rule of its operator."""

from __future__ import annotations

import math
import re
from typing import Any

from roofline.frontends.call import MALFORMED, located, one_line, unknown
from roofline.frontends.onnx.fold import fold
from roofline.frontends.onnx.known import Value
from roofline.frontends.onnx.read import attribute_value, clean
from roofline.frontends.onnx.rules import AS_THEY_ARE, LAYOUT, MOVES, RULES, result_dtype
from roofline.frontends.onnx.walk import Call, Result, Undetermined, Walk
from roofline.ir.errors import ModelDataError, RooflineError
from roofline.ir.sizes import Dim, Size


def translate(walk: Walk, node: Any) -> None:
    """Add one node of the file."""
    call = _call(walk, node)
    walk.b.dtype = call.dtype
    try:
        known = fold(call)
        if known is None and call.what not in AS_THEY_ARE and call.inputs and call.const:
            known = _precomputed(call)
        results = known if known is not None else _emitted(call)
    except RooflineError as error:
        raise located(error, f"{walk.where}: {call.name}", call.what, call.name) from None
    except MALFORMED as error:
        raise ModelDataError(f"{walk.where}: {call.name}: malformed {call.what}: {one_line(error)}") from None
    walk.folded[call.what] += known is not None
    const = call.what in LAYOUT and call.const
    for name, result in zip(call.outputs, [results] if isinstance(results, str | Value) else results, strict=False):
        if name and isinstance(result, str):
            walk.values[name] = walk.computed(name, result, walk.b.tensor(result).dtype, const)
            walk.values[name].kind = call.value(0).kind if const else "activation"
        elif name and isinstance(result, Value):
            walk.values[name] = result


def _call(walk: Walk, node: Any) -> Call:
    domain = "" if node.domain == "ai.onnx" else node.domain
    what, name = clean(f"{domain}.{node.op_type}"), _node_name(node)
    inputs = [walk.lookup(each, f"{name} ({what})") if each else None for each in node.input]
    attrs = {each.name: attribute_value(walk.file.onnx, each) for each in node.attribute if not each.ref_attr_name}
    version = walk.versions.get(node.domain, walk.versions.get(domain, 1))
    call = Call(walk, what, name, inputs, list(node.output), attrs, version)
    call.dtype = result_dtype(call)
    return call


def _precomputed(call: Call) -> list[Value] | None:
    """Return what follows from constants alone, which is computed once, when the program is loaded."""
    if call.what not in RULES:
        return None
    trial = call.on(call.walk.trial())
    result = RULES[call.what](trial)
    constants: list[Value] = []
    for name, tensor in zip(call.outputs, [result] if isinstance(result, str | Value) else result, strict=False):
        shape = trial.b.shape(tensor) if isinstance(tensor, str) else None
        if shape is None or any(isinstance(size, Dim) for size in shape):
            return None
        constants.append(_constant(call, name, shape))
    return constants


def _constant(call: Call, name: str, shape: tuple[Size, ...]) -> Value:
    """Return a result of constants: still the weight where it has its elements, in another format or scaled."""
    weights = [v for v in call.inputs if v is not None and v.kind == "weight"]
    same = len(weights) == 1 and _count(weights[0].shape) == _count(shape)
    return Value(weights[0].name if same else name, shape, call.dtype, const=True, kind="weight" if same else "buffer")


def _count(shape: tuple[Size, ...]) -> int:
    return math.prod(size for size in shape if isinstance(size, int))


def _emitted(call: Call) -> Result:
    """Apply the rule; where a move is as large as values say, write the shape that the file declares."""
    if call.what not in RULES:
        return _unknown(call)
    try:
        return RULES[call.what](call)
    except Undetermined:
        if call.what not in MOVES:
            raise
    inputs = call.tensors()
    return [call.rearrange(call.declared(at), *inputs) for at, name in enumerate(call.outputs) if name]


def _unknown(call: Call) -> Result:
    policy, inputs = call.walk.policy, call.tensors()
    shapes = [() if policy == "error" else call.declared(at) for at in range(len(call.outputs))]
    first = unknown(call.b, call.what, inputs, shapes[0] if shapes else (), policy=policy, where=call.name,
                    known=RULES, dtype=call.dtype)  # fmt: skip
    return [first, *(call.rearrange(shapes[at], part=f"result_{at}")
                     for at in range(1, len(shapes)) if call.outputs[at])]  # fmt: skip


def _node_name(node: Any) -> str:
    """Return a dotted path: the module that an exporter notes, or the name in the file."""
    scopes: list[str] = []
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = re.findall(r"'([^']*)'", entry.value)
    if len(scopes) > 1 and scopes[-2] and not scopes[-2].startswith("_"):
        return clean(f"{scopes[-2]}.{node.op_type}")
    if scopes:
        return clean(node.op_type)
    return clean(node.name) or clean(node.output[0] if node.output else "") or clean(node.op_type) or "node"
