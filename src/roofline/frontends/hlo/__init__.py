"""StableHLO and HLO text to a graph, without jax: what a program is before XLA's passes, and what XLA made of it.

mlir     StableHLO, a line an operation       program   functions of equations, in the shape of jaxprs
hlo      HLO, a line an instruction           rules     jax's rules, and kernels, calls, composites
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from roofline.frontends.call import MALFORMED, UNKNOWN
from roofline.frontends.hlo import hlo, mlir
from roofline.frontends.hlo.program import Program
from roofline.frontends.hlo.rules import HloWalk
from roofline.frontends.jax.sizes import format_of
from roofline.frontends.jax.walk import Trips, Value, floating
from roofline.ir.errors import ModelDataError, RooflineError, UsageError, did_you_mean
from roofline.ir.files import read_file, user_path
from roofline.ir.graph import Graph, Info, Lifetimes
from roofline.ir.sizes import one_of
from roofline.ops.aliases import is_view
from roofline.ops.builder import Builder

#: The longest text that is read [byte].
LONGEST_TEXT = 64 * 2**20
#: How the text of a module begins, after comments and blank lines.
_BEGINNING = re.compile(r"\A(?:\s*(?://[^\n]*|#\w+ = [^\n]*)?\n)*\s*(HloModule|module|func\.func)\b")
_HEAD = 4096
#: Characters of comments before a module.
_LONGEST_HEAD = 2**16

#: Arguments by position or by name.
Arguments = int | str | Sequence[int | str]


def from_hlo(
    text: str | os.PathLike[str],
    *,
    weights: Arguments = (),
    cache: Arguments = (),
    trips: Mapping[str | int, int] | None = None,
    unknown: Literal["error", "report"] = "error",
    name: str | None = None,
) -> Graph:
    """Read StableHLO or HLO text as a graph; nothing is executed.

    StableHLO is a program before a compiler's passes, a kernel an operation. HLO that XLA prints after its passes is
    what it made of it: a fusion is one kernel, and copies and transposes that it left are kernels, too.

    Args:
        text: The text itself, or the path of a file with it: what ``jax.jit(f).lower(x).as_text()`` and
            ``.compile().as_text()`` print, and what ``--xla_dump_to`` writes.
        weights: The arguments, by position or name, that are parameters; a module of :func:`roofline.lower` says so.
        cache: The arguments that are state kept between steps.
        trips: How often a ``while`` loop runs that does not say so itself, by its name or by its index among such
            loops. Without, the body is counted once and ``graph.info.notes`` says so.
        unknown: What to do with an operation without a rule: ``"error"``, or ``"report"`` to count its bytes and list
            it in ``estimate(...).not_modelled``.
        name: What to call the graph; the module's name by default.

    Returns:
        The graph.

    Raises:
        ModelDataError: Neither StableHLO nor HLO; names the line.
        UnknownOp: An operation without a rule.
        UsageError: Arguments that the program does not have.

    Example:
        >>> import roofline as rl
        >>> text = '''HloModule product
        ... ENTRY main {
        ...   x = f32[8,64] parameter(0)
        ...   w = f32[64,32] parameter(1)
        ...   ROOT y = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ... }'''
        >>> rl.count(rl.from_hlo(text, weights="w")).flops
        32768
    """
    one_of("unknown", unknown, UNKNOWN)
    source, where = _text(text)
    try:
        program = read(source)
        return _graph(program, unknown, trips or {}, weights, cache, name)
    except ModelDataError as error:
        raise ModelDataError(f"{where}: {error}") if where else error from None
    except RooflineError:
        raise
    except MALFORMED as error:  # operations that contradict each other: too few results, a value of another function
        place = f"{where}: " if where else ""
        raise ModelDataError(f"{place}the text contradicts itself ({type(error).__name__}: {error})") from error


def read(text: str) -> Program:
    """Read the functions of a module.

    Raises:
        ModelDataError: Neither StableHLO nor HLO.
    """
    match = _BEGINNING.match(text[:_LONGEST_HEAD])
    if match is None:
        raise ModelDataError(
            "neither StableHLO (module ..., func.func ...) nor HLO (HloModule ...) text; serialised modules cannot be "
            "read: print them first"
        )
    lines = text.splitlines()
    return hlo.read(lines) if match[1] == "HloModule" else mlir.read(lines)


def is_module(head: bytes) -> bool:
    """Tell from the beginning of a file whether it is a module in either text."""
    return _BEGINNING.match(head[:_HEAD].decode("utf-8", "replace")) is not None


def _text(text: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the text, and the file that it comes from."""
    if not isinstance(text, str | os.PathLike):
        raise UsageError(f"from_hlo takes text, or the path of a file, not {type(text).__name__}; print it first")
    if isinstance(text, str) and ("\n" in text or len(text) > _HEAD):
        if len(text) > LONGEST_TEXT:
            raise ModelDataError(f"{len(text)} characters; allowed: at most {LONGEST_TEXT}")
        return text, ""
    path = user_path(text, ModelDataError)
    data = read_file(path, LONGEST_TEXT, "StableHLO or HLO text", ModelDataError)
    return data.decode("utf-8", "replace"), str(path)


def _graph(
    program: Program, unknown: str, trips: Mapping[str | int, int], weights: Arguments, cache: Arguments,
    name: str | None,
) -> Graph:  # fmt: skip
    body = program.functions[program.entry]
    chosen = {"weight": _chosen(program, "weights", weights), "cache": _chosen(program, "cache", cache)}
    formats = [format_of(var.aval.dtype) for var in body.invars if floating(var.aval)]
    b = Builder(name or program.name, max(formats, key=formats.count) if formats else "fp32")
    inputs: list[Value] = []
    for at, (argument, var) in enumerate(zip(program.arguments, body.invars, strict=True)):
        kind: Any = next((kind for kind, places in chosen.items() if at in places), argument.kind)
        inputs.append(b.source(argument.name, var.aval.shape, kind, format_of(var.aval.dtype)))
    walk = HloWalk(program, b, unknown, Trips(trips))
    results = walk.inline(body, inputs)
    walk.trips.check()
    if not results:
        raise UsageError(f"{b.name} returns no array, so nothing of it would be computed")
    outputs = list(dict.fromkeys(walk.tensor(value) for value in results))
    info = Info(source="hlo", notes=tuple(walk.notes), lifetimes=Lifetimes(planned=True))
    graph = b.graph(outputs, info=info).live(follows=walk.follows)
    return graph.with_nodes(replace(node, kernel="") if is_view(node) else node for node in graph.nodes)


def _chosen(program: Program, what: str, arguments: Arguments) -> set[int]:
    places: dict[int | str, int] = {}
    for at, argument in enumerate(program.arguments):
        places |= {at: at, argument.name: at}
    listed = [arguments] if isinstance(arguments, int | str) else list(arguments)
    for each in listed:
        if each not in places:
            names = [argument.name for argument in program.arguments]
            near = did_you_mean(str(each), names)
            raise UsageError(f"{what}={each!r}: no such argument; there are {', '.join(names[:12])}{near}")
    return {places[each] for each in listed}
