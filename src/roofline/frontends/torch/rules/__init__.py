"""What each aten operator is in roofline's words; one module a class, each with a table ``RULES`` by operator name."""

from __future__ import annotations

from roofline.frontends.torch.lower import Rule
from roofline.frontends.torch.rules import (
    attention,
    contractions,
    moves,
    norms,
    pointwise,
    recurrent,
    reductions,
    views,
)

#: The rule of each operator, by its name without namespace and overload. An operator that ends in ``_`` and has none
#: is that of the name without it, written in place.
RULES: dict[str, Rule] = {
    **views.RULES, **pointwise.RULES, **contractions.RULES, **attention.RULES, **norms.RULES, **reductions.RULES,
    **moves.RULES, **recurrent.RULES,
}  # fmt: skip
