"""What a run of the command line gave, for the tests of its verbs; ``conftest.py`` has the fixture ``run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def row(self) -> Any:
        """The first row of the output as strict JSON."""
        return self.data["rows"][0]

    @property
    def data(self) -> Any:
        """The output as strict JSON."""
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


Run = Callable[..., Result]


def fails(result: Result, *words: str) -> None:
    """Wrong input is one line with these words, and nothing else."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("roofline: error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err
