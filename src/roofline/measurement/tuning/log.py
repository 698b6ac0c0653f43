"""What was measured before: one file per machine, problem and versions, a line per measurement.

A search that was interrupted goes on where it stopped. What another machine, or other versions, measured is named as
such and never taken for a time here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.files import user_path
from roofline.measurement.tuning.variants import FIELDS, Problem, Variant

#: Lines and bytes of a line that are read at most, and files of other machines.
MOST_LINES, MOST_BYTES, MOST_FILES = 100_000, 1_000, 100


@dataclass(frozen=True)
class Log:
    """The measurements of a problem on a machine.

    Attributes:
        path: The file.
        key: What its figures hold for: chip, problem and versions.
    """

    path: Path
    key: Mapping[str, Any]

    def read(self) -> dict[Variant, float]:
        """Return the seconds of each variant that was measured; the latest counts."""
        return dict(_measured(self.path)) if _header(self.path) == self.key else {}

    def add(self, variant: Variant, seconds: float) -> None:
        """Append a measurement.

        Raises:
            UsageError: The file cannot be written.
        """
        line = json.dumps({**asdict(variant), "seconds": seconds})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = _header(self.path) != self.key
            with open(self.path, "w" if fresh else "a", encoding="utf-8") as stream:
                stream.write((json.dumps({"key": self.key}) + "\n" if fresh else "") + line + "\n")
        except OSError as problem:
            raise UsageError(f"{self.path}: cannot be written: {problem.strerror}") from None

    def elsewhere(self) -> dict[str, dict[Variant, float]]:
        """Return what other machines and versions measured of the same problem, by machine."""
        others = dict[str, dict[Variant, float]]()
        for path in islice(sorted(self.path.parent.glob(f"{_stem(self.key)}-*.jsonl")), MOST_FILES):
            header = _header(path)
            if header is not None and header != self.key and header.get("problem") == self.key["problem"]:
                others[f"{header.get('chip')}"] = dict(_measured(path))
        return others


def log_of(problem: Problem, chip: str, versions: Mapping[str, str], folder: str | os.PathLike[str] | None) -> Log:
    """Return the log of a problem on a machine.

    Args:
        problem: What is multiplied.
        chip: The machine's name.
        versions: Of the packages that multiply.
        folder: Where logs lie; ``$XDG_CACHE_HOME/roofline/tuning``, or the same below ``~/.cache``, when absent.
    """
    key = {"chip": chip, "problem": asdict(problem), "versions": dict(versions)}
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    where = user_path(folder if folder is not None else Path(home) / "roofline" / "tuning")
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return Log(where / f"{_stem(key)}-{digest}.jsonl", key)


def _stem(key: Mapping[str, Any]) -> str:
    problem = key["problem"]
    return re.sub(r"[^\w-]", "_", "-".join(str(problem[name]) for name in ("m", "n", "k", "dtype")))


def _lines(path: Path) -> Iterator[Any]:
    """Yield the objects of a file; a line that is none, such as the last of a run that was killed, is left out."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in islice(iter(lambda: stream.readline(MOST_BYTES), ""), MOST_LINES):
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    yield None
    except OSError:
        return


def _header(path: Path) -> Mapping[str, Any] | None:
    first = next(_lines(path), None)
    key = first.get("key") if isinstance(first, dict) else None
    return key if isinstance(key, dict) else None


def _measured(path: Path) -> Iterator[tuple[Variant, float]]:
    types = {
        "kernel": str,
        "bm": int,
        "bn": int,
        "bk": int,
        "order": str,
        "packed": bool,
        "unroll": int,
        "seconds": float,
    }
    for row in _lines(path):
        whole = isinstance(row, dict) and all(type(row.get(name)) is kind for name, kind in types.items())
        if whole and 0 < row["seconds"] < 1e6:
            yield Variant(*(row[name] for name in FIELDS)), row["seconds"]
