"""Three ways to capture a program: run it on fake tensors, trace it symbolically first, or export it first.

In the end all three run under the same recorder, so one table of rules serves them all.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from roofline.frontends.torch.arguments import Request
from roofline.frontends.torch.autocast import available, refused
from roofline.frontends.torch.custom import redirected_aten
from roofline.frontends.torch.fakes import Fakes, guards, replaced
from roofline.frontends.torch.program import Program
from roofline.frontends.torch.record import Recorder
from roofline.ir.errors import ModelDataError, RooflineError, UsageError

#: What fake tensors raise where the way depends on values.
_BY_VALUE = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def dispatch(request: Request, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Run on fake tensors; on the given ones where the way depends on their values."""
    try:
        program = _on_fakes(request, tensors, request.run, "dispatch")
    except _BY_VALUE as error:
        return _by_its_values(request, tensors, error)
    named = {symbol for axes in request.axes.values() for symbol in axes.values()}
    unbound = program.symbols - named
    if not unbound:
        return program
    if not named and not any(tensor.is_meta for _, tensor in [*_owned(request.run), *tensors]):
        return _by_its_values(request, tensors, f"size {min(unbound)}")
    return replace(program, notes=(*program.notes, f"sizes that depend on values: {', '.join(sorted(unbound))}"))


def traced(request: Request, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Trace symbolically with ``torch.fx``, then run what came out on fake tensors."""
    try:
        request, fixed = _in_order(request)
        with refused():
            module = torch.fx.symbolic_trace(request.run, concrete_args=fixed or None)
    except Exception as error:
        raise ModelDataError(f"{request.name}: torch.fx cannot trace it: {one_line(error)}; "
                             "method='dispatch' takes any program") from None  # fmt: skip
    return _on_fakes(request, tensors, module, "fx")


def _in_order(request: Request) -> tuple[Request, dict[str, Any]]:
    """Return all arguments by place, as a traced module takes them, and those without tensors: they decide the way."""
    signature = inspect.signature(request.run.forward if request.is_module else request.run)
    bound = signature.bind(*request.args, **request.kwargs)
    bound.apply_defaults()
    various = {each.kind for each in signature.parameters.values()} & {
        inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD,
    }  # fmt: skip
    if various:
        return request, {}
    fixed = {
        name: value
        for name, value in bound.arguments.items()
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    }
    return replace(request, args=tuple(bound.arguments.values()), kwargs={}), fixed


def exported(request: Request, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Export with ``torch.export``, then run the exported program on its own fake tensors."""
    module = request.run if request.is_module else _wrapped(request.run)
    dims = _export_dims(request, tensors)
    args, kwargs = _on_device_of(request)
    try:
        with _quiet(), _silent(), available(), torch.no_grad() if not request.backward else nullcontext():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dims)
    except Exception as error:
        raise ModelDataError(f"{request.name}: torch.export cannot take it: {one_line(error)}; "
                             "method='dispatch' takes any program") from None  # fmt: skip
    if request.backward:
        return _on_fakes(request, tensors, program.module(), "export")
    return _interpret(request, program, tensors)


def _wrapped(function: Callable[..., Any]) -> Any:
    class Program(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Program()


def _on_device_of(request: Request) -> tuple[Any, Any]:
    """Return arguments on the meta device where the module is: exporting runs it on tensors of its own device."""
    on_meta = any(tensor.is_meta for _, tensor in _owned(request.run))
    arguments = (request.args, dict(request.kwargs))
    moved = pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, arguments)
    return moved if on_meta else arguments


def _export_dims(request: Request, tensors: Sequence[tuple[str, Any]]) -> Any:
    """Return dynamic axes as ``torch.export`` takes them: the arguments' own structure with axes for tensors."""
    if not any(request.axes.values()):
        return None
    axes = {id(tensor): request.axes.get(name, {}) for name, tensor in tensors}

    def dims(leaf: Any) -> Any:
        return dict.fromkeys(axes.get(id(leaf), {}), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None

    if not request.is_module:
        return {
            "args": tuple(pytree.tree_map(dims, each) for each in request.args),
            **({"kwargs": pytree.tree_map(dims, dict(request.kwargs))} if request.kwargs else {}),
        }
    bound = inspect.signature(request.run.forward).bind(*request.args, **request.kwargs).arguments
    return {name: pytree.tree_map(dims, value) for name, value in bound.items()}


def _on_fakes(request: Request, tensors: Sequence[tuple[str, Any]], run: Any, method: str) -> Program:
    fakes = Fakes(request, tensors)
    axes = {id(tensor): request.axes.get(name, {}) for name, tensor in tensors}

    def stand_in(leaf: Any) -> Any:
        return fakes.of(leaf, axes.get(id(leaf))) if isinstance(leaf, torch.Tensor) else leaf

    recorder = Recorder(fakes.names, _paths(run))
    owned = _owned(run)
    for name, tensor in owned:
        fakes.of(tensor)
        recorder.source(fakes.of(tensor), name, "weight" if isinstance(tensor, torch.nn.Parameter) else "buffer")
    args, kwargs = pytree.tree_map(stand_in, (request.args, dict(request.kwargs)))
    for name, tensor in tensors:
        recorder.source(stand_in(tensor), name, "input")
    with _quiet(), fakes.mode:
        outputs = _run(request, run, {name: fakes.of(t) for name, t in owned}, args, kwargs, recorder)
    program = _finish(request, recorder, outputs, method, guards(fakes.shapes, fakes.names))
    return program.fixed(replaced(fakes.shapes, fakes.names))


def on_data(request: Request, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Run on the given tensors: what eager PyTorch really does with them."""
    owned = _owned(request.run)
    without = [name for name, tensor in [*owned, *tensors] if tensor.is_meta]
    if without:
        raise ModelDataError(f"{request.name}: {without[0]} is on the meta device; give tensors with values")
    recorder = Recorder({}, _paths(request.run), data=True)
    for name, tensor in owned:
        recorder.source(tensor, name, "weight" if isinstance(tensor, torch.nn.Parameter) else "buffer")
    for name, tensor in tensors:
        recorder.source(tensor, name, "input")
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with _quiet(), torch.random.fork_rng(devices=devices):
        outputs = _run(request, request.run, None, request.args, dict(request.kwargs), recorder)
    return _finish(request, recorder, outputs, "run", ())


def recorded(request: Request, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Run on the given tensors where the user asks for it."""
    if any(request.axes.values()):
        raise UsageError(f"{request.name}: method='run' has the sizes of the given tensors; leave out dynamic")
    return on_data(request, tensors)


def _by_its_values(request: Request, tensors: Sequence[tuple[str, Any]], why: Exception | str) -> Program:
    """Run on the given tensors where values decide which way the program goes."""
    try:
        program = on_data(request, tensors)
    except ModelDataError as error:
        reason = why if isinstance(why, str) else one_line(why)
        raise ModelDataError(f"{error}; the path taken depends on them ({reason})") from None
    note = "the path taken depends on values; this is the one for the given arguments, at their sizes"
    return replace(program, notes=(*program.notes, note))


def _run(
    request: Request, run: Any, state: Mapping[str, Any] | None, args: Any, kwargs: Any, recorder: Recorder
) -> list[Any]:
    """Run under the recorder; returns the tensors that the program keeps."""
    module = isinstance(run, torch.nn.Module)
    leaves = [t for t in (state or dict(_owned(run))).values() if t.requires_grad]
    try:
        with recorder.recording(), torch.set_grad_enabled(request.gradients):
            if module and state is not None:
                result = torch.func.functional_call(run, dict(state), args, kwargs)
            else:
                result = run(*args, **kwargs)
            outputs = [tensor for leaf in pytree.tree_leaves(result) for tensor in _inside(leaf)]
            if request.backward:
                outputs = [
                    *outputs,
                    *_gradients(request, recorder, outputs, [*leaves, *pytree.tree_leaves((args, kwargs))]),
                ]
    except Exception as error:
        if isinstance(error, (RooflineError, *_BY_VALUE)):
            raise
        raise ModelDataError(f"{request.name}: the program fails on the given arguments: {one_line(error)}") from error
    return outputs


#: How deep objects are searched for tensors, such as a model's cache of keys and values.
_DEPTH = 5


def _inside(thing: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the tensors that a result holds, in objects that PyTorch does not take apart too."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif depth and not isinstance(thing, torch.nn.Module | type):
        parts = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, list | tuple) else ()
        for part in (*parts, *getattr(thing, "__dict__", {}).values()):
            yield from _inside(part, depth - 1)


def _gradients(request: Request, recorder: Recorder, outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Return gradients of all that asks for them, from gradients of the outputs."""
    learnt = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    ends = [out for out in outputs if out.requires_grad]
    if not learnt or not ends:
        raise UsageError(f"{request.name}: backward=True, but nothing that it computes depends on a parameter or "
                         "argument that requires a gradient")  # fmt: skip
    with recorder.paused():
        incoming = [torch.empty_like(out, memory_format=torch.contiguous_format).detach() for out in ends]
    for at, gradient in enumerate(incoming):
        recorder.source(gradient, f"grad_output.{at}", "input")
    gradients = torch.autograd.grad(ends, learnt, incoming, allow_unused=True)
    for leaf, gradient in zip(learnt, gradients, strict=True):
        recorder.steps.note(leaf, gradient)
    return [gradient for gradient in gradients if gradient is not None]


def _finish(
    request: Request, recorder: Recorder, outputs: Sequence[Any], method: str, guards: tuple[str, ...]
) -> Program:
    values = tuple(dict.fromkeys(recorder.value(out) for out in outputs))
    return Program(
        request.name, method, tuple(recorder.sources), tuple(recorder.calls), values, guards, tuple(recorder.notes),
        recorder.steps.result, recorder.freed, recorder.operators, recorder.views,
    )  # fmt: skip


# --- an exported program ----------------------------------------------------------------------------------------------


def _interpret(request: Request, program: Any, tensors: Sequence[tuple[str, Any]]) -> Program:
    """Run an exported program node by node, under the paths of the modules that it was exported from."""
    graph = program.graph_module
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    inputs = [node.meta.get("val") for node in places]
    mode = next((val.fake_mode for val in inputs if isinstance(val, FakeTensor)), None)
    if mode is None:
        raise ModelDataError(f"{request.name}: the exported program has no tensors")
    recorder = Recorder(_export_names(request, program, places, tensors), {})
    _announce(recorder, program.graph_signature.input_specs, inputs, dict(_owned(request.run)))
    with _quiet(), mode, torch.no_grad(), recorder.recording():
        result = _Interpreter(graph, recorder).run(*inputs)
    outputs = [tensor for leaf in torch.utils._pytree.tree_leaves(result) for tensor in _inside(leaf)]
    conditions = guards(mode.shape_env, recorder.names) if mode.shape_env is not None else ()
    ranges = _ranges(program, recorder.names)
    finished = _finish(request, recorder, outputs, "export", tuple(dict.fromkeys([*ranges, *conditions])))
    return finished.fixed(replaced(mode.shape_env, recorder.names) if mode.shape_env is not None else {})


def _announce(recorder: Recorder, specs: Sequence[Any], inputs: Sequence[Any], owned: Mapping[str, Any]) -> None:
    """Name the inputs of an exported program; it has a weight that modules share once for each of them."""
    kinds = {"PARAMETER": "weight", "BUFFER": "buffer", "CONSTANT_TENSOR": "buffer"}
    shared: dict[int, Any] = {}
    for spec, value in zip(specs, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        original = owned.get(str(spec.target))
        if original is not None and id(original) in shared:
            recorder.remember(value, shared[id(original)])
            continue
        kind: Any = kinds.get(spec.kind.name, "input")
        source = recorder.source(value, str(spec.target or spec.arg.name), kind)
        if original is not None:
            shared[id(original)] = source


def _ranges(program: Any, names: Mapping[str, str]) -> list[str]:
    """Return the upper limits that the program sets to its symbols."""
    return [
        f"{names[str(symbol)]} <= {limits.upper}"
        for symbol, limits in program.range_constraints.items()
        if limits.upper.is_Integer and str(symbol) in names
    ]


def _export_names(
    request: Request, program: Any, places: Sequence[Any], tensors: Sequence[tuple[str, Any]]
) -> dict[str, str]:
    """Return the user's symbols behind those of the exported program."""
    users = [node for node, spec in zip(places, program.graph_signature.input_specs, strict=True)
             if spec.kind.name == "USER_INPUT" and hasattr(node.meta.get("val"), "shape")]  # fmt: skip
    names: dict[str, str] = {}
    for node, (name, _) in zip(users, tensors, strict=False):
        for axis, symbol in request.axes.get(name, {}).items():
            size = node.meta["val"].shape[axis]
            if hasattr(size, "node"):
                names[str(size.node.expr)] = symbol
    return names


class _Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
    def __init__(self, graph: Any, recorder: Recorder) -> None:
        super().__init__(graph)
        self.recorder = recorder

    def run_node(self, node: Any) -> Any:
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        with self.recorder.scope(path):
            return super().run_node(node)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(redirected_aten().get(target, target), args, kwargs)


# --- odds and ends ----------------------------------------------------------------------------------------------------


def _paths(run: Any) -> dict[int, str]:
    return {id(m): name for name, m in run.named_modules()} if isinstance(run, torch.nn.Module) else {}


def _owned(run: Any) -> list[tuple[str, Any]]:
    """Return parameters and buffers by path, shared ones under each of their names."""
    if not isinstance(run, torch.nn.Module):
        return []
    return [*run.named_parameters(remove_duplicate=False), *run.named_buffers(remove_duplicate=False)]


def one_line(error: BaseException) -> str:
    """Return an error of PyTorch by its kind and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:300]}"


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what is printed: the exporter prints the whole program where it fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's own warnings and logs while it traces; what matters comes as an error."""
    loggers = [each for name, each in logging.root.manager.loggerDict.items()
               if name.partition(".")[0] == "torch" and isinstance(each, logging.Logger)]  # fmt: skip
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, was in zip(loggers, before, strict=True):
            each.disabled = was


#: Each method and its function.
METHODS: dict[str, Callable[[Request, Sequence[tuple[str, Any]]], Program]] = {
    "export": exported,
    "fx": traced,
    "dispatch": dispatch,
    "run": recorded,
}
