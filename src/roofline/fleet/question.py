"""What a fleet is asked: which programs, which files they come from, and what to work out for each."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from roofline.analysis.estimates import MODES
from roofline.hardware.chip import Chip
from roofline.hardware.library import find_alias, find_file
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import RooflineError, UnknownModel, UsageError, did_you_mean
from roofline.ir.files import read_file, user_path
from roofline.ir.text import shown
from roofline.ir.units import limit as most
from roofline.optimization.identity import chip_hash
from roofline.passes.formats.quantize import formats_by_name
from roofline.programs.modelfile import PHASES

#: Suffixes of files that describe a program. A script is code: a fleet runs none.
SUFFIXES = (".toml", ".json", ".onnx", ".mlir", ".stablehlo", ".hlo")
#: Programs of a fleet at most, bytes of a list of them, and bytes of a file that are read for its hash.
MAX_MODELS, MAX_LIST, MAX_FILE = 1_000_000, 2**26, 2**31
_LIMITS = {"latency": "s", "memory": "B"}


class Entry(NamedTuple):
    """A program of a fleet: what it is called in the results, and what :func:`roofline.load_program` takes."""

    name: str
    program: str


@dataclass(frozen=True)
class Question:
    """What to work out for each program on each chip.

    Attributes:
        phases: Each program in those of them that it has; empty for its own.
        batches: Batches that are estimated.
        limits: Limits under which the best batch is chosen, such as ``"latency=50ms"`` or
            ``"latency=50ms,memory=40GiB"``.
        seq: Sequence length of programs that need one.
        context: Context of a step of decoding; ``seq`` when absent.
        mode: As for :func:`roofline.estimate`.
        dtype: Format of everything; the program's own when absent.
        weights: As for :func:`roofline.what_if`.
        activations: Likewise.
        cache: Likewise.
        gains: Whether to work out what fusion, formats and replayed graphs would save, which takes most of the time.

    Raises:
        UsageError: An unknown phase or mode, no batch, or a limit that is none.
        UnknownDType: No such format.

    Example:
        >>> Question(limits=("latency=50ms",)).limits_of("latency=50ms")
        {'latency_limit': 0.05}
    """

    phases: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1,)
    limits: tuple[str, ...] = ()
    seq: int = 1024
    context: int | None = None
    mode: str = "eager"
    dtype: str | None = None
    weights: str | None = None
    activations: str | None = None
    cache: str | None = None
    gains: bool = True

    def __post_init__(self) -> None:
        for name, words, allowed in (("phase", self.phases, PHASES), ("mode", (self.mode,), MODES)):
            for word in words:
                if word not in allowed:
                    raise UsageError(f"fleet: {name} {shown(word)}: allowed: {', '.join(allowed)}"
                                     f"{did_you_mean(str(word), allowed)}")  # fmt: skip
        sizes = [*self.batches, self.seq, *([] if self.context is None else [self.context])]
        if not self.batches or not all(type(size) is int and size >= 1 for size in sizes):
            raise UsageError(f"fleet: sizes {shown(sizes)}: expected whole numbers from 1, and at least one batch")
        for limit in self.limits:
            self.limits_of(limit)
        stored = formats_by_name(self.weights) if self.weights else None
        weights = stored.values() if isinstance(stored, Mapping) else (stored,)
        for text in filter(None, (self.dtype, self.activations, self.cache, *weights)):
            find_dtype(str(text))

    @staticmethod
    def limits_of(text: str) -> dict[str, float]:
        """Return a limit as keywords of :func:`roofline.best_batch`.

        Raises:
            UsageError: Not of the form ``latency=50ms``, ``memory=40GiB`` or both with a comma.
        """
        limits = {}
        for part in text.split(","):
            name, equals, value = (each.strip() for each in part.partition("="))
            if name not in _LIMITS or not equals:
                raise UsageError(f"limit {shown(text)}: expected latency=50ms, memory=40GiB, or both with a comma")
            limits[f"{name}_limit"] = most(f"limit {name}", value, _LIMITS[name])
        return limits

    @property
    def formats(self) -> str:
        """The formats that were asked for, as text."""
        named = ((name, getattr(self, name)) for name in ("dtype", "weights", "activations", "cache"))
        return ",".join(f"{name}={value}" for name, value in named if value)


def entries(models: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Entry]:
    """Return the programs that are meant.

    Args:
        models: A folder, searched with its subfolders; a list (``.txt``) with a name or a path a line; a shipped name;
            the path of a model, a config, a workload or another file that describes a program; or several of these.

    Raises:
        UsageError: No program, a list that cannot be read, a script, or too many.
    """
    sources = [models] if isinstance(models, str | os.PathLike) else list(models)
    programs: dict[str, Entry] = {}
    for entry in (each for one in sources for each in _entries(os.fspath(one))):
        programs.setdefault(entry.program, entry)
        if len(programs) > MAX_MODELS:
            raise UsageError(f"fleet: more than {MAX_MODELS:,} programs")
    if not programs:
        where = ", ".join(map(str, sources)) or "nothing"
        raise UsageError(f"fleet: no program in {where}; expected files that end in {', '.join(SUFFIXES)}, or folders "
                         "with a config.json")  # fmt: skip
    return list(programs.values())


def _entries(text: str) -> Iterator[Entry]:
    path = user_path(text, UnknownModel)
    if os.path.isdir(path):
        yield from _folder(path)
    elif path.suffix.lower() == ".txt":
        for line in read_file(path, MAX_LIST, "a list of models", UsageError).decode("utf-8", "replace").splitlines():
            if (name := line.partition("#")[0].strip()) != "":
                own = path.parent / name
                yield from _entries(str(own) if own.exists() else name)
    elif path.suffix.lower() == ".py":
        raise UsageError(f"{path}: a script, which a fleet does not run; capture it once (an .onnx file, a workload)")
    else:
        yield Entry(path.stem if path.exists() else text, str(path.absolute()) if path.exists() else text)


def _folder(folder: Path) -> Iterator[Entry]:
    """Yield the programs in a folder: of a folder with a ``config.json`` that one alone."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        is_checkpoint = "config.json" in files
        named = ["config.json"] if is_checkpoint else sorted(each for each in files if not each.startswith("."))
        for name in named:
            path = Path(here, name)
            if path.suffix.lower() in SUFFIXES:
                within = path.parent if is_checkpoint and path.parent != folder else path.with_suffix("")
                yield Entry(within.relative_to(folder).as_posix(), str(path.absolute()))


# --- what an answer belongs to ----------------------------------------------------------------------------------------


def program_hash(entry: Entry) -> str:
    """Return a hash of what describes a program: the contents of its file, also where that is a shipped one."""
    path = Path(entry.program)
    if not path.is_file():
        path = find_file("models", entry.program) or find_alias("models", entry.program) or path
    try:
        return hashlib.sha256(read_file(path, MAX_FILE, "a program", UsageError)).hexdigest()
    except RooflineError:  # loading it says what is wrong
        return hashlib.sha256(entry.program.encode()).hexdigest()


def keys(entry: Entry, chips: Sequence[Chip], question: Question) -> list[str]:
    """Return, for each chip, the hash of all that an answer depends on: program, chip, question, version."""
    start = repr((entry.name, program_hash(entry), asdict(question), sys.modules["roofline"].__version__))
    return [hashlib.sha256(f"{start}{chip_hash(chip)}".encode()).hexdigest()[:32] for chip in chips]
