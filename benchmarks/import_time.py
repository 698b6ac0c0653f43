"""Prints the median times of `import roofline` and of `roofline --version` over five cold interpreters."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 5
PROGRAM = """
import time
start = time.perf_counter()
import roofline
print(time.perf_counter() - start)
"""


def import_seconds() -> float:
    """The time that a new interpreter needs for the import alone, in seconds."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    return float(done.stdout)


def version_seconds() -> float:
    """The time of `roofline --version`, the interpreter's start included, in seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "roofline", "--version"], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    for what, seconds in (("import roofline", import_seconds), ("roofline --version", version_seconds)):
        seconds()  # writes the bytecode files, which an installed package has
        times = sorted(seconds() for _ in range(RUNS))
        print(
            f"{what}: median {statistics.median(times) * 1e3:.0f} ms of {RUNS} cold interpreters"
            f" ({times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f} ms)"
        )


if __name__ == "__main__":
    main()
