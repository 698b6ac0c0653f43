"""Time and memory of reading a large trace of torch.profiler: ``python benchmarks/trace_speed.py [--large]``.

Writes a trace of 100,000 events, or one of 500 MB with ``--large``, to a temporary folder, reads it in a fresh
process, and prints the seconds, the events in a second and the most memory that the process held.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = '{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],\n  "traceEvents": [\n'
TAIL = '  {"name": "end", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1}\n  ]\n}\n'


def launch(number: int) -> str:
    """An operator, its launch, the arrow between them and the kernel: five events, four of which have a duration."""
    start, size = 1e6 + 10 * number, 256 * (1 + number % 40)
    op = (
        f'"External id": {number}, "Record function id": 0, "Concrete Inputs": ["", ""], '
        f'"Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Strides": [[{size}, 1], [{size}, 1]], '
        f'"Input Dims": [[{size}, {size}], [{size}, {size}]], "Ev Idx": {2 * number}'
    )
    cuda = (
        f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number}, '
        f'"registers per thread": 168, "shared memory": 188636, "blocks per SM": 1.0, "warps per SM": 12.0, '
        f'"grid": [2, {1 + number % 40}, 1], "block": [384, 1, 1], "est. achieved occupancy %": 0'
    )
    rows = (
        f'"ph": "X", "cat": "cpu_op", "name": "aten::matmul", "pid": 9, "tid": 9, "ts": {start:.3f}, "dur": 8.125, '
        f'"args": {{{op}}}',
        f'"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": {start + 1:.3f}, "dur": 6.500, '
        f'"args": {{{op}}}',
        f'"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": {start + 3:.3f}, '
        f'"dur": 3.250, "args": {{"External id": {number}, "cbid": 211, "correlation": {number}}}',
        f'"ph": "s", "id": {number}, "pid": 9, "tid": 9, "ts": {start + 3:.3f}, "cat": "ac2g", "name": "ac2g"',
        f'"ph": "X", "cat": "kernel", "name": "nvjet_sm90_tst_{size}x128", "pid": 0, "tid": 7, '
        f'"ts": {start + 12:.3f}, "dur": 9.375, "args": {{{cuda}}}',
    )
    return "".join(f"  {{\n    {row}\n  }},\n" for row in rows)


def write(path: Path, events: int = 0, size: int = 0) -> None:
    """Write a trace of that many events, or of that many bytes."""
    number = 0
    with path.open("w", encoding="ascii") as stream:
        stream.write(HEAD)
        while number * 5 < events or stream.tell() < size:
            stream.write("".join(launch(one) for one in range(number, number + 1000)))
            number += 1000
        stream.write(TAIL)


def read(path: Path) -> None:
    """Read it and print what that took."""
    import roofline as rl

    rl.traces.read_trace  # noqa: B018 (loads the modules before the clock starts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    trace = rl.traces.read_trace(path)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = path.stat().st_size
    print(
        f"{size / 1e6:.0f} MB, {len(trace.events):,} events kept: {took:.2f} s, "
        f"{len(trace.events) / took:,.0f} events/s, {size / took / 1e6:.0f} MB/s, "
        f"peak {peak / 1024:.0f} MiB ({before / 1024:.0f} MiB before)"
    )


def main() -> None:
    """Write the trace here, read it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--large", action="store_true", help="500 MB instead of 100,000 events")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        if options.large:
            write(path, size=500_000_000)
        else:
            write(path, events=100_000)
        subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
