"""Prints the median time of `import roofline` over five cold interpreters."""

from __future__ import annotations

import statistics
import subprocess
import sys

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


def main() -> None:
    import_seconds()  # writes the bytecode files, which an installed package has
    times = sorted(import_seconds() for _ in range(RUNS))
    print(
        f"import roofline: median {statistics.median(times) * 1e3:.0f} ms of {RUNS} cold interpreters"
        f" ({times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f} ms)"
    )


if __name__ == "__main__":
    main()
