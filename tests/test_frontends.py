"""What all frontends share: names of pointwise operators, the call that a rule gets, errors that say where."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.frontends.aliases import _SPELLINGS, POINTWISE
from roofline.frontends.call import UNKNOWN, BaseCall, located, unknown
from roofline.ir.sizes import one_of


class Call(BaseCall):
    """A call of no framework at all."""

    def __init__(self, b: rl.ops.Builder, name: str) -> None:
        self.b, self.what, self.name, self.dtype = b, name, name, "fp16"


def test_every_name_of_a_pointwise_operator_stands_in_one_row() -> None:
    names = [name for row in _SPELLINGS.values() for name in row.split()]
    assert len(names) == len(set(names)) == len(POINTWISE)


def test_every_row_is_an_operator_or_a_number() -> None:
    for what in _SPELLINGS:
        assert what in rl.ops.OPS if isinstance(what, str) else what >= 0


def test_a_function_of_rows_runs_along_any_axis() -> None:
    b = rl.ops.Builder("rows", "fp32")
    call = Call(b, "softmax")
    out = call.along(1, lambda x: call.op("softmax", x), b.input("x", (2, 3, 5)))
    assert b.shape(out) == (2, 3, 5)
    assert [node.op for node in b.nodes] == ["permute", "softmax", "permute"]
    assert b.tensor(out).dtype == "fp16"


def test_what_changes_nothing_adds_no_node() -> None:
    b = rl.ops.Builder("views", "fp32")
    call, x = Call(b, "view"), b.input("x", (2, 3))
    assert call.view(x, (2, 3)) == call.permute(x, (0, 1)) == call.part(x, (2, 3)) == call.expand(x, (2, 3)) == x
    assert b.nodes == ()
    assert b.shape(call.transpose(x)) == (3, 2)


def test_an_operation_without_a_rule_is_an_error_or_a_node() -> None:
    b = rl.ops.Builder("unknown", "fp32")
    x = b.input("x", (4,))
    with pytest.raises(rl.errors.UnknownOp, match=r"line 3: no rule for cosh2; did you mean cosh, "):
        unknown(b, "cosh2", [x], (4,), policy="error", where="line 3", known=POINTWISE)
    assert b.nodes == ()
    unknown(b, "cosh2", [x], (4,), policy="report", where="line 3")
    assert [(node.op, dict(node.attrs)["what"]) for node in b.nodes] == [("unknown", "cosh2")]


def test_a_choice_names_what_is_allowed() -> None:
    one_of("unknown", "report", UNKNOWN)
    with pytest.raises(rl.errors.UsageError, match=r"unknown='reprot'; allowed: error, report; did you mean report\?"):
        one_of("unknown", "reprot", UNKNOWN)


def test_an_error_says_once_where_it_happened() -> None:
    placed = located(rl.errors.ShapeError("sizes differ"), "net", "aten.add", "aten.add")
    assert (type(placed), str(placed)) == (rl.errors.ShapeError, "net: aten.add: sizes differ")
    assert located(placed, "net", "aten.add", "aten.add") is placed
