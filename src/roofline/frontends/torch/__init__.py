"""PyTorch programs to graphs: modules and functions, forwards and backwards, without weights or an accelerator.

capture     run, trace or export the program          arguments, fakes   what it is captured with
record      the calls that it makes                   custom             functions that are kept whole
program     what was captured                         saved              what is put back after it
walk        calls to nodes                            rules/             the rule of each operator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from roofline.frontends.call import UNKNOWN
from roofline.ir.errors import MissingExtra, ModelDataError, RooflineError, ShapeError, UsageError
from roofline.ir.graph import Graph, HostCalls
from roofline.ir.sizes import one_of

Method = Literal["auto", "export", "fx", "dispatch", "run"]
Mode = Literal["eager", "compiled"]


def from_torch(
    program: Any,
    *args: Any,
    dynamic: Mapping[str, Any] | None = None,
    method: Method = "auto",
    mode: Mode = "eager",
    backward: bool = False,
    unknown: Literal["error", "report"] = "error",
    name: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Graph:
    """Capture a PyTorch module or function and translate it.

    Args:
        program: A ``torch.nn.Module`` or a function of tensors; on the CPU or the meta device, no weights needed.
        args: Example arguments; only their shapes and formats matter, unless the program's way depends on values.
        dynamic: Sizes that stay symbolic: ``{"B": 0, "S": 1}`` names axes of every argument that has them,
            ``{"B": {"x": 0, "mask": 0}}`` those of some.
        method: ``dispatch`` runs any program on tensors without data, ``fx`` and ``export`` trace it first with
            ``torch.fx`` or ``torch.export``, ``run`` runs it on the given tensors. ``auto`` takes ``dispatch``, for
            compiled programs ``export``, the other where that fails, then ``run`` if all sizes are fixed.
        mode: ``eager``: a kernel per operator; ``compiled``: kernels grouped as torch.compile's inductor does.
        backward: Compute gradients of all parameters that ask for them, from given gradients of the outputs.
        unknown: What to do with an operator without a rule: ``error``, or ``report`` it in every result.
        name: What to call the graph; the class's or function's name by default.
        kwargs: Example keyword arguments whose names are options of this function.
        options: Other example keyword arguments.

    Returns:
        The graph; ``info`` has the method, the guards on symbolic sizes and notes.

    Raises:
        MissingExtra: PyTorch is not installed.
        UsageError: Arguments or options that do not fit the program.
        ModelDataError: The program fails on the arguments, or cannot be captured by the method asked for.
        UnknownOp: An operator has no rule.

    Example:
        >>> import torch
        >>> import roofline as rl
        >>> layer = torch.nn.Linear(1024, 4096, device="meta")
        >>> graph = rl.from_torch(layer, torch.empty(8, 1024, device="meta"), dynamic={"B": 0})
        >>> graph.parameters, rl.count(graph, B=8).flops == 2 * 8 * 1024 * 4096
        (4198400, True)
    """
    _runnable(program)
    one_of("method", method, get_args(Method))
    one_of("mode", mode, get_args(Mode))
    one_of("unknown", unknown, UNKNOWN)
    _check_tables(kwargs=kwargs, dynamic=dynamic)
    from roofline.frontends.torch.arguments import Request, dynamic_axes, named_tensors

    request = Request(program, args, {**(kwargs or {}), **options}, {}, backward)
    tensors = named_tensors(request)
    request = replace(request, axes=dynamic_axes(dynamic, tensors, request.name))
    graph = _translated(request, tensors, _order(method, mode, bool(dynamic)), unknown)
    return replace(_compiled(graph) if mode == "compiled" else graph, name=name or graph.name)


def _compiled(graph: Graph) -> Graph:
    """Return the program in torch.compile's kernels."""
    from roofline.counting.counts import kernels
    from roofline.passes.fusion.inductor import inductor

    grouped = inductor(graph)
    launched = sum(kernel.count for kernel in kernels(grouped))
    return grouped.with_info(mode="compiled", kernels=launched)


def _check_tables(**options: Any) -> None:
    for what, table in options.items():
        if table is not None and not isinstance(table, Mapping):
            raise UsageError(f"{what}={str(table)[:60]!r}; expected a dictionary by name")


def _runnable(program: Any) -> None:
    """Refuse what PyTorch cannot run, or everything where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("from_torch needs PyTorch: pip install 'roofline[torch]'") from None
    if isinstance(program, type) or not callable(program):
        raise UsageError(f"from_torch: expected a module or a function, given {str(program)[:60]!r}")
    if isinstance(program, torch.nn.Module):
        _acyclic(program)


def _acyclic(module: Any) -> None:
    """Refuse a module that contains itself; PyTorch would walk it for ever."""
    open_: set[int] = set()

    def visit(one: Any, path: str) -> None:
        if id(one) in open_:
            raise ModelDataError(f"{type(module).__name__}: the module at {path!r} contains itself")
        open_.add(id(one))
        for name, child in one._modules.items():
            if child is not None:
                visit(child, f"{path}.{name}" if path else name)
        open_.discard(id(one))

    visit(module, "")


def _order(method: str, mode: str, symbolic: bool) -> tuple[str, ...]:
    if method != "auto":
        return (method,)
    first = ("export", "dispatch") if mode == "compiled" else ("dispatch", "export")
    return first if symbolic else (*first, "run")


def _captured(method: Any, request: Any, tensors: Any) -> Any:
    """Capture by a method, and put whatever PyTorch raises on the way in one line."""
    from roofline.frontends.torch.capture import one_line
    from roofline.frontends.torch.saved import Saved

    saved = Saved(request.run)
    try:
        return method(request, tensors)
    except RooflineError:
        raise
    except Exception as error:
        raise ModelDataError(f"{request.name}: PyTorch cannot capture it: {one_line(error)}") from error
    finally:
        saved.restore()


def _translated(request: Any, tensors: Any, methods: tuple[str, ...], unknown: str) -> Graph:
    from roofline.counting.counts import kernels
    from roofline.frontends.torch.capture import METHODS
    from roofline.frontends.torch.rules import RULES
    from roofline.frontends.torch.walk import Walk

    notes: list[str] = []
    first: RooflineError | None = None
    for method in methods:
        try:
            program = _captured(METHODS[method], request, tensors)
            graph = Walk(program, RULES, unknown).graph()
        except (ModelDataError, ShapeError) as error:
            first = first or error
            notes.append(f"captured by another method, since {error}")
            continue
        return graph.with_info(
            model=program.name, source=f"torch, {program.method}", method=program.method, guards=tuple(program.guards),
            phase="train" if request.backward or graph.backward_start is not None else "forward",
            notes=(*notes, *program.notes, *(f"holds where {guard}" for guard in program.guards)),
            calls=HostCalls(sum(kernel.count for kernel in kernels(graph)), program.operators, program.views),
        )  # fmt: skip
    assert first is not None
    raise first
