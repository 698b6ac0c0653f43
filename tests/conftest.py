"""What all tests share: how hypothesis draws, and a run of the command line."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

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


#: Where Debian has its browser, and how it runs where there is no display and nothing to ask its maker.
CHROMIUM = "/usr/bin/chromium"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start one Chromium for all tests of pages; skip them where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"no {CHROMIUM}")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()
