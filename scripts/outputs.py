"""What pages show is what is printed: run the code and the commands of every page, and write their outputs.

``python scripts/outputs.py [PAGE ...]`` writes the outputs anew, ``--check`` only says which differ. A fenced block is

- ``python``: runs by itself, in a folder of the page's own; a block ``text`` right behind it is what it prints;
- ``console``: commands behind ``$``, with what each prints below; a backslash continues one;
- ``sh``: commands that run too, but print nothing here;
- of any language with ``title="FILE"``: saved as that file for what stands below; one that is ``python`` does not run;
- ``py``: an excerpt of the library, which has to be there to the letter;
- ``txt``: drawn by hand, or written by the script that a comment above it names.

Commands are those of roofline, and :data:`SHELL`. What :data:`ELSEWHERE` lists takes minutes, a network or a reader,
and only has to name files and extras that are there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from roofline.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: Folders that pages read from.
_SHARED = ("benchmarks", "examples", "measurements", "notebooks", "tests")
#: Commands of the shell that pages use; scripts of a page change tables of the library, in a process of their own.
SHELL = ("cat", "cut", "head", "ls", "python")
#: What is not run: installs, what works on the whole checkout, what measures the machine or waits for a reader.
ELSEWHERE = re.compile(r"(scripts/|\.venv/|pip |git |python (-m|scripts/)|roofline (calibrate|explore|--install)|dot )")
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_OPTIONAL = ("torch", "transformers", "onnx", "onnxscript", "jax", "dash", "openpyxl")


class Missing(Exception):
    """A block needs a framework that is not installed."""


def renewed(text: str, folder: Path, slow: bool = True) -> str:
    """Return a page with its outputs as they are now.

    Args:
        text: The page.
        folder: Where its files are written and its commands run.
        slow: Whether scripts of benchmarks run too; else what they print stays as it is.
    """
    for name in _SHARED:
        (folder / name).symlink_to(ROOT / name)
    parts, end, printed = [], 0, None
    with contextlib.chdir(folder), _environment():
        for block in _FENCE.finditer(text):
            language, title, body = block.groups()
            parts.append(text[end : block.start(3)])
            behind = not text[end : block.start()].strip("`\n")
            end = block.end(3)
            try:
                if slow or not body.startswith("$ python benchmarks/"):
                    body, printed = _block(language, title, body, printed if behind else None)
            except Missing:
                printed = None
            parts.append(body)
    return "".join(parts) + text[end:]


def _block(language: str, title: str | None, body: str, printed: str | None) -> tuple[str, str | None]:
    """Run or save a block; return it as it should be, and what it printed."""
    if title:
        Path(title).parent.mkdir(parents=True, exist_ok=True)
        Path(title).write_text(body, encoding="utf-8")
    elif language == "python":
        return body, python(body)
    elif language == "console":
        return console(body), None
    elif language == "sh":
        for line in commands(body):
            run(line)
    elif language == "py":
        assert _is_excerpt(body), f"not in src any more: {body[:60]}"
    elif language == "text":
        assert printed is not None or _lacks_any(), f"output of nothing: {body[:60]}"
        return (body if printed is None else printed), None
    return body, None


def python(code: str) -> str:
    """Run a block and return what it prints."""
    _require(code)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, code, "exec"), {"__name__": "__main__"})
    return _tidy(out.getvalue())


def console(body: str) -> str:
    """Run the commands of a block and return it with what they print."""
    lines, code = [], 0
    for command in re.findall(r"^\$ (?:.*\\\n)*.*$", body, re.MULTILINE):
        lines.append(command)
        if command == "$ echo $?":
            lines.append(str(code))
            continue
        code, out = run(re.sub(r"\\\n *", "", command).removeprefix("$ "))
        lines += out.splitlines()
    return "".join(f"{line}\n" for line in lines)


def commands(body: str) -> Iterator[str]:
    """Yield the commands of a block that is no session."""
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def run(line: str) -> tuple[int, str]:
    """Run a command as a shell would, in this process where it is roofline's; return its exit code and output.

    Raises:
        AssertionError: It ends in a fault of roofline, or is none of the commands that may stand in a page.
    """
    first, _, pipe = line.partition(" | ")
    words = shlex.split(first, comments=True)
    if ELSEWHERE.match(line):
        _named(words)
        return 0, ""
    for name in words:
        if name.partition(":")[0].endswith(".py") and Path(name.partition(":")[0]).is_file():
            _require(Path(name.partition(":")[0]).read_text(encoding="utf-8"))
    code, out, said = _roofline(words[1:]) if words[0] == "roofline" else _shell(words)
    assert code != 70, said
    if pipe and not pipe.startswith("dot "):
        piped = subprocess.run(["sh", "-c", pipe], input=out, capture_output=True, text=True)
        code, out, said = piped.returncode, piped.stdout, said + piped.stderr
    return code, _tidy(said + out)


def _roofline(words: list[str]) -> tuple[int, str, str]:
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = main(words)
    return code, out.getvalue(), said.getvalue()


def _shell(words: list[str]) -> tuple[int, str, str]:
    assert words[0] in SHELL, f"{words[0]} is none of {SHELL}, nor roofline"
    words = [sys.executable, *words[1:]] if words[0] == "python" else words
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert words[0] != sys.executable or done.returncode == 0, done.stderr
    return done.returncode, done.stdout, done.stderr


def _named(words: list[str]) -> None:
    """Check that what a command names is there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words:
        asked = re.fullmatch(r"[\w.]*\[([\w,]+)\]", word)
        assert not asked or set(asked[1].split(",")) <= extras.keys(), f"no such extra: {word}"
        if re.match(r"(scripts|benchmarks|tests|notebooks|docs)/", word):
            assert (ROOT / word).exists(), f"no such file: {word}"


def _require(code: str) -> None:
    """Refuse code that needs a framework that is not installed.

    Raises:
        Missing: It does.
    """
    for name in re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE):
        if name in _OPTIONAL and find_spec(name) is None:
            raise Missing(name)


def _is_excerpt(code: str) -> bool:
    words = "".join(code.split())
    return any(words in "".join(path.read_text(encoding="utf-8").split()) for path in (ROOT / "src").rglob("*.py"))


def _lacks_any() -> bool:
    return any(find_spec(name) is None for name in _OPTIONAL)


def _tidy(text: str) -> str:
    """Take away what ends of lines hide, and the line breaks at the end."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Print as into a pipe of 80 columns."""
    before = dict(os.environ)
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    for name in ("FORCE_COLOR", "ROOFLINE_DEBUG", "ROOFLINE_PATH"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _main(words: list[str]) -> int:
    check = "--check" in words
    named = [Path(word).resolve() for word in words if word != "--check"]
    stale = 0
    for page in named or PAGES:
        text = page.read_text(encoding="utf-8")
        try:
            with tempfile.TemporaryDirectory() as folder:
                new = renewed(text, Path(folder))
        except BaseException:
            print(f"in {page}:", file=sys.stderr)
            raise
        if new != text:
            stale += 1
            print(page.relative_to(ROOT))
            if not check:
                page.write_text(new, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
