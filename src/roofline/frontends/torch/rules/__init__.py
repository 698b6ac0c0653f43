"""What each aten operator is in roofline's words; one module a class, each with a table ``ROWS`` by operator name."""

from __future__ import annotations

from roofline.frontends.torch.rules import (  # fmt: skip
    attention,
    contractions,
    moves,
    norms,
    pointwise,
    quantised,
    recurrent,
    reductions,
    views,
)
from roofline.frontends.torch.walk import Row, Rule

#: What is known of each operator, by its name without namespace and overload. An operator that ends in ``_`` and has
#: no row is that of the name without it, written in place.
ROWS: dict[str, Row] = {
    **views.ROWS, **pointwise.ROWS, **contractions.ROWS, **attention.ROWS, **norms.ROWS, **reductions.ROWS,
    **moves.ROWS, **recurrent.ROWS, **quantised.ROWS,
}  # fmt: skip

RULES: dict[str, Rule] = {name: row.rule for name, row in ROWS.items()}
