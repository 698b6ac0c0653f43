"""Stand-ins without data for the tensors of a program, with symbols for its dynamic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from roofline.frontends.torch.arguments import Request
from roofline.frontends.torch.program import to_size
from roofline.frontends.torch.saved import modules
from roofline.ir.errors import UsageError

#: Smallest size that a symbolic axis stands in for while it is traced: 1 would broadcast and be taken for a constant.
_LEAST = 2


class Fakes:
    """Stand-ins without data for the tensors of a program, with symbols for the dynamic axes."""

    def __init__(self, request: Request, tensors: Sequence[tuple[str, Any]]) -> None:
        self.shapes = ShapeEnv(allow_dynamic_output_shape_ops=True)
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)
        self.names: dict[str, str] = {}
        own = () if request.is_module else (p for module in modules(request.run) for p in module.parameters())
        self.device = "meta" if any(parameter.is_meta for parameter in own) else "cpu"
        self.symbols = self._make_symbols(request, tensors)
        self._made: dict[int, Any] = {}
        self._alive: list[Any] = []

    def _make_symbols(self, request: Request, tensors: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        hints: dict[str, int] = {}
        for name, tensor in tensors:
            for axis, symbol in request.axes.get(name, {}).items():
                size = int(tensor.shape[axis])
                if hints.setdefault(symbol, size) != size:
                    raise UsageError(
                        f"{request.name}: {symbol} is {hints[symbol]} in one argument and {size} in {name}"
                    )
        sizes = {}
        for symbol, hint in _apart(hints).items():
            source = ConstantSource(symbol)
            made = self.shapes.create_symbol(hint, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True)
            sizes[symbol] = self.shapes.create_symintnode(made, hint=hint, source=source)
            self.names[str(made)] = symbol
        return sizes

    def of(self, tensor: Any, axes: Mapping[int, str] | None = None) -> Any:
        """Return the stand-in of a tensor, on one device for all, with its parameters' need of gradients."""
        if id(tensor) in self._made:
            return self._made[id(tensor)]
        shape = [self.symbols[axes[at]] if axes and at in axes else size for at, size in enumerate(tensor.shape)]
        with self.mode, torch.device(self.device):
            order = _memory_order(tensor)
            back = [order.index(at) for at in range(len(order))]
            fake = torch.empty([shape[at] for at in order], dtype=tensor.dtype).permute(back)
        leaf = tensor.is_floating_point() or tensor.is_complex()
        fake = fake.detach().requires_grad_(tensor.requires_grad and leaf)
        self._made[id(tensor)] = fake
        self._alive.append(tensor)
        return fake


def replaced(shapes: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return symbols that the capture found to be a number or another size."""
    return {names[str(a)]: to_size(b, names) for a, b in shapes.replacements.items() if str(a) in names}


#: Sizes at which a guard is tried; one that holds at all of them says nothing.
_TRIED = (2, 3, 7, 8, 64, 1000, 4096, 65536)


def guards(shapes: Any, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return conditions on the symbols, in roofline's names; those that hold for all sizes from 2 are left out."""
    fixed = [f"{names.get(str(a), a)} = {_renamed(str(b), names)}"
             for a, b in shapes.replacements.items() if str(a) in names]  # fmt: skip
    others = [_renamed(str(guard.expr), names) for guard in shapes.guards if not _always(guard.expr)]
    return tuple(dict.fromkeys([*fixed, *others]))


def _always(expression: Any) -> bool:
    free = sorted(expression.free_symbols, key=str)
    points = ({s: size + 3 * at for at, s in enumerate(free)} for size in _TRIED)
    return all(expression.xreplace(point) == True for point in points)  # noqa: E712 - sympy's own truth


def _apart(hints: Mapping[str, int]) -> dict[str, int]:
    """Return sizes that no two symbols share and that are none of the special ones."""
    sizes: dict[str, int] = {}
    for symbol, hint in hints.items():
        size = max(hint, _LEAST)
        while size in sizes.values():
            size += 1
        sizes[symbol] = size
    return sizes


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for theirs, ours in names.items():
        text = text.replace(theirs, ours)
    return text


def _memory_order(tensor: Any) -> list[int]:
    """Return axes from the outermost in memory to the innermost."""
    try:
        stride = [int(step) for step in tensor.stride()]
    except RuntimeError:  # a sparse tensor has none
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda at: (-stride[at], at))
