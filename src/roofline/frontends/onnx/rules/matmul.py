"""Matmuls: MatMul, Gemm, Einsum and their fused forms."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.frontends import emit
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size, prod


def matmul(call: Call) -> Result:
    """``a @ b`` of any ranks."""
    return call.matmul(call.tensor(0), call.tensor(1))


def operand(call: Call, at: int, transposed: str, part: str) -> str:
    """Return an operand, with its last two axes exchanged where an attribute says so."""
    return call.transpose(call.tensor(at), part) if call.attr(transposed, 0) else call.tensor(at)


def _gemm(call: Call) -> Result:
    a = operand(call, 0, "transA", "a_t")
    right = call.tensor(1)
    width = call.b.shape(right)[0 if call.attr("transB", 0) else 1]
    bias = call.tensor(2) if call.has(2) and prod(call.shape(2)) == width and call.attr("beta", 1.0) else None
    starts = [call.view(bias, (width,), "bias")] if bias else []
    out = call.op("linear" if call.attr("transB", 0) else "matmul", a, right, *starts)
    if bias or not call.has(2) or not call.attr("beta", 1.0):
        return out
    return call.op("add", out, call.tensor(2), name=f"{call.name}.bias")


def _activated(call: Call) -> Result:
    """A Gemm with an activation at its end, one kernel."""
    kind = "gelu_tanh" if call.what.endswith("FastGelu") else str(call.attr("activation", "")).lower()
    ops = {"leakyrelu": "relu", "clip": "clamp"}
    with call.b.kernel(call.name):
        out = _gemm(call)
        assert isinstance(out, str)
        return call.op(ops.get(kind, kind), out, name=f"{call.name}.{kind}") if kind else out


def _fused_matmul(call: Call) -> Result:
    """Transposes are the matmul's own; those of the batch move the first axis to the last but one."""
    operands = []
    for at, side in enumerate("AB"):
        x = call.tensor(at)
        rank = len(call.b.shape(x))
        if call.attr(f"transBatch{side}", 0):
            x = call.permute(x, [*range(1, rank - 1), 0, rank - 1], f"batch_{side}")
        operands.append(call.transpose(x, f"{side}_t") if call.attr(f"trans{side}", 0) else x)
    return call.matmul(*operands)


# --- einsum -----------------------------------------------------------------------------------------------------------

#: Letters that stand for the axes of an ellipsis; an equation has only ASCII ones.
_ELLIPSIS = "αβγδεζηθικλμνξοπ"


def _einsum(call: Call) -> Result:
    equation = str(call.attr("equation", "")).replace(" ", "")
    names = call.tensors()
    terms, out = _equation(call, equation, [len(call.b.shape(x)) for x in names])
    left, x = terms[0], names[0]
    for at, (term, y) in enumerate(zip(terms[1:], names[1:], strict=True)):
        later = set("".join(terms[at + 2 :])) | set(out)
        last = at == len(terms) - 2
        left, x = _pair(call, (left, x), (term, y), later, call.name if last else f"{call.name}.step_{at}")
    left, x = _summed(call, (left, x), set(out))
    return call.permute(x, [left.index(letter) for letter in out])


def _equation(call: Call, equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, with letters for the axes of an ellipsis."""
    before, arrow, out = equation.partition("->")
    terms = before.split(",")
    named = [term.replace("...", "") for term in terms]
    if len(terms) != len(ranks) or any(len(set(letters)) != len(letters) for letters in named):
        raise call.missing(f"equation {equation[:80]!r} with a diagonal, or with other operands")
    if not arrow:
        letters = "".join(terms).replace(".", "")
        out = "..." * ("..." in before) + "".join(sorted(each for each in set(letters) if letters.count(each) == 1))
    hidden = [rank - len(letters) for letters, rank in zip(named, ranks, strict=True)]
    most = max((axes for term, axes in zip(terms, hidden, strict=True) if "..." in term), default=0)
    spelled = [term.replace("...", _ELLIPSIS[most - axes : most]) for term, axes in zip(terms, hidden, strict=True)]
    if any(len(term) != rank for term, rank in zip(spelled, ranks, strict=True)):
        raise ShapeError(f"{call.name}: equation {equation[:80]!r} does not fit operands of {list(ranks)} axes")
    return spelled, out.replace("...", _ELLIPSIS[:most])


_Term = tuple[str, str]


def _summed(call: Call, term: _Term, needed: set[str]) -> _Term:
    """Sum over the axes that nobody needs."""
    letters, x = term
    axes = [at for at, letter in enumerate(letters) if letter not in needed]
    if not axes:
        return term
    rest = "".join(letter for letter in letters if letter in needed)
    return rest, emit.reduce(call.b, "sum", x, axes, name=call.label("sum"))


def _pair(call: Call, a: _Term, b: _Term, later: set[str], name: str) -> _Term:
    """Contract two operands in one batched matmul."""
    a, b = _summed(call, a, later | set(b[0])), _summed(call, b, later | set(a[0]))
    shared = [letter for letter in a[0] if letter in b[0]]
    batch = [letter for letter in shared if letter in later]
    inner = [letter for letter in shared if letter not in later]
    if not inner:
        return _outer(call, a, b, name)
    rows = [letter for letter in a[0] if letter not in shared]
    columns = [letter for letter in b[0] if letter not in shared]
    sizes = dict(zip(a[0], call.b.shape(a[1]), strict=True)) | dict(zip(b[0], call.b.shape(b[1]), strict=True))
    left = _grouped(call, a, [batch, rows, inner], sizes)
    right = _grouped(call, b, [batch, inner, columns], sizes)
    out = emit.matmul(call.b, left, right, name=name)
    letters = [*batch, *rows, *columns]
    return "".join(letters), call.view(out, [sizes[letter] for letter in letters], "axes")


def _grouped(call: Call, term: _Term, groups: Sequence[Sequence[str]], sizes: dict[str, Size]) -> str:
    """Return a term with its batch axes as they are, rows and columns as one axis each."""
    letters, x = term
    matrix = call.permute(x, [letters.index(letter) for group in groups for letter in group])
    joined = [prod(sizes[each] for each in group) for group in groups[1:]]
    return call.view(matrix, [*(sizes[each] for each in groups[0]), *joined], "mat")


def _outer(call: Call, a: _Term, b: _Term, name: str) -> _Term:
    """Multiply element by element: nothing is summed."""
    letters = a[0] + "".join(letter for letter in b[0] if letter not in a[0])
    spread = []
    for own, x in (a, b):
        ordered = call.permute(x, [own.index(letter) for letter in letters if letter in own])
        shape = iter(call.b.shape(ordered))
        spread.append(call.view(ordered, [next(shape) if letter in own else 1 for letter in letters], "spread"))
    return letters, call.op("mul", *spread, name=name)


RULES: dict[str, Rule] = {
    "MatMul": matmul, "Gemm": _gemm, "Einsum": _einsum, "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.TransposeMatMul": _fused_matmul, "com.microsoft.FusedGemm": _activated,
    "com.microsoft.GemmFastGelu": _activated,
}  # fmt: skip
