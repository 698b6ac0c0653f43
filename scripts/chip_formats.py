"""The table of ``docs/chips.md``: how each shipped chip multiplies each number format.

``python scripts/chip_formats.py`` writes it anew; ``tests/test_chips_data.py`` holds the page against the chips' files.
"""

from __future__ import annotations

import re
from pathlib import Path

import roofline as rl
from roofline.ir.units import format_si

PAGE = Path(__file__).parent.parent / "docs" / "chips.md"
FORMATS = ("bf16", "fp16", "fp32", "int8", "fp8")
_BEGIN, _END = "<!-- formats: written by scripts/chip_formats.py -->\n", "<!-- end of formats -->"


def cell(chip: rl.Chip, dtype: str) -> str:
    """Say how a chip multiplies a format: its own rate, what it runs as, or that it is refused."""
    try:
        rate = format_si(chip.matmul_peak(dtype), "")
    except rl.errors.MissingFigure:
        return "refused"
    if dtype in chip.fallback:
        return f"{rate} as {chip.matmul_format(dtype)}"
    return rate if dtype in chip.matrix else f"{rate}, vector"


def reasons(chip: rl.Chip) -> list[str]:
    """Say why each fallback is one, a line for all formats of the same reason."""
    return [f"{chip.matmul_runs_as(dtype)}: {fallback.source}" for dtype, fallback in chip.fallback.items()]


def tables() -> str:
    """Return the table of rates [FLOP/s] and the reasons of fallbacks with their sources."""
    chips = [rl.chip(name) for name in rl.chips()]
    lines = [f"| chip | {' | '.join(FORMATS)} |", f"|---|{'---|' * len(FORMATS)}"]
    lines += [f"| {chip.name} | {' | '.join(cell(chip, dtype) for dtype in FORMATS)} |" for chip in chips]
    why: dict[str, list[str]] = {}
    for chip in chips:
        for text in reasons(chip):
            why.setdefault(text, []).append(chip.name)
    lines += ["", "Fallbacks, with their sources:", ""]
    return "\n".join([*lines, *(f"- {', '.join(names)}: {text}" for text, names in why.items()), ""])


def page(text: str) -> str:
    """Return the page with its tables as they should be."""
    return re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: f"{_BEGIN}{tables()}{_END}", text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
