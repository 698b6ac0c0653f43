"""What all tests share: how hypothesis draws, and a run of the command line."""

from __future__ import annotations

import gc

import pytest
from command_line import Result, Run
from hypothesis import HealthCheck, settings
from profiles import examples

from roofline.cli import main

# The same examples on every machine, and no failure because a busy one was slow.
settings.register_profile(
    "steady", max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt frameworks and test items, which live until the end, from garbage collection: a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process, as if piped, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "ROOFLINE_DEBUG", "ROOFLINE_PATH"):
        monkeypatch.delenv(name, raising=False)

    def call(*args: object) -> Result:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Result(code, *capsys.readouterr())

    return call
