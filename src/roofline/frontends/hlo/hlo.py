"""HLO text: what XLA dumps, and what ``compiled.as_text()`` of jax prints after optimisation.

One instruction a line: ``%name = f32[8,4]{1,0} opcode(%operand, ...), option=..., metadata={...}``; the grammar is that
of https://github.com/openxla/xla/blob/main/xla/hlo/parser/hlo_parser.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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

#: jax's names of XLA's types.
_TYPES = {
    "pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64",
    "c128": "complex128", "token": "bool", "opaque": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip
_SHAPE = re.compile(r"(?<![a-z0-9])([a-z][a-z0-9]*+)\[([^\[\]]*+)\]")
_HEAD = re.compile(r"^(ENTRY\s+)?%?([\w.$-]+)\s*(?:\(.*\)\s*->.*)?\{\s*$", re.ASCII)
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.$-]+)\s*=\s*(.*)$", re.ASCII | re.DOTALL)
_OPCODE = re.compile(r"\s*([a-z][\w-]*)\(", re.ASCII)
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)  # one that has no end is not searched for it again and again
#: A value: a tensor, or those of a tuple.
Value = Atom | list[Any]
#: Operations that only pass on what they are given.
_SAME = {"copy_done", "all_reduce_done", "all_gather_done", "async_done", "async_update", "domain", "opt_barrier",
         "optimization_barrier", "add_dependency", "collective_permute_done"}  # fmt: skip
_COLLECTIVES = {"all_reduce": "psum", "all_reduce_start": "psum", "all_gather": "all_gather", "all_gather_start":
                "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all"}  # fmt: skip


def read(lines: Sequence[str]) -> Program:
    """Read a module of HLO.

    Raises:
        ModelDataError: Names the line and what it is not.
    """
    title = next((match for line in lines if (match := re.match(r"\s*HloModule\s+([\w.$-]+)", line))), None)
    if title is None:
        raise refuse(1, "no HloModule; expected HLO text as XLA prints it")
    bodies: dict[str, Body] = {}
    entry, names = "", list[str]()
    for name, start, end, is_entry in _computations(lines):
        reader = _Computation(bodies)
        bodies[name] = reader.read(lines, start, end)
        entry, names = (name, reader.names) if is_entry or not entry else (entry, names)
    if not entry:
        raise refuse(len(lines), "the module has no computation")
    scheduled = any("is_scheduled=true" in line or " fusion(" in line for line in lines)
    return Program(title[1], bodies, entry, [Argument(each) for each in names], scheduled)


def _computations(lines: Sequence[str]) -> Iterator[tuple[str, int, int, bool]]:
    """Yield each computation: its name, the lines of its instructions, whether it is the entry."""
    at = 0
    while at < len(lines):
        match = _HEAD.match(lines[at]) if lines[at].rstrip().endswith("{") else None
        at += 1
        if match is None or match[2] == "HloModule":
            continue
        start = at
        while at < len(lines) and lines[at].strip() != "}":
            at += 1
        if at == len(lines):
            raise refuse(at, f"computation {match[2]!r} has no end")
        yield match[2], start, at, bool(match[1])


def _closing(text: str, at: int, line: int) -> int:
    """Return where the bracket that opens at a place closes."""
    depth = 0
    for match in re.finditer(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[(){}\[\]]', text[at:]):
        if match[0][0] == '"':
            continue
        depth += 1 if match[0] in "({[" else -1
        if depth == 0:
            return at + match.start()
        if depth > DEEPEST:
            break
    raise refuse(line, "brackets that do not close, or are nested too deep")


@dataclass
class _Computation:
    """A computation while it is read.

    Attributes:
        bodies: Those before it.
        values: What each name stands for.
        eqns: So far.
        parameters: By number.
        titles: What they are called.
        names: The same, tuples taken apart.
    """

    bodies: dict[str, Body]
    values: dict[str, Value] = field(default_factory=dict)
    eqns: list[Equation] = field(default_factory=list)
    parameters: dict[int, list[Var]] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def read(self, lines: Sequence[str], start: int, end: int) -> Body:
        """Read the lines of a computation."""
        root: Value | None = None
        for at in range(start, end):
            match = _INSTRUCTION.match(_COMMENT.sub("", lines[at]))
            if match is None:
                if lines[at].strip():
                    raise refuse(at + 1, f"no instruction: {lines[at].strip()[:60]!r}")
                continue
            root_mark, name, rest = match.groups()
            value = self.values[name] = self.instruction(name, rest, at + 1)
            root = value if root_mark or at == end - 1 or root is None else root
            if len(self.eqns) > MOST_EQUATIONS:
                raise refuse(at + 1, f"more than {MOST_EQUATIONS} instructions")
        if root is None:
            raise refuse(end, "a computation without instructions")
        invars = [var for at in sorted(self.parameters) for var in self.parameters[at]]
        for number, parts in sorted(self.parameters.items()):
            title = self.titles[number]
            self.names += [title] if len(parts) == 1 else [f"{title}.{at}" for at in range(len(parts))]
        return Body(invars, _flat(root), self.eqns)

    def instruction(self, name: str, text: str, line: int) -> Value:
        """Read what follows the name of an instruction."""
        shape, rest = _shape(text, line)
        match = _OPCODE.match(rest)
        if match is None:
            raise refuse(line, f"no operation: {rest.strip()[:60]!r}")
        end = _closing(rest, match.end() - 1, line)
        inside, options = rest[match.end() : end], rest[end + 1 :]
        what = match[1].replace("-", "_")
        if what == "parameter":
            return self._parameter(name, shape, inside, options, line)
        if what == "constant":
            return self._constant(shape, inside, line)
        if what == "iota" and isinstance(shape, Aval):
            return self._add("iota", [], shape, {}, line, name, options)
        operands = [self._operand(each, line) for each in _operands(inside)]
        return self._operation(what, operands, shape, options, line, name)

    def _parameter(self, name: str, shape: Any, inside: str, options: str, line: int) -> Value:
        number = int(inside) if re.fullmatch(r"[0-9]{1,6}", inside.strip()) else -1
        if number < 0 or number in self.parameters:
            raise refuse(line, f"parameter({inside[:20]})")
        value = _fresh(shape)
        self.parameters[number] = [each for each in _flat(value) if isinstance(each, Var)]
        said = re.search(r'op_name="([^"\\]*+(?:\\.[^"\\]*+)*+)"', options)
        self.titles[number] = said[1] if said else name
        return value

    def _constant(self, shape: Any, inside: str, line: int) -> Value:
        if isinstance(shape, Aval) and not shape.shape:
            return Literal(_number(inside.strip()), shape)
        return self._add("constant", [], shape, {}, line, "constant", "")

    def _operand(self, text: str, line: int) -> Value:
        name = text.split()[-1].lstrip("%") if text.split() else ""
        if name not in self.values:
            raise refuse(line, f"reads {name[:60]!r}, which no line before it gives")
        return self.values[name]

    def _operation(
        self, what: str, operands: list[Value], shape: Any, options: str, line: int, name: str
    ) -> Value:  # fmt: skip
        if what == "get_tuple_element":
            return _element(operands, options, line)
        if what == "tuple":
            return operands
        flat = [atom for each in operands for atom in _flat(each)]
        if what in _SAME:
            return operands[0] if len(operands) == 1 else operands
        params: dict[str, Any] = _PARAMS[what](options, flat) if what in _PARAMS else {}
        function = self._named_body(r"to_apply", options)
        if what in ("reduce", "reduce_window", "scatter", "select_and_scatter"):
            what, flat = combined(what, flat, function, params)
        elif what == "compare":
            what = COMPARED.get(_word(r"direction", options), "eq")
        elif what in ("fusion", "call", "async_start", "while", "conditional"):
            what, flat, params = self._called(what, flat, options, line, name)
        elif what in _COLLECTIVES:
            size = re.search(r"replica_groups=\{\{([0-9,]*)\}|replica_groups=\[\d+,(\d+)\]", options)
            count = len(size[1].split(",")) if size and size[1] else int(size[2]) if size and size[2] else 1
            what, params = _COLLECTIVES[what], {"axis_index_groups": [tuple(range(count))]}
        return self._add(NAMES.get(what, what), flat, shape, params, line, name, options)

    def _called(
        self, what: str, flat: list[Atom], options: str, line: int, name: str
    ) -> tuple[str, list[Atom], dict[str, Any]]:
        """Return a call of other computations."""
        if what == "while":
            trips = re.search(r'"?known_trip_count"?[:=]\{"?n"?[:=]"?([0-9]{1,15})"?\}', options)
            test, body = self._named_body("condition", options), self._named_body("body", options)
            if test is None or body is None:
                raise refuse(line, "a while loop without condition or body")
            counts = {"cond_nconsts": 0, "body_nconsts": 0, "trips": int(trips[1]) if trips else None}
            return "while", flat, {"cond_jaxpr": test, "body_jaxpr": body, **counts}
        if what == "conditional":
            listed = re.search(r"branch_computations=\{([^}]*)\}", options)
            names = [each.strip().lstrip("%") for each in listed[1].split(",")] if listed else [
                _word(key, options) for key in ("true_computation", "false_computation")
            ]  # fmt: skip
            branches = [self.bodies[each] for each in names if each in self.bodies]
            return "branches", flat, {"branches": branches}
        body = self._named_body("calls" if what == "fusion" else "to_apply|calls|called_computations", options)
        if body is None:
            raise refuse(line, f"{what} of a computation that no line before it gives")
        return ("fusion" if what == "fusion" else "call_body"), flat, {"jaxpr": body, "label": name}

    def _named_body(self, key: str, options: str) -> Body | None:
        return self.bodies.get(_word(key, options))

    def _add(
        self, what: str, operands: Sequence[Atom], shape: Any, params: dict[str, Any], line: int, name: str,
        options: str,
    ) -> Value:  # fmt: skip
        value = _fresh(shape)
        outs = [each for each in _flat(value) if isinstance(each, Var)]
        if what == "custom_call":
            params = {"target": _quoted("custom_call_target", options), "options": options}
        self.eqns.append(Equation(what, operands, outs, params, line, _called_by(options, name)))
        return value


def _called_by(options: str, name: str) -> str:
    """Return the dotted path of an instruction: the modules that its metadata names, then its own name."""
    said = re.search(r'op_name="([^"\\]*+(?:\\.[^"\\]*+)*+)"', options)
    path = said[1].partition(";")[0].split("/")[:-1] if said else []
    modules = [re.sub(r"\W+", "_", part).strip("_") for part in path if not part.startswith(("jit(", "pjit("))]
    return ".".join([*(each for each in modules if each), name.replace(".", "_")])


def _fresh(shape: Any) -> Value:
    return Var(shape) if isinstance(shape, Aval) else [_fresh(each) for each in shape]


def _flat(value: Value) -> list[Atom]:
    return [value] if not isinstance(value, list) else [atom for each in value for atom in _flat(each)]


def _element(operands: list[Value], options: str, line: int) -> Value:
    at = int(_word("index", options) or -1)
    if len(operands) != 1 or not isinstance(operands[0], list) or not 0 <= at < len(operands[0]):
        raise refuse(line, "get-tuple-element of no tuple, or of an element that it has not")
    value: Value = operands[0][at]
    return value


def _shape(text: str, line: int, depth: int = 0) -> tuple[Any, str]:
    """Return the shape at the head of a text, a list of a tuple, and what follows it."""
    text = text.lstrip()
    if text.startswith("("):
        if depth > DEEPEST:
            raise refuse(line, "tuples nested too deep")
        parts, rest = [], text[1:].lstrip()
        while not rest.startswith(")"):
            part, rest = _shape(rest, line, depth + 1)
            parts.append(part)
            rest = rest.lstrip().removeprefix(",").lstrip()
            if not rest:
                raise refuse(line, "a tuple that does not close")
        return parts, rest[1:]
    match = _SHAPE.match(text)
    if match is None:
        raise refuse(line, f"no shape: {text[:40]!r}")
    dtype = _TYPES.get(match[1]) or (f"float{match[1][1]}" if re.match(r"f[48]e", match[1]) else "")
    if not dtype:
        raise refuse(line, f"a type of {match[1][:20]!r}")
    sizes = [size.strip().removeprefix("<=") for size in match[2].split(",")] if match[2].strip() else []
    rest = text[match.end() :]
    if rest.startswith("{"):
        rest = rest[_closing(rest, 0, line) + 1 :]
    return sized(line, sizes, dtype), rest


def _operands(text: str) -> list[str]:
    """Part operands at commas that no bracket holds."""
    if "[" not in text and "(" not in text:
        return [each for each in text.split(",") if each.strip()]
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"[(){}\[\],]", text):
        if match[0] == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
        elif match[0] != ",":
            depth += 1 if match[0] in "({[" else -1
    return [each for each in (*parts, text[start:]) if each.strip()]


def _number(text: str) -> Any:
    words = {"true": True, "false": False, "inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}
    if text in words:
        return words[text]
    try:
        return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else float(text)
    except ValueError:
        return None


def _word(key: str, options: str) -> str:
    match = re.search(rf"(?:^|[\s,])(?:{key})=\{{?%?([\w.$-]+)", options, re.ASCII)
    return match[1] if match else ""


def _quoted(key: str, options: str) -> str:
    match = re.search(rf'{key}="([^"\\]*+(?:\\.[^"\\]*+)*+)"', options)
    return match[1] if match else ""


def _list(key: str, options: str) -> tuple[int, ...]:
    match = re.search(rf"(?:^|[\s,]){key}=\{{([0-9,\s]*)\}}", options)
    return numbers(match[1]) if match else ()


# --- options ----------------------------------------------------------------------------------------------------------


def _dot(options: str, operands: Sequence[Atom]) -> dict[str, Any]:
    summed, batch = (
        [_list(f"{side}_{what}_dims", options) for side in ("lhs", "rhs")] for what in ("contracting", "batch")
    )
    return {"dimension_numbers": (tuple(summed), tuple(batch))}


def _window(options: str) -> dict[str, list[str]]:
    match = re.search(r"window=\{([^}]*)\}", options)
    pairs = (each.partition("=") for each in match[1].split()) if match else ()
    return {key: value.split("x") for key, _, value in pairs}


def _convolution(options: str, operands: Sequence[Atom]) -> dict[str, Any]:
    window = _window(options)
    labels = re.search(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)", options)
    layout = labels.groups() if labels else ("b01f", "01io", "b01f")
    each = {key: [int(size) for size in window.get(key, ())] for key in ("stride", "lhs_dilate", "rhs_dilate")}
    padding = [numbers(pair.replace("_", " ")) for pair in window.get("pad", ())]
    counts = [int(_word(key, options) or 1) for key in ("feature_group_count", "batch_group_count")]
    return convolved(layout, each["stride"], padding, each["lhs_dilate"], each["rhs_dilate"], *counts)


def _gather(options: str, operands: Sequence[Atom]) -> dict[str, Any]:
    names = ("offset_dims", "collapsed_slice_dims", "start_index_map")
    return rows_gathered(*(_list(name, options) for name in names))


_PARAMS: dict[str, Callable[[str, Sequence[Atom]], dict[str, Any]]] = {
    "dot": _dot,
    "convolution": _convolution,
    "gather": _gather,
    "broadcast": lambda options, _: {"broadcast_dimensions": _list("dimensions", options)},
    "transpose": lambda options, _: {"permutation": _list("dimensions", options)},
    "concatenate": lambda options, _: {"dimension": (*_list("dimensions", options), 0)[0]},
    "sort": lambda options, _: {"dimension": (*_list("dimensions", options), 0)[0]},
    "reduce": lambda options, _: {"axes": _list("dimensions", options)},
    "reduce_window": lambda options, _: {"window_dimensions": tuple(map(int, _window(options).get("size", ())))},
    "fft": lambda options, _: {"fft_lengths": _list("fft_length", options)},
    "batch_norm_inference": lambda options, _: {"feature_index": int(_word("feature_index", options) or 1)},
}
