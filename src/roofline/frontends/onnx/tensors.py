"""What a file says of its tensors: those that it holds, the shapes of inputs, and shapes that no rule can work out."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from roofline.frontends.call import MALFORMED, one_line
from roofline.frontends.onnx import native
from roofline.frontends.onnx.known import Value, array
from roofline.frontends.onnx.names import Names
from roofline.frontends.onnx.read import ELEMENTS, MAX_SIZE, SMALL, clean, elements, library
from roofline.ir.errors import ModelDataError, RooflineError
from roofline.ir.expressions import parse
from roofline.ir.sizes import Size

#: Integers of two axes or more in these formats are quantised weights, not indices.
_QUANTISED = frozenset({"int8", "int4", "fp8", "fp4"})
_STATE = re.compile(r"past|cache", re.IGNORECASE)
#: Weights of at most so many elements keep them: scales of a resize, limits of a clip.
_FEW = 16


class Tensors:
    """The tensors of a file.

    Args:
        model: The parsed model.
        names: How names of sizes are read.
        where: What to call the file in errors.
    """

    def __init__(self, model: Any, names: Names, where: str) -> None:
        self.onnx = library()
        self.model = model
        self.names = names
        self.where = where

    def stored(self, tensor: Any, name: str, from_node: bool = False) -> Value:
        """Return a tensor that the file holds: a weight, a buffer, or a small constant whose elements are known.

        Raises:
            ModelDataError: Its elements are no numbers.
        """
        if tensor.data_type not in ELEMENTS:
            raise ModelDataError(f"{self.where}: {name!r} holds elements of type {tensor.data_type}, no number format")
        if any(not 0 <= size <= MAX_SIZE for size in tensor.dims):
            raise ModelDataError(f"{self.where}: {name!r} has the shape {list(tensor.dims)}; sizes are 0 to 2**40")
        dtype, shape, count = ELEMENTS[tensor.data_type], tuple(int(size) for size in tensor.dims), elements(tensor)
        if dtype in _QUANTISED:
            weight = len(shape) > 1 and count > 1
        else:
            weight = dtype[0] in "fb" and dtype != "bool" and count > 1 and len(shape) > (1 if from_node else 0)
        value = Value(name, shape, dtype, const=True, kind="weight" if weight else "buffer")
        if count <= (_FEW if weight else SMALL):
            value.data = self._elements(tensor, dtype, shape)
        return value

    def sparse(self, sparse: Any, name: str, from_node: bool = False) -> Value:
        """Return a sparse tensor that the file holds, as a dense one without its elements."""
        value = self.stored(sparse.values, name, from_node)
        value.shape, value.data = tuple(int(size) for size in sparse.dims), None
        return value

    def _elements(self, tensor: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        if tensor.data_location == 1:
            return None
        try:
            values = self.onnx.numpy_helper.to_array(tensor).reshape(-1)
            plain = float if dtype[0] in "f" or dtype == "bf16" else bool if dtype == "bool" else int
            return array([plain(element) for element in values], shape)
        except (*MALFORMED, self.onnx.checker.ValidationError) as error:
            raise ModelDataError(f"{self.where}: {tensor.name!r}: {one_line(error)}") from None

    def input(self, info: Any) -> Value:
        """Return what the caller hands in.

        Raises:
            ModelDataError: It has no shape, or no format that is known.
        """
        where = f"{self.where}: input {info.name!r}"
        if not info.type.HasField("tensor_type"):
            raise ModelDataError(f"{where} is no tensor but a sequence, a map or an optional")
        form = info.type.tensor_type
        if form.elem_type not in ELEMENTS:
            raise ModelDataError(f"{where} holds elements of type {form.elem_type}, which is no number format")
        if not form.HasField("shape"):
            raise ModelDataError(f"{where} has no shape; export the model with the shapes of its inputs")
        shape = tuple(self._input_size(size, f"{info.name}_{at}", where) for at, size in enumerate(form.shape.dim))
        dtype = ELEMENTS[form.elem_type]
        is_state = dtype[0] in "fb" and len(shape) > 2 and _STATE.search(info.name) is not None
        return Value(info.name, shape, dtype, kind="cache" if is_state else "input")

    def _input_size(self, dim: Any, fallback: str, where: str) -> Size:
        if dim.HasField("dim_value"):
            if not 0 < dim.dim_value <= MAX_SIZE:
                raise ModelDataError(f"{where} has a size of {dim.dim_value}; sizes are 1 to 2**40")
            return int(dim.dim_value)
        return self.names.size(dim.dim_param or fallback)

    # --- shapes that no rule can work out ---

    @cached_property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Return shapes by name, from the file and from onnx; inferred when a rule first asks."""
        model = self.model
        with suppress(ModelDataError):  # the file's own shapes remain
            model = native.run(self.onnx, "infer", model, self.where)
        infos = [*model.graph.input, *model.graph.value_info, *model.graph.output]
        forms = {info.name: info.type.tensor_type for info in infos}
        return {name: tuple(dim.dim_value or dim.dim_param or 0 for dim in form.shape.dim)
                for name, form in forms.items() if form.HasField("shape")}  # fmt: skip

    def alike(self, a: str, b: str) -> bool:
        """Tell whether the file gives two tensors the same shape, size by size."""
        shape = self.shapes.get(a, ())
        return bool(shape) and 0 not in shape and self.shapes.get(b) == shape

    def declared(self, name: str, notes: MutableMapping[str, None]) -> tuple[Size, ...] | None:
        """Return the shape that the file or the shape inference of onnx gives a tensor, if either knows it."""
        if name not in self.shapes:
            return None
        return tuple(self._declared_size(size, name, at, notes) for at, size in enumerate(self.shapes[name]))

    def _declared_size(self, size: Any, name: str, at: int, notes: MutableMapping[str, None]) -> Size:
        if isinstance(size, int) and size > 0:
            return size
        if isinstance(size, str) and size and not size.startswith("unk__"):
            if size in self.names.known:
                return self.names.known[size]
            with suppress(RooflineError):
                return parse(size, self.names.known)
        free = self.names.free(clean(name).replace(".", "_") + f"_{at}")
        notes[f"size {free} depends on values known only at run time; give it like any other size"] = None
        return free


def readers(graph: Any) -> dict[str, list[str]]:
    """Return the operators that read each tensor; empty text for the caller and for graphs inside nodes."""
    operators: dict[str, list[str]] = {info.name: [""] for info in graph.output}
    for node in graph.node:
        for name in node.input:
            operators.setdefault(name, []).append(node.op_type)
        for name in _read_inside(node):
            operators.setdefault(name, []).append("")
    return operators


def _read_inside(node: Any) -> Iterator[str]:
    """Yield the names that graphs inside a node read."""
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            yield from (info.name for info in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from _read_inside(inner)
