"""StableHLO text, as jax prints it (``jax.jit(f).lower(x).as_text()``) and as ``rl.lower`` writes it.

One operation a line, with the regions of an operation on the lines below it, in the short form of
https://github.com/openxla/stablehlo/blob/main/docs/spec.md or in MLIR's generic form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.frontends.hlo.program import (
    COMPARED,
    DEEPEST,
    MOST_EQUATIONS,
    NAMES,
    Argument,
    Atom,
    Aval,
    Body,
    Equation,
    Literal,
    Program,
    Var,
    combined,
    convolved,
    numbers,
    refuse,
    rows_gathered,
    sized,
)

_ID = r"%[\w$.-]+(?:#\d+)?"
_RESULTS = re.compile(rf"^((?:{_ID}(?::\d+)?\s*+,?+\s*+)+)=\s*(.*)$", re.ASCII | re.DOTALL)
_NAME = re.compile(r'^"?((?:stablehlo|chlo|mhlo|func|sdy)\.[\w.]+|return|call)"?', re.ASCII)
_TENSOR = re.compile(r"tensor<((?:[0-9?]++x)*+)([^<>,]++(?:<[^<>]*>)?)[^<>]*>")
_ARGUMENT = re.compile(r"\s*(%[\w$.-]+)\s*:\s*", re.ASCII)
_FUNCTION = re.compile(
    r'^func\.func\s+(?:(?:public|private)\s+)?@("[^"\\]*+(?:\\.[^"\\]*+)*+"|[\w$.-]+)\s*\(', re.ASCII
)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|->|[(){}\[\]<>]')
#: A string, and where in the file of that name. Here as above one that has no end is taken as it is, so that no quote
#: in it is tried again as a beginning.
_PLACED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"?+(:\d+:\d+(?: to :\d+(?::\d+)?)?)?')
#: jax's names of MLIR's element types.
_TYPES = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "f8E4M3FN":
          "float8_e4m3fn", "f4E2M1FN": "float4_e2m1fn"}  # fmt: skip
#: Operations whose types are those of their results alone, one each.
_EACH = {"while", "optimization_barrier"}
#: Characters in which the results of an operation are named.
_LONGEST_NAMES = 2**18
#: The operation that ends a region.
_RETURN = "return"


def read(lines: Sequence[str]) -> Program:
    """Read a module of StableHLO.

    Raises:
        ModelDataError: Names the line and what it is not.
    """
    return _Reader(lines, _aliases(lines)).module()


def _aliases(lines: Sequence[str]) -> dict[str, str]:
    """Return what ``#loc3`` and its like stand for."""
    pairs = (re.match(r"^(#[\w]+)\s*=\s*(.*)$", line, re.DOTALL) for line in lines if line.startswith("#"))
    return {match[1]: match[2].strip() for match in pairs if match}


def _parts(text: str, separator: str = ",") -> list[str]:
    """Part a text at characters that no bracket holds."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|->|[(){{}}\[\]<>]|{re.escape(separator)}', text):
        if match[0] == separator:
            if depth == 0:
                parts.append(text[start : match.start()])
                start = match.end()
        elif match[0] in "({[<":
            depth += 1
        elif match[0] in ")}]>":
            depth -= 1
    return [*parts, text[start:]]


def _closing(text: str, at: int, line: int) -> int:
    """Return where the bracket that opens at a place closes."""
    depth = 0
    for match in _BRACKET.finditer(text, at):
        if len(match[0]) > 1:
            continue
        depth += 1 if match[0] in "({[<" else -1
        if depth == 0:
            return match.start()
        if depth > DEEPEST:
            break
    raise refuse(line, "brackets that do not close, or are nested too deep")


@dataclass(slots=True)
class _Scope:
    """The values of a function or a region, and what it reads from around it.

    Attributes:
        outer: What is around it; ``None`` of a function.
        values: By name.
        captured: By name, those from around it, there and here.
        parameters: What a region is called with.
    """

    outer: _Scope | None = None
    values: dict[str, Atom] = field(default_factory=dict)
    captured: dict[str, tuple[Var, Var]] = field(default_factory=dict)
    parameters: list[Var] = field(default_factory=list)

    def find(self, name: str, line: int) -> Atom:
        """Return what a name stands for."""
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise refuse(line, f"reads {name[:60]!r}, which no line before it gives")
        above = self.outer.find(name, line)
        if isinstance(above, Literal):
            return above
        own = Var(above.aval)
        self.values[name] = own
        self.captured[name] = (above, own)
        return own


@dataclass
class _Reader:
    """A module while it is read.

    Attributes:
        lines: Its text.
        aliases: What stands for attributes.
        at: The line that is read next.
        equations: How many there are.
        own: Whether locations name nodes and kernels: text that :func:`roofline.lower` wrote.
    """

    lines: Sequence[str]
    aliases: dict[str, str]
    at: int = 0
    equations: int = 0
    own: bool = False

    def module(self) -> Program:
        """Read the functions of a module."""
        functions: dict[str, Body] = {}
        arguments: dict[str, list[Argument]] = {}
        title = ""
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            self.at += 1
            if line.startswith("module"):
                name = re.match(r'module\s+@("[^"\\]*+(?:\\.[^"\\]*+)*+"|[\w$.-]+)', line)
                self.own = "roofline.version" in line
                title = title or (name[1].strip('"') if name else "module")
            elif line.startswith("func.func"):
                called, own, body = self._function(line)
                functions[called], arguments[called] = body, own
        if not functions:
            raise refuse(1, "no function; expected StableHLO text with func.func, or HLO text with HloModule")
        entry = "main" if "main" in functions else next(iter(functions))
        return Program(title or entry, functions, entry, arguments[entry])

    def _function(self, line: str) -> tuple[str, list[Argument], Body]:
        number, match = self.at, _FUNCTION.match(line)
        if match is None:
            raise refuse(number, f"no function: {line[:60]!r}")
        end = _closing(line, match.end() - 1, number)
        scope, arguments, invars = _Scope(), list[Argument](), list[Var]()
        inside = line[match.end() : end]
        for part in _parts(inside) if inside.strip() else []:
            name, var, rest = self._argument(part, number)
            scope.values[name] = var
            invars.append(var)
            said, kind = (
                self._location(rest[rest.rfind("loc(") :])[0] if "loc(" in rest else "",
                re.search(r'roofline\.kind = "(\w+)"', rest),
            )
            arguments.append(Argument(said or name.lstrip("%"), kind[1] if kind else "input"))
        outs, eqns = self._block(scope, 0)
        return match[1].strip('"'), arguments, Body(invars, outs, eqns)

    def _argument(self, text: str, line: int) -> tuple[str, Var, str]:
        match = _ARGUMENT.match(text)
        if match is None:
            raise refuse(line, f"no argument: {text.strip()[:60]!r}")
        kind = _TENSOR.match(text, match.end())
        return match[1], Var(_type(text[match.end() :], line)), text[kind.end() if kind else match.end() :]

    # --- blocks ---

    def _block(self, scope: _Scope, depth: int) -> tuple[list[Atom], list[Equation]]:
        """Read operations up to the line that closes the block, which is left to be read."""
        if depth > DEEPEST:
            raise refuse(self.at, f"regions nested deeper than {DEEPEST}")
        eqns: list[Equation] = []
        outs: list[Atom] = []
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("}"):
                if depth == 0:
                    self.at += 1
                return outs, eqns
            self.at += 1
            if line.startswith("^"):
                for part in _parts(line[line.find("(") + 1 : line.rfind(")")]) if "(" in line else []:
                    name, var, _ = self._argument(part, self.at)
                    scope.values[name] = var
                    scope.parameters.append(var)
            elif line and not line.startswith(("//", "#")):
                outs = self._operation(line, scope, depth, eqns) or outs
        raise refuse(self.at, "the text ends inside a function")

    def _operation(self, line: str, scope: _Scope, depth: int, eqns: list[Equation]) -> list[Atom] | None:
        """Read an operation with its regions; return what a block returns, where it is that."""
        number, results = self.at, list[str]()
        if line.startswith("%"):
            match = _RESULTS.match(line) if 0 < line.find("=") < _LONGEST_NAMES else None
            if match is None:
                raise refuse(number, f"no operation: {line[:60]!r}")
            results, line = _results(match[1], number), match[2]
        name = _NAME.match(line)
        if name is None:
            raise refuse(number, f"no operation of StableHLO: {line[:60]!r}")
        what = name[1].rpartition(".")[2] if not name[1].startswith("chlo") else name[1].partition(".")[2]
        rest, regions = self._regions(line[name.end() :], scope, depth, what)
        if what == _RETURN:
            return [scope.find(each, number) for each in re.findall(_ID, rest.partition(" : ")[0], re.ASCII)]
        self.equations += 1
        if self.equations > MOST_EQUATIONS:
            raise refuse(number, f"more than {MOST_EQUATIONS} operations")
        rest, (said, kernel) = self._without_location(rest)
        avals = _result_types(what, rest, len(results), number)
        splat = _splat(rest, avals[0].dtype) if what == "constant" else None
        if splat is not None and not avals[0].shape:
            scope.values[results[0]] = splat
            return None
        outs = [Var(each) for each in avals]
        scope.values.update(zip(results, outs, strict=True))
        operands = [scope.find(each, number) for each in re.findall(_ID, _operand_text(what, rest), re.ASCII)]
        if splat is not None:
            what, operands = "broadcast_in_dim", [splat]
        what, read, params = _translated(what, operands, rest, regions)
        extra = [above for region in regions for above in region.captured] if what in ("while", "branches") else []
        said, kernel = (said, kernel or said) if self.own else ("", "")
        eqns.append(Equation(what, [*extra, *read], outs, params, number, said, kernel))
        return None

    def _regions(self, text: str, scope: _Scope, depth: int, what: str) -> tuple[str, list[Body]]:
        """Read the regions that follow a line, and return the line without them.

        They begin at its end, ``({``, or on the line below, ``cond {`` and ``reducer(...) {``.
        """
        following = self.lines[self.at].strip() if self.at < len(self.lines) else ""
        if what in ("while", "reduce") and re.match(r"(cond|reducer)\b", following):
            opening = following
            self.at += 1
        elif text.rstrip().endswith("{"):
            opening, text = text, text.rstrip()[:-1].rstrip("( ")
        else:
            return text, []
        regions: list[Body] = []
        while True:
            regions.append(self._region(_Scope(scope), depth, what, text, opening))
            opening = self.lines[self.at].strip()
            self.at += 1
            if not opening.endswith("{"):
                return f"{text} {opening.lstrip('})')}", regions

    def _region(self, scope: _Scope, depth: int, what: str, header: str, opening: str) -> Body:
        if what == "while":
            names = re.findall(rf"({_ID}) = {_ID}", header, re.ASCII)
            types = _parts(_head_and_types(self._without_location(header)[0])[1])
            self._parameters(scope, zip(names, types, strict=False))
        elif opening.startswith("reducer"):
            self._parameters(scope, re.findall(r"(%[\w$.-]+): (tensor<[^>]*>)", opening, re.ASCII))
        outs, eqns = self._block(scope, depth + 1)
        pairs = list(scope.captured.values())
        invars = [*(own for _, own in pairs), *scope.parameters]
        return Body(invars, outs, eqns, [above for above, _ in pairs])

    def _parameters(self, scope: _Scope, pairs: Iterable[tuple[str, str]]) -> None:
        for name, kind in pairs:
            scope.values[name] = var = Var(_type(kind, self.at))
            scope.parameters.append(var)

    # --- locations ---

    def _without_location(self, text: str) -> tuple[str, tuple[str, str]]:
        """Return a line without its location, and the name and the kernel that this says."""
        at = text.rfind(" loc(")
        if at < 0 or '"' in text[at:].partition("loc(")[0]:
            return text, ("", "")
        return text[:at], self._location(text[at:])

    def _location(self, text: str) -> tuple[str, str]:
        """Return the name and the kernel that a location says; of jax's the last part names the operation."""
        for _ in range(DEEPEST):
            alias = re.search(r"#\w+", re.sub(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', "", text))
            if alias is None or alias[0] not in self.aliases:
                break
            text = text.replace(alias[0], self.aliases[alias[0]], 1)[:4000]
        if "fused<" not in text:  # the places in files go
            text = _PLACED.sub(lambda match: "" if match[2] else match[0], text)
        names = [_unquoted(match[1]) for match in _PLACED.finditer(text)]
        if "fused<" in text and len(names) > 1:
            return names[1], names[0]
        return (names[0], "") if names else ("", "")


def _unquoted(text: str) -> str:
    """Return what a string of MLIR stands for."""
    data = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", "replace"))
    return data.decode("utf-8", "replace")


def _results(text: str, line: int) -> list[str]:
    """Return the names of results, ``%0:2`` as ``%0#0`` and ``%0#1``."""
    names: list[str] = []
    for name, count in re.findall(r"(%[\w$.-]+)(?::(\d{1,5}))?", text, re.ASCII):
        names += [f"{name}#{at}" for at in range(int(count))] if count else [name]
    if len(names) > MOST_EQUATIONS:
        raise refuse(line, "too many results")
    return names


def _type(text: str, line: int) -> Aval:
    """Return the first type of a text; a token is one flag."""
    text = text.strip()
    match = _TENSOR.match(text)
    if match is None:
        if "token" in text[:20]:
            return Aval((), "bool")
        raise refuse(line, f"no type that can be read: {text[:40]!r}")
    element = match[2].strip()
    quantised = re.match(r"!quant\.uniform<(\w+)", element)
    element = quantised[1] if quantised else element
    dtype = _TYPES.get(element)
    if dtype is None:
        whole = re.fullmatch(r"(u?)i(2|4|8|16|32|64)", element)
        special = re.fullmatch(r"f([48])E\w+", element)
        dtype = f"{'u' if whole[1] else ''}int{whole[2]}" if whole else f"float{special[1]}" if special else ""
        dtype = {"complex<f32>": "complex64", "complex<f64>": "complex128"}.get(element, dtype)
    if not dtype:
        raise refuse(line, f"elements of type {element[:40]!r}")
    return sized(line, match[1].split("x")[:-1], dtype)


def _result_types(what: str, text: str, count: int, line: int) -> list[Aval]:
    """Return the types of results: behind the arrow, or the one type of all operands and the result."""
    types = text[text.rfind(":") + 1 :].strip() if what == "constant" else _head_and_types(text)[1].strip()
    _, arrow, after = types.partition("->")
    listed = _parts((after if arrow else types).strip().removeprefix("(").removesuffix(")"))
    if not arrow and what == "select":
        listed = listed[-1:]
    elif not arrow and what not in _EACH:
        listed = listed[:1] * count
    return [_type(each, line) for each in listed[:count]] if count else []


def _splat(text: str, dtype: str) -> Literal | None:
    """Return the one number of a constant; nothing where there are several."""
    match = re.search(r'dense<([^"<>\[\]]*)>', text[:200])
    return Literal(_number(match[1].strip()), Aval((), dtype)) if match else None


def _number(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,20}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


def _head_and_types(text: str) -> tuple[str, str]:
    """Part an operation before its types."""
    types = _parts(text, ":")[-1]
    return text[: len(text) - len(types)], types


def _operand_text(what: str, text: str) -> str:
    """Return the part of an operation in which its operands stand."""
    if what == "while":
        return " ".join(re.findall(rf"= ({_ID})", text, re.ASCII))
    if what == "reduce" and " init: " in text:  # operands, then first values, as everywhere else
        pairs = re.findall(rf"({_ID}) init: ({_ID})", text, re.ASCII)
        return " ".join(name for at in (0, 1) for name in (pair[at] for pair in pairs))
    return re.sub(r"<\{.*\}>", "", _head_and_types(text)[0])


# --- options ----------------------------------------------------------------------------------------------------------


def _list(text: str, *names: str) -> tuple[int, ...]:
    """Return the whole numbers that an option lists: ``dims = [0, 1]`` or ``dims = array<i64: 0, 1>``."""
    for name in names:
        match = re.search(rf"(?<![\w]){name}\s*=\s*(?:\[([^\]]*)\]|array<i\d+(?::([^>]*))?>|dense<([^>]*)>)", text)
        if match:
            return numbers(match[1] or match[2] or match[3] or "")
    return ()


def _one(text: str, name: str, default: int = 0) -> int:
    match = re.search(rf"(?<![\w]){name}\s*=\s*(-?[0-9]{{1,18}})", text)
    return int(match[1]) if match else default


def _pairs(text: str, name: str) -> list[tuple[int, ...]]:
    match = re.search(rf"(?<![\w]){name}\s*=\s*(?:dense<)?(\[\[.*?\]\])", text)
    flat = numbers(match[1]) if match else ()
    return list(zip(flat[::2], flat[1::2], strict=False))


def _dot(text: str) -> dict[str, Any]:
    def both(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        match = re.search(rf"{name}_dims = \[([^\]]*)\] x \[([^\]]*)\]", text)
        if match:
            return numbers(match[1]), numbers(match[2])
        word = {"batching": "batching_dimensions", "contracting": "contracting_dimensions"}[name]
        return _list(text, f"lhs_{word}"), _list(text, f"rhs_{word}")

    return {"dimension_numbers": (both("contracting"), both("batching"))}


def _convolution(text: str) -> dict[str, Any]:
    labels = re.search(r"\[([\w, ?]+)\]\s*x\s*\[([\w, ?]+)\]\s*->\s*\[([\w, ?]+)\]", text)
    layout = [re.sub(r"[,\s]", "", each) for each in labels.groups()] if labels else ["bf01", "oi01", "bf01"]
    window = [_list(text, *names) for names in (
        ("stride", "window_strides"), ("lhs_dilate", "lhs_dilation"), ("rhs_dilate", "rhs_dilation"))]  # fmt: skip
    counts = [_one(text, f"{which}_group_count", 1) for which in ("feature", "batch")]
    return convolved(layout, window[0], _pairs(text, "pad(?:ding)?"), window[1], window[2], *counts)


_PARAMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "dot_general": _dot,
    "convolution": _convolution,
    "broadcast_in_dim": lambda text: {"broadcast_dimensions": _list(text, "dims", "broadcast_dimensions")},
    "transpose": lambda text: {"permutation": _list(text, "dims", "permutation")},
    "concatenate": lambda text: {"dimension": _one(text, "dim", _one(text, "dimension"))},
    "sort": lambda text: {"dimension": _one(text, "dimension")},
    "reduce": lambda text: {"axes": _list(text, "dimensions")},
    "reduce_window": lambda text: {"window_dimensions": _list(text, "window_dimensions")},
    "batch_norm_inference": lambda text: {"feature_index": _one(text, "feature_index", 1)},
    "fft": lambda text: {"fft_lengths": _list(text, "length", "fft_length")},
    "gather": lambda text: rows_gathered(
        *(_list(text, name) for name in ("offset_dims", "collapsed_slice_dims", "start_index_map"))),
}  # fmt: skip
_COLLECTIVES = {"all_reduce": "psum", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all":
                "all_to_all"}  # fmt: skip


def _translated(
    what: str, operands: list[Atom], text: str, regions: list[Body]
) -> tuple[str, Sequence[Atom], dict[str, Any]]:
    """Return an operation under jax's name, with what it reads and its options."""
    params = _PARAMS[what](text) if what in _PARAMS else {}
    if what in ("reduce", "reduce_window", "select_and_scatter", "scatter"):
        applied = re.search(r"applies (?:stablehlo|mhlo)\.(\w+)", text)
        region = Body((), (), [Equation(applied[1], (), ())]) if applied else regions[0] if regions else None
        what, read = combined(what, operands, region, params)
        return what, read, params
    if what == "compare":
        how = re.search(r"\b(EQ|NE|LT|LE|GT|GE)\b", text)
        return COMPARED[how[1] if how else "EQ"], operands, params
    if what == "while":
        test, body = regions
        counts = {"cond_nconsts": len(test.captured), "body_nconsts": len(body.captured)}
        return what, operands, {"cond_jaxpr": test, "body_jaxpr": body, **counts}
    if what in ("case", "if"):
        return "branches", operands, {"branches": regions}
    if what in ("call", "composite"):
        named = re.search(r'(?:^\s*|decomposition = )@("[^"\\]*+(?:\\.[^"\\]*+)*+"|[\w$.-]+)', text)
        title = re.match(r'\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"', text)
        return what, operands, {
            "function": named[1].strip('"') if named else "", "title": title[1] if title else "", "options": text,
        }  # fmt: skip
    if what == "custom_call":
        target = re.search(r'@([\w$.-]+)|call_target_name = "([^"]*)"', text)
        return what, operands, {"target": (target[1] or target[2]) if target else "", "options": text}
    if what in _COLLECTIVES:
        groups = re.search(r"tensor<\d+x(\d+)xi64>", text)
        return _COLLECTIVES[what], operands, {"axis_index_groups": [tuple(range(int(groups[1]) if groups else 1))]}
    return NAMES.get(what, what), operands, params
