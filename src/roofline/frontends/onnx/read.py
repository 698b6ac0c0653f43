"""Bytes to a checked ONNX model without its weights: parsed, never run; data beside the file is never opened."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roofline.frontends.onnx import native
from roofline.ir.errors import MissingExtra, ModelDataError, UnknownModel, did_you_mean
from roofline.ir.files import user_path

#: A protobuf message cannot be larger [byte].
MAX_BYTES = 2**31
#: Sizes, nodes and the depth of graphs in graphs beyond these are a mistake, not a model.
MAX_SIZE = 2**40
MAX_NODES = 500_000
MAX_DEPTH = 32
#: Constants up to this many elements may say a shape; of larger ones only the shape counts.
SMALL = 1024

#: Element types by their numbers in ``onnx.TensorProto``.
ELEMENTS = {
    1: "fp32", 2: "int8", 3: "int8", 4: "int16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64",
    12: "int32", 13: "int64", 14: "fp64", 16: "bf16", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8", 21: "int4",
    22: "int4", 23: "fp4", 24: "fp8",
}  # fmt: skip

#: Where a tensor keeps its elements.
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def library() -> Any:
    """Return the onnx package.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtra("reading ONNX needs the package onnx: pip install 'roofline[onnx]'") from None
    return onnx


def read_model(source: str | os.PathLike[str] | bytes) -> tuple[Any, str]:
    """Parse a model and drop its weights; returns it with what to call it in errors.

    Raises:
        MissingExtra: The package onnx is not installed.
        UnknownModel: No such file.
        ModelDataError: Not a whole ONNX model, or too large.
    """
    onnx = library()
    content, where = (source, "model") if isinstance(source, bytes) else _content(user_path(source, ModelDataError))
    if len(content) > MAX_BYTES:
        raise ModelDataError(f"{where}: {len(content)} bytes; allowed: at most {MAX_BYTES}, without external data")
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # google.protobuf's own classes, which differ between its backends
        raise ModelDataError(f"{where}: not an ONNX model, or cut short") from None
    if not model.ir_version or not model.opset_import or not model.HasField("graph"):
        raise ModelDataError(f"{where}: not an ONNX model: it has no version, no operator set or no graph")
    for graph in _graphs(model, where):
        for tensor in graph.initializer:
            _strip(tensor, where)
    return _inlined(onnx, model, where), where


def _content(path: Path) -> tuple[bytes, str]:
    where = str(path)[:200]
    try:
        if not os.path.lexists(path):
            near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.onnx")])
            raise UnknownModel(f"no ONNX file is called {where!r}{near}")
        if not path.is_file():
            raise ModelDataError(f"{where}: {'a directory' if path.is_dir() else 'not a file'}; expected an .onnx file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ModelDataError(f"{where}: {size} bytes; allowed: at most {MAX_BYTES}, without external data")
        return path.read_bytes(), where
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelDataError(f"{where}: cannot be read: {str(why)[:200]}") from None


def _graphs(model: Any, where: str) -> Iterator[Any]:
    """Yield the graph and all graphs inside its nodes."""
    nodes, stack = 0, [(model.graph, 0)]
    while stack:
        graph, depth = stack.pop()
        nodes += len(graph.node)
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ModelDataError(f"{where}: allowed: at most {MAX_NODES} nodes, and graphs {MAX_DEPTH} deep")
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                stack += [(each, depth + 1) for each in inner]


def elements(tensor: Any) -> int:
    """Count the elements of a stored tensor."""
    return math.prod(tensor.dims)


def _strip(tensor: Any, where: str) -> None:
    if any(not 0 <= size <= MAX_SIZE for size in tensor.dims):
        raise ModelDataError(f"{where}: {tensor.name!r} has the shape {list(tensor.dims)}; sizes are 0 to 2**40")
    if elements(tensor) > SMALL:
        for field in _DATA:
            tensor.ClearField(field)
        tensor.data_location = 1  # external: the checks of onnx do not look for it, and nobody else does


def _inlined(onnx: Any, model: Any, where: str) -> Any:
    """Return the model with calls of its own functions replaced by their bodies."""
    if not model.functions:
        return model
    _refuse_recursion(model, where)
    inlined = native.run(onnx, "inline", model, where)
    for _ in _graphs(inlined, where):
        pass  # counts the nodes again
    return inlined


def _refuse_recursion(model: Any, where: str) -> None:
    """Refuse functions that call themselves or double at each level: inlining would end never or too late."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(key: tuple[str, str], trail: tuple[tuple[str, str], ...]) -> int:
        if key in trail or len(trail) > MAX_DEPTH:
            raise ModelDataError(f"{where}: function {key[1]!r} calls itself")
        if key not in sizes:
            calls = [(node.domain, node.op_type) for node in bodies[key].node]
            sizes[key] = sum(size(call, (*trail, key)) if call in bodies else 1 for call in calls)
        return sizes[key]

    calls = [(node.domain, node.op_type) for node in model.graph.node]
    if sum(size(call, ()) for call in calls if call in bodies) > MAX_NODES:
        raise ModelDataError(f"{where}: more than {MAX_NODES} nodes once its functions are inlined")


def clean(name: str | bytes) -> str:
    """Return a name as a dotted path: ``/m/layer.0/MatMul`` is ``m.layer.0.MatMul``; bytes are no text."""
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return re.sub(r"\.{2,}", ".", re.sub(r"[^\w.\-]+", ".", name)).strip(".")[:200]


def attribute_value(onnx: Any, attribute: Any) -> Any:
    """Return an attribute as a number, text, list, tensor or graph."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if not isinstance(value, int | float | str) and hasattr(value, "__len__") else value
