"""The exception tree: everything raised on purpose is one kind, and a builtin one besides."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.ir.errors import did_you_mean

BUILTIN = {
    "UsageError": ValueError, "UnitError": ValueError, "ShapeError": ValueError, "UnboundSize": ValueError,
    "UnknownOp": LookupError, "UnknownChip": LookupError, "UnknownModel": LookupError, "UnknownDType": LookupError,
    "MissingFigure": LookupError, "MissingExtra": ImportError,
}  # fmt: skip
ALL = [value for value in vars(rl.errors).values() if isinstance(value, type) and issubclass(value, rl.RooflineError)]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_in_the_tree_documented_and_public(error: type[Exception]) -> None:
    assert error is rl.RooflineError or getattr(rl.errors, error.__name__) is error
    assert error.__doc__
    assert error.__name__ in (rl.errors.__doc__ or "")
    assert issubclass(error, BUILTIN.get(error.__name__, Exception))


def test_one_except_catches_all() -> None:
    for make in (
        lambda: rl.chip("no such chip"),
        lambda: rl.model("no such model"),
        lambda: rl.ops.dtype("no such format"),
    ):
        with pytest.raises(rl.RooflineError):
            make()


def test_near_names() -> None:
    assert did_you_mean("h100sxm", ["h100-sxm", "a100"]) == "; did you mean h100-sxm?"
    assert did_you_mean("LLAMA", ["llama-3-8b", "gpt2"]) == "; did you mean llama-3-8b?"
    assert did_you_mean("VMEN", ["HBM", "VMEM"]) == "; did you mean VMEM?"
    assert did_you_mean("zzz", ["h100-sxm"]) == ""
    assert did_you_mean("", ["h100-sxm"]) == ""
    assert did_you_mean("ab", ["abc", "abd", "abe", "abf", "abg"], limit=2).count(",") == 1
