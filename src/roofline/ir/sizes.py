"""Symbolic sizes: polynomials in B, S, C... with exact coefficients, evaluated on numbers or arrays.

A :class:`Dim` is a sum of products of *atoms*. An atom is a symbol (``"B"``) or a :class:`Call` of one of the few
functions in :data:`FUNCTIONS` (a minimum, a floored division...), which stays opaque until it is evaluated. Equal
polynomials are equal objects by value, so shapes can be compared and hashed without an algebra system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import ShapeError, UnboundSize, UsageError, did_you_mean
from roofline.ir.text import shown

#: A size in a shape or a count: an exact number or a polynomial.
Size = Union[int, Fraction, "Dim"]
Atom = Union[str, "Call"]
Monomial = tuple[Atom, ...]
#: What arithmetic takes and gives: an integer, a fraction, a float, an array that broadcasts against others, or a
#: :class:`Dim`. mypy has no type for "any of these, under + - * /", so it is an alias of Any under a name of its own.
Number: TypeAlias = Any

#: No size of a program is larger; products of a few such sizes stay far inside float64.
LARGEST = 10**12
#: Functions inside each other beyond this are refused: Python's own stack ends at a few more.
DEEPEST = 40
#: Words for the sizes that most programs have, and the symbols that they stand for.
SIZE_WORDS = {"batch": "B", "seq": "S", "context": "C"}
#: What changes a program, which many take for a size.
_CHANGES = frozenset({"tp", "pp", "ep", "sp", "weights", "activations", "cache", "fuse", "prune"})


def _distinct(pool: Number, picks: Number, draws: Number) -> Number:
    return pool * (1 - (1 - picks / pool) ** draws)


def _floor_div(a: Number, b: Number) -> Number:
    return a // b


def _share(a: Number, b: Number) -> Number:
    return a / b


def _minimum(a: Number, b: Number) -> Number:
    return min(a, b) if _scalar(a, b) else np.minimum(a, b)


def _maximum(a: Number, b: Number) -> Number:
    return max(a, b) if _scalar(a, b) else np.maximum(a, b)


def _scalar(*values: Number) -> bool:
    return all(isinstance(v, int | float | Fraction) for v in values)


#: The functions that a size may contain beyond + - *, on numbers and on arrays.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _minimum,
    "max": _maximum,
    "floordiv": _floor_div,
    "share": _share,
    "distinct": _distinct,
}


@dataclass(frozen=True, slots=True)
class Call:
    """An opaque function of sizes, such as ``min(C, 4096)``."""

    function: str
    args: tuple[Size, ...]
    #: How many functions are inside each other.
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        atoms = (atom for arg in self.args for monomial, _ in terms(arg) for atom in monomial)
        inside = max((atom.depth for atom in atoms if isinstance(atom, Call)), default=0)
        object.__setattr__(self, "depth", 1 + inside)

    def at(self, sizes: Mapping[str, Number]) -> Number:
        return FUNCTIONS[self.function](*(evaluate(arg, sizes) for arg in self.args))

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True, eq=True)
class Dim:
    """A polynomial over atoms: ``terms`` maps monomials to coefficients, in a fixed order."""

    terms: tuple[tuple[Monomial, int | Fraction], ...]

    def __add__(self, other: Size) -> Size:
        total = dict(self.terms)
        for monomial, factor in terms(other):
            total[monomial] = total.get(monomial, 0) + factor
        return _make(total)

    def __mul__(self, other: Size) -> Size:
        if other.__class__ is int and other:  # most are scaled, which keeps their order
            return Dim(tuple((monomial, _whole(factor * other)) for monomial, factor in self.terms))
        product: dict[Monomial, int | Fraction] = {}
        for left, a in self.terms:
            for right, b in terms(other):
                key = tuple(sorted(left + right, key=str)) if left and right else left or right
                product[key] = product.get(key, 0) + a * b
        return _make(product)

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    def __truediv__(self, other: int | Fraction) -> Size:
        return self * Fraction(1, other)

    def __floordiv__(self, other: Size) -> Size:
        exact = self / other if isinstance(other, int) else None
        if isinstance(exact, Dim) and all(Fraction(factor).denominator == 1 for _, factor in exact.terms):
            return exact
        result: Size = call("floordiv", self, other)
        return result

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that need a value."""
        return frozenset().union(*(_symbols(atom) for monomial, _ in self.terms for atom in monomial))

    def at(self, sizes: Mapping[str, Number]) -> Number:
        """Evaluate on numbers (exactly) or on arrays that broadcast against each other.

        Raises:
            UnboundSize: A symbol has no value; all missing ones are named.
        """
        try:
            return _reduce(self.terms, sizes)
        except (KeyError, UnboundSize):
            missing = sorted(self.symbols - sizes.keys())
            raise UnboundSize(f"size {self} needs a value for {', '.join(missing)}") from None

    def __str__(self) -> str:
        return " + ".join(_show(monomial, factor) for monomial, factor in self.terms).replace("+ -", "- ")

    __repr__ = __str__


def _reduce(terms: Iterable[tuple[Monomial, int | Fraction]], sizes: Mapping[str, Number]) -> Number:
    products: list[Number] = []
    for monomial, factor in terms:
        values = [sizes[atom] if isinstance(atom, str) else atom.at(sizes) for atom in monomial]
        product: Number = factor if _exact(values) else float(factor)
        for value in sorted(values, key=np.size):
            product = product * value
        products.append(product)
    # A fraction beside an array would make it one of Python objects, which numpy has no functions for.
    return _plain(sum(products) if _exact(products) else sum(map(_inexact, products)))


def _exact(values: Iterable[Number]) -> bool:
    return all(isinstance(value, int | Fraction) for value in values)


def _inexact(value: Number) -> Number:
    return float(value) if isinstance(value, Fraction) else value


def _plain(value: Number) -> Number:
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def _show(monomial: Monomial, factor: int | Fraction) -> str:
    parts = [str(factor)] if factor != 1 or not monomial else []
    return "*".join(parts + [str(atom) for atom in monomial])


def _symbols(atom: Atom) -> frozenset[str]:
    if isinstance(atom, str):
        return frozenset([atom])
    return frozenset().union(*(symbols(arg) for arg in atom.args))


def terms(size: Size) -> Iterable[tuple[Monomial, int | Fraction]]:
    """The monomials of a size and their coefficients; a number is a coefficient of the empty monomial."""
    return size.terms if isinstance(size, Dim) else (((), size),)


def _make(terms: Mapping[Monomial, int | Fraction]) -> Size:
    nonzero = {monomial: _whole(factor) for monomial, factor in terms.items() if factor != 0}
    if not nonzero:
        return 0
    if list(nonzero) == [()]:
        return nonzero[()]
    order = sorted(nonzero.items(), key=_degree) if len(nonzero) > 1 else nonzero.items()
    return Dim(tuple(order))


def _degree(term: tuple[Monomial, int | Fraction]) -> tuple[int, tuple[str, ...]]:
    return -len(term[0]), tuple(map(str, term[0]))


def _whole(value: int | Fraction) -> int | Fraction:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def symbol(name: str) -> Dim:
    """Make a symbolic size, for the shapes of programs that are built by hand.

    Args:
        name: What its value is given by, such as ``B``.

    Returns:
        The size; sums, products and quotients with others and with whole numbers are sizes too.

    Raises:
        UsageError: A name that is no text.

    Example:
        >>> 2 * symbol("B") * (symbol("S") + 1)
        2*B*S + 2*B
    """
    if not isinstance(name, str):
        raise UsageError(f"symbol: expected a name, given {name!r}")
    return Dim((((name,), 1),))


def call(function: str, *args: Number) -> Number:
    """Apply one of :data:`FUNCTIONS`: at once on numbers and arrays, opaquely when an argument is symbolic.

    Raises:
        ShapeError: Functions inside each other more than :data:`DEEPEST` deep.
    """
    if not any(isinstance(arg, Dim) for arg in args):
        return FUNCTIONS[function](*args)
    made = Call(function, args)
    if made.depth > DEEPEST:
        raise ShapeError(f"a size of more than {DEEPEST} {function} inside each other; give the sizes as numbers")
    return Dim((((made,), 1),))


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two sizes."""
    return a if a is b or (isinstance(a, Dim) and a == b) else call("min", a, b)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two sizes."""
    return a if a is b or (isinstance(a, Dim) and a == b) else call("max", a, b)


def ceil_div(a: Number, b: Number) -> Number:
    """``a / b`` rounded up; a polynomial whose coefficients all divide stays one.

    Example:
        >>> ceil_div(8 * symbol("S"), 2), ceil_div(7, 2)
        (4*S, 4)
    """
    exact = a / b if isinstance(a, Dim) and isinstance(b, int) else None
    if isinstance(exact, Dim) and all(isinstance(factor, int) for _, factor in exact.terms):
        return exact
    return call("floordiv", a + b - 1, b) if isinstance(a, Dim) or isinstance(b, Dim) else -(-a // b)


def quotient(a: Size, b: Size) -> Size | None:
    """Divide where ``b`` divides ``a`` exactly, whatever values the symbols have; return ``None`` elsewhere.

    Example:
        >>> B, S = symbol("B"), symbol("S")
        >>> quotient(6 * B * S, 2 * S), quotient(B + 1, 2), quotient(12, 8)
        (3*B, None, None)
    """
    if a == b:
        return 1
    divisor = list(terms(b))
    if len(divisor) != 1 or not divisor[0][1]:
        return None
    (atoms, factor), total = divisor[0], dict[Monomial, int | Fraction]()
    for monomial, coefficient in terms(a):
        rest, share = list(monomial), Fraction(coefficient) / factor
        if share.denominator != 1 or any(monomial.count(atom) < atoms.count(atom) for atom in atoms):
            return None
        for atom in atoms:
            rest.remove(atom)
        total[tuple(rest)] = share
    return _make(total)


def distinct(pool: Number, picks: Number, draws: Number) -> Number:
    """Expected distinct members picked from ``pool`` when each draw picks ``picks`` of them at random.

    ``pool * (1 - (1 - picks / pool) ** draws)``: how many experts' weights a batch of tokens touches.
    """
    return call("distinct", pool, picks, draws)


def share(whole: Number, parts: Number) -> Number:
    """One of so many equal parts, which need not be a whole number.

    Example:
        >>> share(6.5, 2), share(symbol("S"), symbol("B"))
        (3.25, share(S, B))
    """
    return call("share", whole, parts)


def evaluate(size: Number, sizes: Mapping[str, Number]) -> Number:
    """The value of a size, symbolic or not: an array, an integer, or a float where it is no whole number."""
    value = _plain(size.at(sizes) if isinstance(size, Dim) else size)
    return float(value) if isinstance(value, Fraction) else value


def substitute(size: Number, sizes: Mapping[str, Size]) -> Number:
    """Replace some symbols by numbers and keep the others.

    Example:
        >>> substitute(symbol("B") * symbol("S"), {"B": 2}), substitute(symbol("S") / 2, {"S": 8})
        (2*S, 4)
    """
    if not isinstance(size, Dim):
        return size
    total: Number = 0
    for monomial, factor in size.terms:
        total = prod(_substitute_atom(atom, sizes) for atom in monomial) * factor + total
    return _plain(total)


def _substitute_atom(atom: Atom, sizes: Mapping[str, Size]) -> Number:
    if isinstance(atom, str):
        return sizes.get(atom, symbol(atom))
    return call(atom.function, *(substitute(arg, sizes) for arg in atom.args))


def symbols(size: Number) -> frozenset[str]:
    """The symbols in a size; none in a number."""
    return size.symbols if isinstance(size, Dim) else frozenset()


def prod(sizes: Iterable[Number]) -> Number:
    """The product of sizes, 1 for none."""
    total: Number = 1
    for size in sizes:
        total = size * total if isinstance(size, Dim) else total * size
    return total


def by_symbol(sizes: Mapping[str, Number], known: Set[str]) -> dict[str, Any]:
    """Return sizes under a program's own symbols: ``batch``, ``seq`` and ``context`` stand for ``B``, ``S`` and ``C``.

    In a program without S, such as a decode step, ``seq`` is the context. A symbol that is itself called ``batch``
    stays what it is. ``None`` is no size. The values of names that the program does not know are left to the caller.

    Returns:
        Python integers and arrays of float64, as :func:`size_value` makes them.

    Raises:
        UsageError: A word for a size that the program does not have, a size given by both names, or no size.

    Example:
        >>> by_symbol({"batch": 8, "seq": 128, "T": 2}, {"B", "S", "T"})
        {'B': 8, 'S': 128, 'T': 2}
    """
    named: dict[str, Any] = {}
    for name, value in sizes.items():
        symbol = name if name in known else SIZE_WORDS.get(name, name)
        if value is None:
            continue
        if symbol != name and symbol not in known and not (name == "seq" and "C" in known):
            step = "; a decode step has one: phase='decode'" if name == "context" and "S" in known else ""
            raise UsageError(f"{name}={value}: this program has no {name}; its sizes are {size_names(known)}{step}")
        if symbol in named:
            raise UsageError(f"{name}={value}: given twice, as {symbol} and by its word; give one of them")
        named[symbol] = size_value(symbol, value) if symbol in known or symbol in SIZE_WORDS.values() else value
    return named


def size_value(symbol: str, value: Any) -> int | NDArray[np.float64]:
    """Return the value of a size as Python's integer, several as an array of float64: neither wraps nor overflows.

    Args:
        symbol: Of the size, for the message.
        value: As it was given: whole numbers of any type.

    Raises:
        UsageError: Not a whole number from 1 to 10**12, nor an array of them.

    Example:
        >>> size_value("B", np.int8(100)), size_value("C", [1, 2])
        (100, array([1., 2.]))
    """
    called = size_names({symbol})
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iufO":  # text and truth values are no sizes, although numpy would convert them
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{called}={shown(value)} is not a whole number, nor a sequence of them") from None
    if array.size == 0:
        raise UsageError(f"{called} has the shape {array.shape}; give a number or a one-dimensional sequence")
    bad = array[~((array >= 1) & (array <= LARGEST) & (array == np.floor(array)))]
    if bad.size:
        what = f"{called} holds {bad[0]:g}" if array.ndim else f"{called}={shown(value)}"
        raise UsageError(f"{what}: sizes are whole numbers from 1 to 10**12")
    return array if array.ndim else int(array)


def size_names(known: Set[str]) -> str:
    """Say what sizes a program has, each by the word and the symbol that it goes by.

    Example:
        >>> size_names({"B", "C", "frames"})
        'batch (B), context (C), frames'
    """
    words = {symbol: word for word, symbol in SIZE_WORDS.items()}
    return ", ".join(f"{words[name]} ({name})" if name in words else name for name in sorted(known)) or "all fixed"


def unknown_size(name: str, known: Set[str]) -> UsageError:
    """Return the error on a size that a program does not have."""
    if name in _CHANGES:
        return UsageError(f"{name!r} is no size of a program; roofline.what_if(program, {name}=...) changes it first")
    near = did_you_mean(name, [*known, *(word for word, symbol in SIZE_WORDS.items() if symbol in known)])
    return UsageError(f"unknown size {name!r}; this program's sizes are {size_names(known)}{near}")


def python_number(value: Any) -> Any:
    """Return a number of numpy as Python's, which neither wraps nor rounds; anything else as it is.

    Example:
        >>> type(python_number(np.int8(16)))
        <class 'int'>
    """
    return value.item() if isinstance(value, np.generic) else value


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Refuse a value that is not among those allowed.

    Raises:
        UsageError: Names the option, what is allowed and the nearest.
    """
    names = tuple(allowed)
    if value not in names:
        raise UsageError(f"{name}={value!r}; allowed: {', '.join(names)}{did_you_mean(str(value), names)}")
