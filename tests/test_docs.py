"""What the pages show works as pasted, prints what it shows, and leads to where it says."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from profiles import LONG

import roofline as rl
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster
from roofline.hardware.parts import Efficiency, Fallback, Link, MemoryLevel, Peak
from roofline.programs.modelfile import ModelFile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
outputs, tables, drawing = map(importlib.import_module, ("outputs", "accuracy_tables", "architecture_drawing"))
sys.path.pop(0)

TEXTS: dict[str, str] = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in outputs.PAGES}
#: The command lines of all pages that measure this machine for half a minute.
CALIBRATE = sorted({
    line.partition("#")[0].strip()
    for text in TEXTS.values() for line in text.splitlines() if line.startswith("roofline calibrate ")
})  # fmt: skip
#: Options that need a device or a chip of one's own.
_ELSEWHERE = ("--device", "--like")


@pytest.mark.parametrize("page", TEXTS)
def test_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    """After a change of what is printed: ``python scripts/outputs.py``."""
    assert outputs.renewed(TEXTS[page], tmp_path, slow=LONG) == TEXTS[page]


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_of_a_page_is_of_a_kind_that_is_checked(page: str) -> None:
    fences = re.findall(r"^ *```.*$", TEXTS[page], re.MULTILINE)
    assert all(fence == fence.lstrip() for fence in fences), "an indented block is not seen"
    for opening in fences[::2]:
        language, _, title = opening[3:].partition(" ")
        assert language in ("python", "console", "sh", "text", "txt", "py") or title.startswith('title="'), opening
    assert set(fences[1::2]) <= {"```"}


@pytest.mark.skipif(
    not LONG or "PYTEST_XDIST_WORKER" in os.environ, reason="measures this machine, which it needs for itself"
)
@pytest.mark.parametrize("line", CALIBRATE)
def test_calibrate_of_the_pages_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that others keep busy is refused, so that this runs by itself (scripts/test)."""
    if any(option in line for option in _ELSEWHERE):
        pytest.skip("needs a device of its own")
    monkeypatch.chdir(tmp_path)
    code, _, said = outputs._roofline(line.split()[1:])
    assert code == 0, said


def test_tables_of_the_page_on_what_ifs_are_what_the_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the time model: ``python benchmarks/whatif_tables.py --write``."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    whatif = importlib.import_module("whatif_tables")
    text = whatif.PAGE.read_text(encoding="utf-8")
    assert whatif.page(text) == text


def test_figures_of_accuracy_are_those_that_are_recorded() -> None:
    """After ``roofline validate --record``: ``python scripts/accuracy_tables.py``."""
    accuracy, readme = TEXTS["docs/accuracy.md"], TEXTS["README.md"]
    assert tables.page(accuracy) == accuracy
    assert tables.readme(readme, accuracy) == readme


def test_the_page_on_files_names_every_key() -> None:
    text = TEXTS["docs/files.md"]
    for kind in (Chip, Peak, MemoryLevel, Link, Fallback, Efficiency, Cluster, ModelFile):
        sections = "|".join(kind.model_fields)
        named = set(re.findall(rf"`\[*({sections})(?:\.FORMAT)?\]*`", text))
        assert named == set(kind.model_fields), (kind, set(kind.model_fields) - named)


def test_readme_says_of_verdicts_what_their_page_says() -> None:
    said, page = (
        re.search(r"(?m)^O[nf] (?:the )?301 programs.*\n.*", TEXTS[name]) for name in ("README.md", "docs/diagnosis.md")
    )
    assert said
    assert page
    assert set(re.findall(r"\d+", said[0])) <= set(re.findall(r"\d+", page[0]))


def test_readme_counts_what_ships() -> None:
    least = int(re.findall(r"over (\d+) chips and \1 models", TEXTS["README.md"])[0])
    assert least < len(rl.chips()) < least + 10
    assert least < len(rl.models())


def test_drawing_of_the_architecture_names_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "roofline").glob("*/__init__.py")}
    for ground in drawing.GROUNDS:
        shown = drawing.drawing(ground)
        assert shown == (ROOT / "docs" / "images" / f"architecture-{ground}.svg").read_text(encoding="utf-8")
        assert packages <= set(re.findall(r"(\w+)/", shown))


def test_readme_answers_the_four_questions() -> None:
    asked = {line.split()[2] for line in TEXTS["README.md"].splitlines() if line.startswith("$ roofline ")}
    assert asked >= {"estimate", "check", "batch", "plot"}


# --- links ------------------------------------------------------------------------------------------------------------


def _anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _links(text: str) -> list[str]:
    bare = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", bare) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", TEXTS)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in _links(TEXTS[page]):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists() or _is_made(page, path), f"{page} links to {link}, which is not there"
        if anchor and target.suffix == ".md" and target.exists():
            assert anchor in _anchors(target.read_text(encoding="utf-8")), f"{page} links to {link}: no such heading"


def _is_made(page: str, path: str) -> bool:
    """Tell whether a link is to a page that the site makes."""
    made = (ROOT / page).parent / path
    return os.path.normpath(made).startswith(str(ROOT / "docs" / "reference") + os.sep) and made.suffix == ".md"


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "docs/compile.md"])  # which cites files of PyTorch
def test_files_that_a_page_names_are_there(page: str) -> None:
    bare = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`(?:python )?([\w-]+/[\w./-]*\w\.(?:py|csv|toml|md|json|txt|yml))`", bare):
        places = (ROOT, ROOT / "src", ROOT / "src" / "roofline", ROOT / "measurements", ROOT / "docs")
        foreign = name.startswith(("torch/", "c10/")) or "NAME" in name
        assert foreign or any((place / name).exists() for place in places), name


@pytest.mark.parametrize("page", TEXTS)
def test_names_of_the_library_that_a_page_writes_exist(page: str) -> None:
    for name in re.findall(r"`(?:rl|roofline)\.([a-z]\w*(?:\.\w+)*)", TEXTS[page]):
        value: Any = rl
        for part in name.split("."):
            if isinstance(value, ModuleType):
                if not hasattr(value, part):
                    importlib.import_module(f"{value.__name__}.{part}")
                value = getattr(value, part)


def test_every_page_has_its_place_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.removeprefix("docs/") for page in TEXTS if page.startswith("docs/")]
    pages += [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    orphans = [page for page in pages if f" {page}\n" not in site]
    assert not orphans
