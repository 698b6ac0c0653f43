"""The figures of accuracy that CI holds, in docs/accuracy.md, and the short table of README.md, taken from there.

``python scripts/accuracy_tables.py`` writes both from ``measurements/recorded.toml``, ``--check`` says which differ.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs" / "accuracy.md", ROOT / "README.md"
_BEGIN, _END = "<!-- accuracy: written by scripts/accuracy_tables.py -->\n", "<!-- end of accuracy -->"

#: Rows of accuracy.md by how their first cell begins: chip and section of what is recorded.
RECORDED = {
    "all operators (": ("h100-sxm", "operators"),
    "H200 with the H100's parameters": ("h200-sxm", "operators"),
    "whole models, regime device": ("h100-sxm", "models, device"),
}
#: The table of README.md: what, the chip, how many settings, the row of accuracy.md, and which of its errors, counted
#: from the last, which the share inside the range belongs to.
SHORT = (
    ("isolated operators", "H100", "780", "all operators (", 1),
    ("isolated operators, nothing fitted", "H200", "771", "H200 with the H100's parameters", 1),
    ("whole models", "H100", "55", "whole models, regime device", 1),
    ("programs that the rules were made with", "H100", "47", "all eager programs", 1),
    ("strangers' programs, half of them unseen by the rules", "H200", "56", "eager programs", 2),
    ("the same, after rules for what they showed", "H200", "56", "eager programs", 1),
    ("strangers' training steps, half unseen", "H200", "8", "training steps | 8", 2),
)


def page(text: str) -> str:
    """Return accuracy.md with what is recorded."""
    recorded = tomllib.loads((ROOT / "measurements" / "recorded.toml").read_text(encoding="utf-8"))
    for label, (chip, section) in RECORDED.items():
        figures = recorded[chip][section]
        error = " / ".join(f"{figures[name]:.1f}" for name in ("mean", "median", "p90"))
        cells = row(text, label)
        new = [*cells[:2], f"{error} %", f"{figures['inside']:.0f} %", f"{figures['spread']:.2f}"]
        text = text.replace(_line(cells), _line(new))
    for chip, sections in recorded.items():
        if (figures := sections.get("operators, warm")) and f"\n| {chip} |" in text:
            cells = row(text, chip)
            error = " / ".join(f"{figures[name]:.1f}" for name in ("mean", "median"))
            new = [*cells[:-3], f"{error} %", f"{figures['inside']:.0f} %", f"{figures['spread']:.2f}"]
            text = text.replace(_line(cells), _line(new))
    return text


def readme(text: str, accuracy: str) -> str:
    """Return README.md with the rows of accuracy.md."""
    lines = [
        "| what was measured | on | settings | error: mean / median / p90 | inside the range |",
        "|---|---|---|---|---|",
    ]
    for what, chip, settings, label, last in SHORT:
        cells = [cell for cell in row(accuracy, label) if cell]
        errors = [at for at, cell in enumerate(cells) if re.match(r"[\d.]+ / ", cell)]
        inside = cells[errors[-1] + 1].partition(" at ")[0] if last == 1 else "–"
        assert settings in " ".join(cells[:2]), f"{label}: {settings} settings, accuracy.md has {cells[:2]}"
        lines.append(f"| {what} | {chip} | {settings} | {cells[errors[-last]]} | {inside} |")
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n".join(["", *lines, ""]) + "\n" + _END + rest.partition(_END)[2]


def row(text: str, label: str) -> list[str]:
    """Return the cells of the row whose first cell begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def main(words: list[str]) -> int:
    """Write or check both."""
    text, short = PAGE.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    new = {PAGE: page(text)}
    new[README] = readme(short, new[PAGE])
    stale = [path for path, old in ((PAGE, text), (README, short)) if new[path] != old]
    for path in stale:
        print(path.relative_to(ROOT))
        if "--check" not in words:
            path.write_text(new[path], encoding="utf-8")
    return int("--check" in words and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
