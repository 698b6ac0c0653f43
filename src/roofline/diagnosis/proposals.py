"""What to do about an operator of a trace: a table by what bounds it, its class, its format and how slow it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from roofline.diagnosis.causes import FIXES
from roofline.diagnosis.groups import Group
from roofline.diagnosis.reference import faster

#: From this many times the expected time on, an operator is slow.
SLOW = 1.6
ABOVE = "above the roof: wrong chip, format or cache? a figure that cannot be is not to be trusted"
NO_FORMULA = "no formula for it: compare it with its own best run"


@dataclass(frozen=True)
class Advised:
    """A case and what helps; an empty set is any.

    Attributes:
        bounds: What bounds it.
        kinds: Its class.
        dtypes: Its format.
        slow: Whether it is far slower than expected.
        text: What to do.
        needs: A format that the chip has to be faster in.
    """

    bounds: frozenset[str]
    kinds: frozenset[str]
    dtypes: frozenset[str]
    slow: bool
    text: str
    needs: str = ""

    def fits(self, one: Group, bound: str, dtype: str, slow: bool) -> bool:
        """Whether an operator is the case."""
        pairs = ((self.bounds, bound), (self.kinds, one.kind), (self.dtypes, dtype))
        own = all(not allowed or value in allowed for allowed, value in pairs)
        return own and self.slow == slow and (not self.needs or faster(one.chip, self.needs, dtype))


def _case(bounds: str, kinds: str, dtypes: str, text: str, slow: bool = False, needs: str = "") -> Advised:
    return Advised(frozenset(bounds.split()), frozenset(kinds.split()), frozenset(dtypes.split()), slow, text, needs)


#: What is said before the advice to an operator that is as fast as expected: by the share that it reaches of its roof.
NEAR = 0.75
_PLACE = {True: "at its roof", False: "as fast as such kernels get"}

#: The first that fits counts.
CASES: tuple[Advised, ...] = (
    _case("compute", "", "", "far below its roof: look at clocks, row lengths and the kernel chosen", slow=True),
    _case("memory", "matmul moe", "", "far below the bandwidth: look at the layout of its operands, or batch more",
          slow=True),
    _case("memory", "", "", "far below the bandwidth: look at strides, row lengths and the order of the axes",
          slow=True),
    _case("launch", "", "", "small and slow: batch its calls, or use a kernel made for this size", slow=True),
    _case("compute", "matmul conv moe", "fp32 fp64", "cast to bf16, or allow tf32", needs="bf16"),
    _case("compute", "matmul conv moe", "tf32", "cast to bf16", needs="bf16"),
    _case("compute", "matmul moe", "bf16 fp16", "fewer FLOPs or a narrower format (fp8)", needs="fp8"),
    _case("compute", "attention", "", "a causal mask, a window or a shorter sequence"),
    _case("compute", "", "", "fewer FLOPs, or a chip with more of them"),
    _case("memory", "matmul moe conv", "", "batch more, or keep operands in a narrower format"),
    _case("memory", "attention", "", "fewer key-value heads, or a narrower cache"),
    _case("memory", "pointwise rowwise reduction", "", "fuse it with its neighbours (torch.compile)"),
    _case("memory", "move", "", "avoid the copy, with a view or by writing in place"),
    _case("memory", "", "", "move less, in a narrower format"),
    _case("launch", "", "", "too small to fill the chip: batch it, fuse it, or replay a CUDA graph"),
    _case("communication", "", "", FIXES["communication"]),
)  # fmt: skip


def proposal(one: Group, bound: str, dtype: str, label: str, above: bool, reached: float) -> str:
    """What to do about an operator, in a sentence.

    Args:
        one: Its calls.
        bound: What bounds it.
        dtype: Its format.
        label: What a rule says it lost time to.
        above: Whether it was faster than its roof.
        reached: Share of its roof; nan where it has none.
    """
    if above:
        return ABOVE
    if label in FIXES:
        return FIXES[label]
    if not bound:
        return NO_FORMULA if one.op and one.graph is None else ""
    ratio = one.seconds / one.expected if one.expected else float("nan")
    slow = not isnan(ratio) and ratio > SLOW
    text = next((case.text for case in CASES if case.fits(one, bound, dtype, slow)), "")
    return f"{_PLACE[reached >= NEAR]}: {text}" if text and bound in ("compute", "memory") and not slow else text
