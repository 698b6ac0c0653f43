"""Notebooks as pages of the site, with the outputs that they keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the address and the text of a page for each notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        yield f"notebooks/{path.stem}.md", page(json.loads(path.read_text(encoding="utf-8")), path.name)


def page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts += [f"```python\n{source}\n```", *map(_output, cell["outputs"])]
    return "\n\n".join([*parts, f"The notebook is `notebooks/{name}`; everything in it runs as it stands.", ""])


def _output(output: dict[str, Any]) -> str:
    """Return what a cell printed or showed: a picture, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="What the cell draws" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        return '<div class="shown">\n' + "\n".join(line for line in lines if line.strip()) + "\n</div>"
    text = "".join(output.get("text", data.get("text/plain", [])))
    return f"```text\n{text.rstrip()}\n```"
