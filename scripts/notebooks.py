"""The notebooks, run from a clean state, with their outputs kept.

``python scripts/notebooks.py [NAME ...]`` runs them and keeps what they print and draw; ``--check`` runs them and says
where what they print is not what is kept. Cells with the tag ``measured`` print what this machine took: they run and
are not compared. Needs the extra ``notebooks``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
#: Forms of an output that are compared, and those that are not kept: a picture is kept once.
COMPARED, DROPPED = ("text/plain", "text/html"), ("image/svg+xml",)
#: Seconds that a cell may take.
PATIENCE = 300


def run(path: Path) -> Any:
    """Return a notebook with what its cells print in a new kernel."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            for form in DROPPED if "image/png" in output.get("data", {}) else ():
                output.data.pop(form, None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def texts(cell: Any) -> list[str]:
    """Return what a cell prints, without pictures."""
    if cell.cell_type != "code" or "measured" in cell.metadata.get("tags", ()):
        return []
    outputs = cell.get("outputs", ())
    streams = ["".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")]
    return [*streams, *(output.data[form] for output in outputs for form in COMPARED if form in output.get("data", {}))]


def differences(kept: Any, found: Any) -> Iterator[str]:
    """Say which cells print something else than what is kept."""
    for at, (before, after) in enumerate(zip(kept.cells, found.cells, strict=True)):
        if texts(before) != texts(after):
            yield f"cell {at}: kept {texts(before)}, now {texts(after)}"


def main(words: list[str]) -> int:
    """Run notebooks; return 1 where a kept output is out of date."""
    names = [word for word in words if not word.startswith("-")]
    paths = [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    stale = 0
    for path in paths:
        notebook = run(path)
        if "--check" in words:
            for line in differences(nbformat.read(path, as_version=4), notebook):
                stale = 1
                print(f"{path.name}: {line}")
        else:
            nbformat.write(notebook, path)
            print(path)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
