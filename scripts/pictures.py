"""The pictures of the gallery, on light and on dark ground: ``python scripts/pictures.py [NAME ...]`` draws them anew.

A picture is drawn by the code above it in ``docs/gallery.md``, which names its chart ``chart``.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
GROUNDS = ("light", "dark")
#: A block of code, and the file behind it without its ground: ``images/roofline``, ``png``.
_PICTURE = re.compile(r"```python\n(.*?)```\n\n!\[[^\]]*\]\((images/[\w-]+)-light\.(\w+)#", re.DOTALL)


def pictures() -> dict[str, tuple[str, str]]:
    """Return the code and the suffix of each picture by its name."""
    found = _PICTURE.findall(PAGE.read_text(encoding="utf-8"))
    return {Path(path).name: (code, suffix) for code, path, suffix in found}


def chart_of(code: str) -> Any:
    """Run the code of a picture and return its chart."""
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["chart"]


def files(name: str, suffix: str) -> list[Path]:
    """Return where a picture is, on each ground."""
    return [ROOT / "docs" / "images" / f"{name}-{ground}.{suffix}" for ground in GROUNDS]


def main(names: list[str]) -> None:
    """Draw the pictures that are named, all without a name."""
    os.chdir(ROOT)
    known = pictures()
    for name in names or known:
        code, suffix = known[name]
        chart = chart_of(code)
        for path, ground in zip(files(name, suffix), GROUNDS, strict=True):
            chart.save(path, dpi=150, dark=ground == "dark")


if __name__ == "__main__":
    main(sys.argv[1:])
