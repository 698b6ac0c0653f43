"""What both readers make of a text: functions of equations, in the shape of jax's jaxprs, whose rules translate them.

A constant of one number is a literal wherever it is used; tuples are taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from roofline.ir.errors import ModelDataError

#: Equations that a text may have, and those of a program when its functions are written out where they are called.
MOST_EQUATIONS = 1_000_000
MOST_WRITTEN = 200_000
#: How deep regions, tuples and calls may be nested.
DEEPEST = 60
#: The largest size of an axis, and number of elements of a tensor.
LARGEST_SIZE = 2**53


@dataclass(frozen=True, slots=True)
class Aval:
    """The shape of a tensor and what jax calls its type; a token has neither."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False, slots=True)
class Var:
    """What an equation gives."""

    aval: Aval


@dataclass(frozen=True, slots=True)
class Literal:
    """A number."""

    val: Any
    aval: Aval


Atom = Var | Literal


@dataclass(frozen=True, slots=True)
class Equation:
    """An operation.

    Attributes:
        what: Its name, jax's where jax has it.
        invars: What it reads.
        outvars: What it gives.
        params: Its options, as jax's rules read them.
        line: Where it stands in the text, from 1.
        name: What its node is to be called, dotted; empty where the text does not say.
        kernel: The kernel that it runs in; empty where the text does not say.
    """

    what: str
    invars: Sequence[Atom]
    outvars: Sequence[Var]
    params: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0
    name: str = ""
    kernel: str = ""

    @property
    def primitive(self) -> Any:
        """Its name, where jax has it."""
        return SimpleNamespace(name=self.what)

    @property
    def source_info(self) -> Any:
        """The modules that it stands in, where jax has them."""
        return SimpleNamespace(name_stack=self.name.rpartition(".")[0].replace(".", "/"))


@dataclass(frozen=True, slots=True)
class Body:
    """The equations of a function, a computation or a region.

    Attributes:
        invars: What it is called with; of a region first what it reads from around it.
        outvars: What it gives.
        eqns: What it does.
        captured: What a region reads from around it, there.
    """

    invars: Sequence[Var]
    outvars: Sequence[Atom]
    eqns: Sequence[Equation]
    captured: Sequence[Var] = ()
    constvars: Sequence[Var] = ()
    consts: Sequence[Any] = ()

    @property
    def jaxpr(self) -> Body:
        """Itself: a jaxpr that closes over nothing."""
        return self


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a program: its name, and what it is to the memory count where the text says so."""

    name: str
    kind: str = "input"


@dataclass(frozen=True, slots=True)
class Program:
    """A module.

    Attributes:
        name: Its name.
        functions: By name.
        entry: Which of them is run.
        arguments: Of that one.
        compiled: Whether its operations are kernels: text that XLA prints after its passes.
    """

    name: str
    functions: Mapping[str, Body]
    entry: str
    arguments: Sequence[Argument]
    compiled: bool = False


def refuse(line: int, what: str) -> ModelDataError:
    """Return the error of a text."""
    return ModelDataError(f"line {line}: {what}")


def sized(line: int, sizes: Sequence[str], dtype: str) -> Aval:
    """Return a type from the sizes of its axes.

    Raises:
        ModelDataError: A size that is no number, or too large a tensor.
    """
    shape = []
    total = 1
    for size in sizes:
        if not re.fullmatch(r"[0-9]{1,16}", size):
            raise refuse(
                line, f"a size of {size[:20]!r}; only sizes that are numbers can be read, and dynamic ones not"
            )
        shape.append(int(size))
        total *= max(shape[-1], 1)
        if total > LARGEST_SIZE:
            raise refuse(line, f"a tensor of {'x'.join(sizes)[:60]} elements; allowed: at most 2^53")
    return Aval(tuple(shape), dtype)


def numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list.

    Example:
        >>> numbers("0, 2"), numbers("")
        ((0, 2), ())
    """
    return tuple(int(each) for each in re.findall(r"-?[0-9]{1,18}", text))


#: jax's names of operations that StableHLO and HLO spell otherwise, with ``_`` for ``-``.
NAMES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min", "exponential": "exp",
    "exponential_minus_one": "expm1", "log_plus_one": "log1p", "cosine": "cos", "sine": "sin", "negate": "neg",
    "power": "pow", "remainder": "rem", "select": "select_n", "popcnt": "population_count",
    "count_leading_zeros": "clz", "round_nearest_afz": "round", "round_nearest_even": "round", "convert":
    "convert_element_type", "bitcast_convert": "bitcast_convert_type", "reverse": "rev", "set_dimension_size": "copy_p",
    "topk": "top_k", "rng": "rng_uniform", "all_to_all": "all_to_all", "after_all": "create_token",
    "broadcast": "broadcast_in_dim", "dot": "dot_general", "convolution": "conv_general_dilated",
}  # fmt: skip
#: Reductions by what their function does.
REDUCED = {"add": "sum", "multiply": "prod", "mul": "prod", "maximum": "max", "max": "max", "minimum": "min",
           "min": "min", "and": "and", "or": "or", "xor": "xor"}  # fmt: skip
COMPARED = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def reduction(function: Body | None) -> str:
    """Return what a function of two numbers reduces by, as :data:`REDUCED` names it; empty for any other."""
    if function is None or len(function.eqns) != 1:
        return ""
    return REDUCED.get({v: k for k, v in NAMES.items()}.get(function.eqns[0].what, function.eqns[0].what), "")


def combined(what: str, operands: Sequence[Atom], function: Body | None, params: dict[str, Any]) -> tuple[str, Any]:
    """Return a reduction, a pooling or a scatter under jax's name, and what it reads; first values are not read.

    Args:
        what: ``reduce``, ``reduce_window``, ``select_and_scatter`` or ``scatter``.
        operands: As the text has them.
        function: What it combines numbers with.
        params: Its options, which get the function where it is no plain one.
    """
    how = reduction(function)
    if what == "scatter":
        return (f"scatter_{ {'sum': 'add', 'prod': 'mul'}.get(how, how) }" if how else "scatter"), operands
    if what == "select_and_scatter":
        return "select_and_scatter_add", (operands[1], operands[0])
    half = operands[: max(len(operands) // 2, 1)]
    if how and len(half) == 1 and what == "reduce":
        return f"reduce_{how}", half
    if how in ("sum", "max", "min") and len(half) == 1:
        return f"reduce_window_{how}", half
    params["jaxpr"] = function or Body((), (), ())
    params["dimensions"] = params.get("axes", ())
    return what, half


def rows_gathered(offset: Sequence[int], collapsed: Sequence[int], start: Sequence[int]) -> dict[str, Any]:
    """Return the options of a gather."""
    dims = SimpleNamespace(
        offset_dims=tuple(offset), collapsed_slice_dims=tuple(collapsed), start_index_map=tuple(start)
    )
    return {"dimension_numbers": dims}


def convolved(
    layout: Sequence[str], strides: Sequence[int], padding: Sequence[Sequence[int]], lhs: Sequence[int],
    rhs: Sequence[int], groups: int, batches: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the options of a convolution.

    Args:
        layout: A character per axis of image, kernel and result: ``b f``, ``o i``, ``b f`` and digits.
        strides: A number per axis.
        padding: Two numbers per axis.
        lhs: Dilation of the image.
        rhs: Dilation of the kernel.
        groups: Of features.
        batches: Groups of the batch.
    """

    def spec(text: str, first: str, second: str) -> tuple[int, ...]:
        digits = sorted(c for c in text if c.isdigit())
        return tuple(text.index(c) for c in (first, second, *digits))

    image, kernel, result = layout
    dims = SimpleNamespace(
        lhs_spec=spec(image, "b", "f"), rhs_spec=spec(kernel, "o", "i"), out_spec=spec(result, "b", "f")
    )
    axes = len(dims.lhs_spec) - 2
    ones = (1,) * axes
    return {
        "dimension_numbers": dims, "window_strides": tuple(strides) or ones,
        "padding": tuple(map(tuple, padding)) or ((0, 0),) * axes, "lhs_dilation": tuple(lhs) or ones,
        "rhs_dilation": tuple(rhs) or ones, "feature_group_count": groups, "batch_group_count": batches,
    }  # fmt: skip
