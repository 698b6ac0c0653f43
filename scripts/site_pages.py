"""Pages that the site makes: those of files that lie elsewhere, the commands, and every public name of the library.

A hook of MkDocs (``mkdocs.yml``).
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from collections.abc import Iterator
from inspect import isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import roofline as rl
from roofline.cli.app import EXAMPLES
from roofline.cli.commands import app

sys.path.insert(0, str(Path(__file__).parent))
import site_notebooks
from site_docstrings import markdown

ROOT = Path(__file__).resolve().parent.parent
#: Files of the repository that are pages too, and their addresses.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "measurements/README.md": "measurements.md",
}
_LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for page, text in _made():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of a page lead to the site's copy of what they name."""
    return _relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _made() -> Iterator[tuple[str, str]]:
    for source, page in ELSEWHERE.items():
        yield page, _relinked((ROOT / source).read_text(encoding="utf-8"), source, page)
    yield from site_notebooks.pages()
    yield "reference/commands.md", commands()
    yield "reference/roofline.md", names("roofline", rl)
    for space in rl.__all__:
        if isinstance(module := getattr(rl, space), ModuleType):
            yield f"reference/{space}.md", names(f"roofline.{space}", module)


def _relinked(text: str, source: str, page: str) -> str:
    """Return a page of the repository with its links as they are from its place in the site."""

    def relink(link: re.Match[str]) -> str:
        path, anchor = link[2], link[3] or ""
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = ELSEWHERE.get(target, target.removeprefix("docs/"))
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor}{link[4]}"

    return _LINK.sub(relink, text)


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return the page of all commands, from what parses them."""
    parser = typer.main.get_command(app)
    parts = [
        "# Commands\n\n"
        "What `roofline COMMAND --help` says, of every command. Options that several share, exit codes, and what is "
        "read and written: [What commands share](../command-line.md).\n"
    ]
    panel = ""
    for name, command in parser.commands.items():  # type: ignore[attr-defined]
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"\n## {panel}\n")
        parts.append(_command(name, command))
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    """Return what the help of a command says: what it does, a call, its options by group."""
    usage = command.get_usage(typer.Context(command, info_name=f"roofline {name}")).removeprefix("Usage: ")
    rows, panel = ["| option | value | meaning |", "|---|---|---|"], None
    for each in command.params:
        if each.rich_help_panel not in (panel, None):
            panel = each.rich_help_panel
            rows.append(f"| **{panel}** | | |")
        rows.append(_option(each))
    call = ["```txt", " ".join(usage.split()), "```", "", "For example:", "", "```sh", EXAMPLES[name], "```"]
    return "\n".join([f"### roofline {name}", "", (command.help or "").strip(), "", *call, "", *rows, ""])


def _option(option: Any) -> str:
    argument = option.param_type_name == "argument"
    names = [option.metavar.strip("[]")] if argument else [*option.opts, *option.secondary_opts]
    value = f"`{option.metavar}`" if option.metavar and not argument else ""
    words = html.escape(" ".join((option.help or "").replace("\\[", "[").split()), quote=False)
    cells = [", ".join(f"`{each}`" for each in names), value, re.sub(r"([*_|`])", r"\\\1", words)]
    return f"| {' | '.join(cells)} |"


# --- names ------------------------------------------------------------------------------------------------------------


def names(prefix: str, module: ModuleType) -> str:
    """Return the page of a namespace: what it is for and each of its names."""
    public = {name: getattr(module, name) for name in module.__all__}
    spaces = [name for name, value in public.items() if isinstance(value, ModuleType)]
    parts = [f"# {prefix}", "", _about(module), ""]
    if spaces:
        listed = ", ".join(f"[`rl.{name}`]({name}.md)" for name in spaces)
        parts += [f"Namespaces: {listed}.", ""]
    kinds = {"Functions": isfunction, "Classes": isclass, "Data": lambda value: not callable(value)}
    for title, is_kind in kinds.items():
        members = [name for name, value in public.items() if name not in spaces and is_kind(value)]
        parts += [f"## {title}", ""] if members else []
        for name in members:
            heading = f"{prefix.replace('roofline', 'rl', 1)}.{name}"
            if module is not rl and name in rl.__all__:
                parts += [f"### {heading}", "", f"The same as [`rl.{name}`](roofline.md).", ""]
                continue
            home = module.__name__ if title == "Data" else public[name].__module__
            parts += [f"::: {home}.{name}", "    options:", f"      heading: {heading}", ""]
    return "\n".join(parts)


def _about(module: ModuleType) -> str:
    """Return the docstring of a module as Markdown."""
    return markdown(re.sub(r"::$", ":", (module.__doc__ or "").strip(), flags=re.MULTILINE))
