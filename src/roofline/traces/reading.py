"""Read a profiler's file, whichever wrote it: the format is told by what is inside, not by the name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from roofline.ir.errors import TraceError, did_you_mean
from roofline.traces.events import Recorder, Trace, notes_of
from roofline.traces.formats import chrome, ncu, nsys, optable, tables, ttperf
from roofline.traces.formats.bytestream import ByteStream, Progress
from roofline.traces.formats.tables import Table


@dataclass(frozen=True)
class Format:
    """A table that is known by its header.

    Attributes:
        name: ``Trace.format``.
        header: What it is and which columns make it, for messages.
        claims: Whether a header is its own.
        read: Reads a table into rows and devices, and says what was left out.
        example: A short file; each reader is tried with damaged copies of its own.
        timed: Whether starts are real.
    """

    name: str
    header: str
    claims: Callable[[Sequence[str]], bool]
    read: Callable[[Table, Recorder, dict[int, str]], list[str]]
    example: str
    timed: bool = False


#: The first that claims a header reads it.
TABLES = (
    Format("nsys-trace", "nsys cuda_gpu_trace (Start, Duration, CorrId, Strm, Name)", nsys.claims_trace,
           nsys.read_trace, nsys.EXAMPLE_TRACE, timed=True),
    Format("nsys-sum", "nsys cuda_gpu_kern_sum (Total Time, Instances, Name)", nsys.claims_sum, nsys.read_sum,
           nsys.EXAMPLE_SUM),
    Format("ncu", "ncu (ID, Kernel Name, Metric Name or a column per metric)", ncu.claims, ncu.read,
           ncu.EXAMPLE),
    Format("tt-perf", "ops_perf_results (OP CODE, DEVICE KERNEL DURATION [ns])", ttperf.claims, ttperf.read,
           ttperf.EXAMPLE),
    Format("table", "a table of times (name, time_us)", optable.claims, optable.read, optable.EXAMPLE),
)  # fmt: skip

#: First bytes of what is taken for a trace, and what it is.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, such as a checkpoint of torch.save"),
    (b"\x80\x02", "a pickle"), (b"\x80\x03", "a pickle"), (b"\x80\x04", "a pickle"), (b"\x80\x05", "a pickle"),
    (b"SQLite format 3", "an SQLite database; of nsys, export it: nsys stats --report cuda_gpu_trace --format csv"),
    (b"NVR\x00", "a report of Nsight Compute; export it: ncu --import FILE --csv --page raw"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it"), (b"\xfd7zXZ\x00", "packed with xz; unpack it"),
    (b"BZh", "packed with bzip2; unpack it"), (b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (b"\x1f\x8b", "packed with gzip twice; unpack it"),
    (b"\x89HDF", "HDF5"), (b"\x89PNG", "a PNG image"), (b"%PDF", "a PDF"), (b"\x7fELF", "a program"),
    (b"GGUF", "weights in GGUF"), (b"PAR1", "a Parquet table"),
)  # fmt: skip
_ALLOWED = "expected Chrome JSON of torch.profiler, or CSV of nsys, ncu, ops_perf_results or times"


def read_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """Read a profiler's file.

    Args:
        path: Chrome JSON of torch.profiler, CSV of Nsight Systems, Nsight Compute or Tenstorrent's profiler, or a table
            of times; gzip is unpacked.
        progress: Called now and then with the bytes read so far and the bytes in all.

    Returns:
        What it holds. ``notes`` say what was repaired, skipped or missing.

    Raises:
        TraceError: No such file, not a profiler's, or without a single event.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "times.csv")
        ...     _ = path.write_text("name,time_us\\nmm,41\\nrelu,3.5\\n")
        ...     trace = read_trace(path)
        >>> trace.format, trace.events.names, trace.events.duration.round(9).tolist()
        ('table', ('mm', 'relu'), [4.1e-05, 3.5e-06])
    """
    with ByteStream(path, progress) as source:
        head = source.head(2**16)
        if not head.strip(b"\xef\xbb\xbf \t\r\n\x00"):
            raise TraceError(f"{source.name}: {source.fault or 'an empty file'}; {_ALLOWED}")
        if chrome.claims(head):
            return chrome.read(source)
        _refuse_binary(source.name, head)
        return _read_table(source)


def _refuse_binary(name: str, head: bytes) -> None:
    for magic, what in _MAGIC:
        if head.startswith(magic):
            raise TraceError(f"{name}: looks like {what}; {_ALLOWED}")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    if head[0] in (0x08, 0x0A) and (b"onnx" in head[:512] or b"pytorch" in head[:512] or b"ai.onnx" in head):
        raise TraceError(f"{name}: looks like an ONNX model; {_ALLOWED}")
    if head[8:9] == b"{" and b"\x00" in head[:8]:
        raise TraceError(f"{name}: looks like weights in safetensors; {_ALLOWED}")
    if (at := head.find(b"\x00")) >= 0:
        raise TraceError(f"{name}: not text (a zero byte at {at:,}); {_ALLOWED}")


def _read_table(source: ByteStream) -> Trace:
    text = tables.lines(source)
    rows, devices = Recorder(), dict[int, str]()
    try:
        form, table, passed = _find(source, text, rows)
        notes = form.read(table, rows, devices)
    except UnicodeError as error:
        raise TraceError(f"{source.name}: not text in UTF-8 or UTF-16: {error}") from None
    events = rows.events(timed=form.timed)
    notes += rows.repairs.notes()
    if not len(events):
        why = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{source.name}: no events below the header of {form.header}{why}")
    faults = [f"{source.fault}: read what comes before"] if source.fault else []
    all_notes = (*faults, *passed, *notes, *notes_of(events))
    return Trace(source.name, form.name, events, devices, form.timed, all_notes, bool(faults), lost=rows.lost)


def _find(source: ByteStream, text: Iterator[str], recorder: Recorder) -> tuple[Format, Table, list[str]]:
    """Return the first table that is known, and the names of those without kernels that came before."""
    likely: tuple[str, ...] = ()
    passed: list[str] = []
    searched = 0
    for line, content in enumerate(text, 1):
        searched += len(content)
        for delimiter, columns in tables.cells_of(content):
            labels = nsys.labels(columns)
            if other := next((name for needed, name in nsys.OTHERS if needed <= labels), ""):
                passed.append(other)
                break
            if form := next((form for form in TABLES if form.claims(columns)), None):
                rows = tables.rows(source, text, delimiter, len(columns), line, recorder)
                return form, Table(source.name, columns, rows), [f"passed over nsys {name}" for name in passed]
            likely = likely or columns
        if line >= tables.SEARCHED or searched > tables.SEARCHED_TEXT:
            break
    _refuse_table(source.name, likely, passed)


def _refuse_table(name: str, likely: Sequence[str], passed: Sequence[str]) -> NoReturn:
    if passed:
        raise TraceError(
            f"{name}: an nsys {passed[0]} table, which holds no kernels; expected cuda_gpu_trace or cuda_gpu_kern_sum"
        )
    if not likely:
        raise TraceError(f"{name}: neither JSON nor a table; {_ALLOWED}")
    known = ", ".join(form.header for form in TABLES)
    close = next((c for c in likely if did_you_mean(c, optable.NAMES)), "")
    near = did_you_mean(close, optable.NAMES)
    raise TraceError(f"{name}: a header of no known table: {', '.join(likely)[:200]}; expected {known}{near}")
