"""A listing as one HTML page that needs nothing but itself: a drawing, a tree, a table to search and sort."""

from __future__ import annotations

from typing import Any

from roofline.view.listing import drawing as drawn
from roofline.view.listing.rows import Listed
from roofline.view.listing.text import faults, heading, notes, subheading, sums
from roofline.view.pages.render import render


def page(listed: Listed) -> str:
    """Return the whole page."""
    size = {"box_width": drawn.BOX_WIDTH, "box_height": drawn.BOX_HEIGHT}
    return render("listing", drawing=drawn.drawing(listed), **size, **_shown(listed))


def fragment(listed: Listed) -> str:
    """Return the sums and the tree for a notebook, without a script."""
    return render("fragment", **_shown(listed))


def _shown(listed: Listed) -> dict[str, Any]:
    return {
        "listing": listed, "title": heading(listed), "subtitle": subheading(listed), "sums": sums(listed),
        "faults": list(faults(listed)), "notes": list(notes(listed)),
    }  # fmt: skip
