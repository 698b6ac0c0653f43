"""The recorder: what aten operators a running PyTorch program calls, on which values.

It works on fake tensors, which have shapes and no data, and on real ones. A tensor is known by its place: the memory
that it lies in and how, since PyTorch makes several objects for one array. Memory has a serial number from where it is
first seen to where PyTorch frees it: the recorder refers to no tensor that the program computes, so that each is freed
when it would be without a capture, and notes after which call that was.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from roofline.frontends.torch.autocast import as_named
from roofline.frontends.torch.custom import redirected
from roofline.frontends.torch.fastpath import LAYERS, fast_path
from roofline.frontends.torch.layout import layout_of
from roofline.frontends.torch.program import AtenCall, Untranslated, Value, Write, to_size
from roofline.frontends.torch.rules import RULES
from roofline.frontends.torch.rules.pointwise import ROOM
from roofline.frontends.torch.saved import Saved, storage_of
from roofline.frontends.torch.untraced import as_run
from roofline.frontends.torch.updates import Steps, one_by_one
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError
from roofline.ir.graph import Kind
from roofline.ir.sizes import Size

#: Calls that ask about a tensor or only hand it on.
_SILENT = frozenset({
    "device", "layout", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "dim", "numel",
    "is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format", "_local_scalar_dense", "item",
    "is_same_size", "_assert_async", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size",
    "_assert_tensor_metadata", "result_type", "record_stream", "set_", "resize_", "_nested_tensor_size",
})  # fmt: skip

#: Calls whose result is their input.
_SAME = frozenset({"detach", "detach_", "alias", "lift_fresh", "lift", "lift_fresh_copy", "_to_functional_tensor",
                   "contiguous", "requires_grad_", "set_data"})  # fmt: skip

#: PyTorch's formats that are not called as roofline calls them.
_FORMATS = {"uint16": "int16", "uint32": "int32", "uint64": "int64", "complex64": "fp64", "complex128": "fp64",
            "float8_e8m0fnu": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8",
            "float4_e2m1fn_x2": "fp8",
            "quint8": "int8", "qint8": "int8", "qint32": "int32", "quint4x2": "int4"}  # fmt: skip

#: Calls that a capture holds at most; a loop that goes on for longer is told so.
MAX_CALLS = 500_000


def format_name(dtype: Any) -> str:
    """Return roofline's name of a ``torch.dtype``."""
    name = str(dtype).removeprefix("torch.")
    return number_format(_FORMATS.get(name, name)).name


class Recorder:
    """Collects calls while the program runs inside :meth:`recording`.

    Args:
        names: roofline's names of PyTorch's symbols.
        modules: Paths of modules by their identity.
        data: Whether the tensors have data, on the devices where they really are.
    """

    def __init__(self, names: Mapping[str, str], modules: Mapping[int, str], data: bool = False) -> None:
        self.names = dict(names)
        self.modules = modules
        self.data = data
        self.known = RULES.keys() | _SILENT | _SAME
        self.sources: list[Value] = []
        self.calls: list[AtenCall] = []
        #: What the host is asked for: calls of operators, and of those that run no kernel.
        self.operators = self.views = 0
        self.notes: dict[str, None] = {}
        self._by_place: dict[Any, Value] = {}
        self.freed: dict[int, int] = {}
        self._serial = 0
        self._memories: dict[int, int] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._bases: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._sources: list[Any] = []
        self._restored = Saved()
        self._own: set[int] = set()
        self._scopes: list[str] = []
        self._scope_of: dict[int, str] = {}
        self._count = 0
        self._paused = False
        self._inner = 0
        self._kernel = ""
        self.steps = Steps(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing that runs inside."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    # --- values ---

    def source(self, tensor: Any, name: str, kind: Kind) -> Value:
        """Make a tensor known that the program did not compute."""
        known = self._by_place.get(self._place(tensor))
        if known is None:
            known = self.remember(tensor, self._value(tensor, name, kind))
            self.sources.append(known)
            self._own.add(known.memory)
            self._sources.append(tensor)
            if kind == "weight":
                self.steps.follow(tensor, known)
        return known

    def value(self, tensor: Any) -> Value:
        """Return the value of a tensor; one that nobody announced is a constant of the program."""
        known = self._by_place.get(self._place(tensor))
        if known is not None:
            return known
        self._restored.gradient(tensor)
        is_weight = isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)
        return self.source(tensor, f"constant_{len(self.sources)}", "weight" if is_weight else "buffer")

    def before_writes(self, func: Any, named: Mapping[str, Any]) -> None:
        """Keep what a call is about to write to, where the program did not compute it."""
        for argument in func._schema.arguments:
            value = named.get(argument.name) if _is_written(argument) else None
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor) and self._memory(tensor) in self._own:
                    self._restored.content(tensor)

    def save(self, tensor: Any) -> None:
        """Keep what a tensor holds, to be put back after the capture."""
        self._restored.content(tensor)

    def _value(self, tensor: Any, name: str, kind: Kind) -> Value:
        self._count += 1
        shape = tuple(self.size(size) for size in tensor.shape)
        dtype, memory = format_name(tensor.dtype), self._memory(tensor)
        return Value(self._count, name, shape, dtype, kind, layout_of(tensor), memory)

    def remember(self, tensor: Any, value: Value) -> Value:
        """Know a tensor from now on."""
        place = self._place(tensor)
        self._by_place[place] = value
        self._bases.setdefault(place[0], (weakref.ref(tensor), place))
        return value

    def _memory(self, tensor: Any, base: Value | None = None) -> int:
        """Return the serial number of the memory that a tensor lies in; where it is new, that of its base if any."""
        storage = storage_of(tensor)
        owner, key = (tensor, id(tensor)) if storage is None else (storage, storage._cdata)
        if key not in self._memories:
            self._serial += base is None
            serial = self._memories[key] = self._serial if base is None else base.memory
            self._watched[key] = weakref.ref(owner, lambda _: self._free(key, serial))
        return self._memories[key]

    def _free(self, key: int, serial: int) -> None:
        """Note that memory is freed before the next call; another tensor may be given the same."""
        self.freed[serial] = len(self.calls)
        del self._memories[key], self._watched[key]

    def _place(self, tensor: Any) -> Any:
        """Return where a tensor lies and how: equal for two objects that are the same array."""
        shape, stride = (tuple(str(size) for size in sizes) for sizes in (tensor.shape, tensor.stride()))
        return (self._memory(tensor), str(tensor.storage_offset()), shape, stride, tensor.dtype)

    def size(self, size: Any) -> Size:
        """Return a size by roofline's symbols; the number at hand, with a note, where those cannot hold it."""
        node = getattr(size, "node", None)
        if node is None:
            return int(size)
        expression = node.shape_env.simplify(node.expr) if node.shape_env is not None else node.expr
        try:
            return to_size(expression, self.names)
        except Untranslated as error:
            if not node.has_hint():
                raise UsageError(f"a size depends on values: {node.expr} ({error})") from None
            self.notes[f"size {node.expr} has no symbolic form ({error}); its value at the given sizes is used"] = None
            return int(node.hint)

    # --- scopes ---

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Record calls under another module's path."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def _where(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None:
            forward = self._scope_of.get(node._sequence_nr(), "")
            return f"backward.{forward}" if forward else "backward"
        scope = self._scopes[-1] if self._scopes else ""
        self._scope_of[torch.autograd._get_sequence_nr()] = scope
        self._scope_of.setdefault(torch.autograd._get_sequence_nr() - 1, scope)
        return scope

    # --- calls ---

    def parts(self, func: Any) -> Any:
        """Return PyTorch's own way to say an operator that has no rule in others, if there is one."""
        name = func._schema.name.rpartition("::")[2]
        if (single := one_by_one(func)) is not None:
            return partial(self._as_one, f"{name.strip('_')}_{len(self.calls)}", single)
        if name in self.known or name.removesuffix("_") in self.known:
            return None
        return decomposition_table.get(func) or (func.decompose if func._can_decompose() else None)

    def count(self, func: Any, whole: bool) -> None:
        """Count a call that the program made; ``whole`` where it is taken apart, which PyTorch does not."""
        if self._inner:
            return
        name = func._schema.name.rpartition("::")[2]
        looks = (
            name in _SAME
            or name in ROOM
            or any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns)
        )
        if not whole and looks:
            self.views += 1
        elif name not in _SILENT:
            self.operators += 1

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the parts of a call, which are no calls of the program."""
        self._inner += 1
        try:
            yield
        finally:
            self._inner -= 1

    def _as_one(self, kernel: str, run: Any, *args: Any, **kwargs: Any) -> Any:
        """Run what is taken apart, as the one kernel that it is."""
        outer, self._kernel = self._kernel, self._kernel or kernel
        try:
            return run(*args, **kwargs)
        finally:
            self._kernel = outer

    def note_call(self, func: Any, named: Mapping[str, Any], was: Mapping[str, Any], result: Any) -> None:
        """Record one call that has run; ``was`` are the values of its arguments before it did."""
        schema = func._schema
        name = schema.name.rpartition("::")[2]
        outs = list(result) if isinstance(result, tuple | list) else [result]
        if name in _SILENT:
            return
        if name in _SAME and isinstance(result, torch.Tensor):
            self.remember(result, was["self"])
            return
        if len(self.calls) >= MAX_CALLS:
            raise UsageError(f"the program runs more than {MAX_CALLS} operators; give it a smaller loop")
        writes = dict(self._writes(schema, named, was))
        after = {tensor: write.after for tensor, write in writes.items()}
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        base = next((each for each in was.values() if isinstance(each, Value)), None) if views else None
        values = tuple(self._out(out, after, base) for out in outs)
        target = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        self.calls.append(AtenCall(target, was, values, self._where(), tuple(writes.values()), self._kernel))

    def _out(self, out: Any, after: Mapping[int, Value], base: Value | None) -> Value | None:
        if not isinstance(out, torch.Tensor):
            return None
        # What PyTorch makes of a tensor with data, to run without, has other memory, and so have views of that.
        self._memory(out, base if base is not None and base.memory in self._own else None)
        if id(out) in after:
            return after[id(out)]
        return self.remember(out, self._value(out, "", "activation"))

    def _writes(self, schema: Any, named: Mapping[str, Any], was: Mapping[str, Any]) -> Iterator[tuple[int, Write]]:
        for argument in (each for each in schema.arguments if _is_written(each) and each.name in was):
            tensors, before = named.get(argument.name), was[argument.name]
            pairs = zip(tensors, before, strict=True) if isinstance(tensors, list | tuple) else [(tensors, before)]
            for tensor, old in pairs:
                if isinstance(tensor, torch.Tensor):
                    yield id(tensor), self._write(tensor, old)

    def _write(self, tensor: Any, before: Value) -> Write:
        after = self.remember(tensor, self._value(tensor, before.name, "activation"))
        whole, place = self._bases[after.memory]
        if whole() is tensor or place == self._place(tensor):  # a call such as as_strided_ moves a tensor's place
            return Write(before, after)
        self._count += 1
        old = self._by_place[place]
        new = self._by_place[place] = replace(old, number=self._count, kind="activation")
        return Write(before, after, (old, new))

    def plain(self, value: Any) -> Any:
        """Return an argument with values for tensors and roofline's sizes for PyTorch's."""
        if isinstance(value, torch.Tensor):
            return self.value(value)
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, list | tuple):
            return tuple(self.plain(each) for each in value)
        return value

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record everything that runs inside."""

        def enter(module: Any, args: Any) -> None:
            outer = self._scopes[-1] if self._scopes else ""
            self._scopes.append(self.modules.get(id(module), outer))

        def leave(module: Any, args: Any, output: Any) -> None:
            self._scopes.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            with (
                as_named(self.notes),
                as_run(self.notes),
                fast_path(),
                self.steps.watched(),
                _Functions(),
                _Calls(self),
            ):
                yield
        finally:
            self._restored.restore()
            for handle in handles:
                handle.remove()


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    parameters = func._schema.arguments
    named = {each.name: each.default_value for each in parameters if each.has_default_value()}
    return {**named, **{each.name: value for each, value in zip(parameters, args, strict=False)}, **kwargs}


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Redirects the functions that are kept whole."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (LAYERS.get(func) or redirected().get(func, func))(*args, **(kwargs or {}))


class _Calls(TorchDispatchMode):  # type: ignore[misc]
    """Tells the recorder of every call."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.recorder._paused:
            return func(*args, **kwargs)
        recorder = self.recorder
        parts = recorder.parts(func)
        recorder.count(func, parts is not None)
        if parts is not None:
            with self, recorder.inside():
                return parts(*args, **kwargs)
        named = _named(func, args, kwargs)
        was = {key: recorder.plain(value) for key, value in named.items()}
        recorder.before_writes(func, named)
        result = func(*args, **kwargs)
        recorder.note_call(func, named, was, result)
        return result
