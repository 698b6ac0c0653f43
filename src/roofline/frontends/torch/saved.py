"""What a capture leaves as it was: gradients, and every tensor that the program holds on to and writes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

#: How deep what a function refers to is searched, such as a module in a list in an object.
_DEPTH = 3


class Saved:
    """Gradients and contents as they are before the program runs.

    Args:
        run: The program: the gradients and buffers of what it refers to are kept from the beginning, since they may
            change without a call that says so (``zero_grad``, the statistics of a batch norm).
    """

    def __init__(self, run: Any = None) -> None:
        self._gradients: dict[int, tuple[Any, Any]] = {}
        self._contents: dict[int, tuple[Any, Any]] = {}
        for module in modules(run):
            for parameter in module.parameters():
                if not isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin):
                    self.gradient(parameter)
            for part in module.modules():
                for own in (*part._buffers.values(), *vars(part).values()):
                    if isinstance(own, torch.Tensor):
                        self.content(own)

    def gradient(self, tensor: Any) -> None:
        """Keep a tensor's gradient, as it is when the tensor is first seen."""
        if tensor.is_leaf and id(tensor) not in self._gradients:
            self._gradients[id(tensor)] = tensor, tensor.grad

    def content(self, tensor: Any) -> None:
        """Keep the whole array that a tensor lies in; one without data has none."""
        if isinstance(tensor, FakeTensor) or tensor.is_meta:
            return
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in self._contents:
            with _disable_current_modes():
                self._contents[storage._cdata] = storage, storage.clone()

    def restore(self) -> None:
        """Put everything back."""
        with _disable_current_modes():
            for storage, content in self._contents.values():
                if storage.nbytes() == content.nbytes():
                    storage.copy_(content)
        for tensor, gradient in self._gradients.values():
            if tensor.grad is not gradient:
                tensor.grad = gradient


def storage_of(tensor: Any) -> Any:
    """Return the memory that a tensor lies in; ``None`` for one without any of its own, such as a sparse one."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, ValueError):  # by its layout PyTorch raises the one or the other
        return None


def modules(thing: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the modules that a program is or refers to: in its closure, its own object, lists and attributes."""
    if isinstance(thing, torch.nn.Module):
        yield thing
    elif depth and not isinstance(thing, torch.Tensor | type | ModuleType):
        for part in _parts(thing):
            yield from modules(part, depth - 1)


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, list | tuple):
        yield from thing
    for cell in getattr(thing, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    code = getattr(thing, "__code__", None)
    if code is not None:
        yield from (thing.__globals__[name] for name in code.co_names if name in thing.__globals__)
    yield from (getattr(thing, name) for name in ("__self__", "__wrapped__", "func") if hasattr(thing, name))
    yield from getattr(thing, "__dict__", {}).values() if code is None else ()
