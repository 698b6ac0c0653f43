"""The pictures of the pages, on light and on dark ground: ``python scripts/pictures.py [NAME ...]`` draws them anew."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import roofline as rl

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"


def _roofline() -> rl.charts.Roofline:
    est = rl.estimate("llama-3-8b", "h100-sxm", phase="decode", batch=32, context=2048, mode="graph")
    return rl.charts.plot_roofline(est)


#: A chart by the name of its pictures.
PICTURES: dict[str, Callable[[], rl.charts.Roofline]] = {"roofline": _roofline}


def main(names: list[str]) -> None:
    """Draw the pictures that are named, all without a name."""
    for name in names or PICTURES:
        chart = PICTURES[name]()
        for ground in ("light", "dark"):
            chart.save(FOLDER / f"{name}-{ground}.png", dpi=150, dark=ground == "dark")


if __name__ == "__main__":
    main(sys.argv[1:])
