"""Chrome JSON of torch.profiler (Kineto), event by event: a file of any size takes the memory of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from roofline.ir.errors import TraceError
from roofline.traces.events import DEVICE, NAN, WORDS, Events, Interned, Kind, Recorder, Trace, notes_of
from roofline.traces.formats.bytestream import ByteStream
from roofline.traces.formats.jsonstream import BETWEEN, Cut, JsonStream, exact, text
from roofline.traces.formats.quantities import plural
from roofline.traces.memory import HOST, MAX_ALLOCATIONS, AllocationRecorder

#: Elements that are no rows: frames of Python, marks and metadata; the rest of a file with more is left out.
MAX_OTHERS = 8_000_000
#: Keys of the root, and names of processes and threads: no profiler writes so many.
MAX_KEYS = 10_000

#: What each category is; those of PyTorch before 1.12 in the second half. A range of the user that is mirrored on the
#: device (gpu_user_annotation) overlaps the kernels in it and is left out.
KINDS: dict[str, Kind | None] = {
    "cpu_op": Kind.OP, "user_annotation": Kind.ANNOTATION, "gpu_user_annotation": None,
    "cuda_runtime": Kind.RUNTIME, "cuda_driver": Kind.RUNTIME, "hip_runtime": Kind.RUNTIME,
    "hip_driver": Kind.RUNTIME, "xpu_runtime": Kind.RUNTIME, "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME, "glow_runtime": Kind.RUNTIME, "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "python_function": Kind.PYTHON, "kernel": Kind.KERNEL, "hpu_op": Kind.KERNEL, "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY, "gpu_memset": Kind.MEMSET,
    "Operator": Kind.OP, "Runtime": Kind.RUNTIME, "Kernel": Kind.KERNEL, "Memcpy": Kind.MEMCPY, "Memset": Kind.MEMSET,
}  # fmt: skip

#: Of Python's frames only these say more than the operators inside them.
MODULE = "nn.Module: "

#: Arguments worth keeping of what ran on a device and of generated operators. Those that differ from one event to the
#: next (sequence numbers) would take more memory than all else and are left out.
DETAILS = (
    "grid", "block", "registers per thread", "shared memory", "blocks per SM", "warps per SM",
    "est. achieved occupancy %", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype",
    "Process Group Name", "Process Group Ranks", "Src Rank", "Dst Rank", "kernel_backend", "kernel_file", "kernel_hash",
)  # fmt: skip
_KEPT = frozenset(DETAILS)
#: Of what an allocator did, in the order of a row.
_MEMORY = ("Bytes", "Total Allocated", "Total Reserved", "Addr")
_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")

#: Keys of the root whose values matter.
_ROOT = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")

_NOTHING: dict[str, Any] = {}
_BIG = 2**61
_MICRO = 1e-6


def claims(head: bytes) -> bool:
    """Tell whether the first bytes are those of a JSON text."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read(source: ByteStream) -> Trace:
    """Read a trace.

    Raises:
        TraceError: JSON of something else, or without a single event.
    """
    stream, reader = JsonStream(source), Reader()
    root: dict[str, Any] = {}
    if stream.take("ï"):  # the byte-order mark of UTF-8, read as Latin-1
        stream.take("»")
        stream.take("¿")
    if stream.take("["):
        listed = True
        reader.events(stream)
    else:
        stream.take("{")
        listed = _members(stream, root, reader)
    if not listed:
        raise TraceError(f"{source.name}: {_other(root, stream)}; expected traceEvents, as torch.profiler writes them")
    return _trace(source, stream, reader, root)


def _members(stream: JsonStream, root: dict[str, Any], reader: Reader) -> bool:
    """Read the members of the root up to the events; tell whether they were among them."""
    listed, keys = False, 0
    try:
        while stream.peek(BETWEEN) not in ("}", ""):
            keys += 1
            if keys > MAX_KEYS:
                raise TraceError(f"{stream.name}: more than {MAX_KEYS:,} keys in its root; no profiler writes that")
            key = stream.value()
            stream.take(":")
            if key == "traceEvents" and stream.take("["):
                reader.events(stream)
                listed = True
                if not stream.closed or reader.full:
                    stream.cut |= not stream.closed
                    break
            else:
                value = stream.value()
                root[str(key)] = value if key in _ROOT else None
        else:
            stream.cut |= not stream.take("}")
    except Cut:
        stream.cut = True
    except TraceError:
        if not listed:
            raise
        stream.cut = True
    return listed


class Reader:
    """Turns events as JSON has them into rows.

    Attributes:
        rows: What was read.
        repairs: What was repaired or left out.
        frames: How many Python frames were left out.
        full: Why no more is read, in words; empty while that goes on.
        processes: Name of each process.
        threads: Name of each thread.
        shapes: Whether any operator has its arguments recorded.
        memory: What allocators did.
        sequence: Number of a collective in its process group by its external id.
    """

    def __init__(self) -> None:
        self.rows = Recorder()
        self.repairs = self.rows.repairs
        self.frames = 0
        self.full = ""
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.shapes = False
        self.memory = AllocationRecorder()
        self.sequence: dict[int, int] = {}
        self._labels: dict[int, int] = {}
        self._sizes: dict[int, float] = {}
        self._named = Interned()
        self._names: dict[str, str] = {}

    def events(self, stream: JsonStream) -> None:
        """Read the list of events."""
        rows, others = self.rows, 0
        for event in stream.elements():
            before = len(rows)
            if type(event) is dict:
                try:
                    self._add(event)
                except RecursionError:
                    self.repairs.add("skipped", "event", "that is nested too deeply")
            added = len(rows) > before
            others += not added
            if stream.fault:
                done, reason = _REPAIRED[stream.fault]
                self.repairs.add(done, "event", reason, rows.columns["duration"][-1] if added else 0.0)
                stream.fault = ""
            if (added and rows.limit) or others > MAX_OTHERS:
                self.full = rows.limit or f"stopped after {MAX_OTHERS:,} elements that are no operators or kernels"
                return

    def _add(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        if phase != "X":
            if phase == "M":
                self._metadata(event)
            elif phase == "i" and event.get("name") == "[memory]":
                self._allocation(event)
            elif phase in ("B", "E"):
                self.repairs.add("skipped", "begin or end", "that no profiler of PyTorch writes")
            return
        category = event.get("cat")
        kind = KINDS.get(category, Kind.OTHER) if type(category) is str else Kind.OTHER
        if kind is None:
            return
        name = event.get("name")
        if type(name) is not str:
            name = "" if name is None else str(name)
        if kind is Kind.PYTHON and not name.startswith(MODULE):
            self.frames += 1
            return
        start, duration = event.get("ts"), event.get("dur")
        # A float of the file is exact, and a longer number a Decimal; NaN fails each comparison.
        if type(duration) is not float or not 0 <= duration < _BIG or type(start) is str or not _is_time(start):
            times = self._times(kind, start, duration)
            if times is None:
                return
            start, duration = times
        arguments = event.get("args")
        if type(arguments) is not dict:
            arguments = _NOTHING
        self._row(kind, name, start, duration, event, arguments)

    def _row(
        self, kind: Kind, name: str, start: Any, duration: float, event: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        get, seconds = arguments.get, duration * _MICRO
        device, stream, size, signature, detail = -1, -1, NAN, -1, -1
        correlation = self._whole(get("correlation", -1))
        if kind is Kind.OP:
            if "Input Dims" in arguments or "Input type" in arguments:
                signature = self.rows.signature(*map(get, _SHAPES), seconds=seconds)
                self.shapes |= signature >= 0
            if "kernel_backend" in arguments or "Collective name" in arguments:
                detail = self._detail(arguments, seconds)
        elif kind is Kind.RUNTIME:
            if "size" in arguments and (number := self._number(arguments["size"])) is not None:
                self._sizes[correlation] = number
        elif kind in DEVICE:
            device, stream = self._whole(get("device", -1), 2**30), self._who(get("stream", event.get("tid", -1)))
            if "bytes" in arguments and (number := self._number(arguments["bytes"])) is not None:
                size = number
            detail = self._detail(arguments, seconds)
        external = self._whole(get("External id", get("external id", -1)))
        if "Seq" in arguments and len(self.sequence) < MAX_OTHERS:
            self.sequence[external] = self._whole(arguments["Seq"])
        self.rows.add(
            kind, self._text(name), start, seconds, self._who(event.get("pid", -1)),
            self._who(event.get("tid", -1)), external, correlation, device, stream, size, 1, signature,
            detail,
        )  # fmt: skip

    def _allocation(self, event: dict[str, Any]) -> None:
        """Keep what an allocator did; device type 0 is the host (c10/core/DeviceType.h of PyTorch)."""
        start, arguments = event.get("ts"), event.get("args")
        start = exact(start) if type(start) is str else start
        if not _is_time(start) or type(arguments) is not dict or type(arguments.get("Bytes")) is not int:
            self.repairs.add("skipped", "memory event", "without a time or a size")
        elif len(self.memory) >= MAX_ALLOCATIONS:
            self.repairs.add("left out", "memory event", f"beyond {MAX_ALLOCATIONS:,}")
        else:
            on_host = self._whole(arguments.get("Device Type", 0)) == 0
            device = HOST if on_host else max(self._whole(arguments.get("Device Id", 0), 2**30), 0)
            who = self._who(event.get("pid", -1)), self._who(event.get("tid", -1))
            self.memory.add(start, *(self._whole(arguments.get(name, -1)) for name in _MEMORY), device, *who)

    def _times(self, kind: Kind, start: Any, duration: Any) -> tuple[Any, float] | None:
        """Return start and duration, whatever they are written as; ``None``, and counted, where they are not usable."""
        begin, lasted = exact(start) if type(start) is str else start, self._number(duration)
        texts = type(start) is str or type(duration) is str
        usable = lasted is not None and 0 <= lasted < _BIG
        if lasted is None:
            reason = "without a duration" if duration is None else "whose duration is no number"
        elif lasted < 0:
            reason = "with a negative duration"
        elif not _is_time(begin):
            reason = "without a start"
        else:
            if texts:
                self.repairs.add("read", "event", "whose times are texts", lasted * _MICRO)
            return begin, lasted
        seconds = (lasted or 0.0) * _MICRO if usable else 0.0
        self.rows.lost += seconds if kind in DEVICE else 0.0
        self.repairs.add("skipped", WORDS[kind], reason, seconds)
        return None

    def _number(self, value: Any) -> float | None:
        if type(value) is bool:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return number if -_BIG < number < _BIG else None

    def _whole(self, value: Any, limit: int = _BIG) -> int:
        if type(value) is int and -limit < value < limit:
            return value
        number = self._number(value)
        return int(number) if number is not None and -limit < number < limit else -1

    def _who(self, value: Any) -> int:
        """Return the number of a process, thread or stream; those with a name instead are counted down from -2."""
        if type(value) is int and -_BIG < value < _BIG:
            return value
        if (number := self._number(value)) is not None:
            return int(number)
        return -2 - self._named[value] if type(value) is str else -1

    def _text(self, raw: str) -> str:
        name = self._names.get(raw)
        if name is None:
            name = self._names[raw] = text(raw)
        return name

    def _detail(self, arguments: dict[str, Any], seconds: float) -> int:
        return self.rows.detail({key: value for key, value in arguments.items() if key in _KEPT}, seconds)

    def _metadata(self, event: dict[str, Any]) -> None:
        arguments = event.get("args")
        if not isinstance(arguments, dict) or len(self.processes) + len(self.threads) > MAX_KEYS:
            return
        what, process = event.get("name"), self._who(event.get("pid", -1))
        if what == "process_name":
            self.processes[process] = text(str(arguments.get("name", "")))
        elif what == "thread_name":
            self.threads[process, self._who(event.get("tid", -1))] = text(str(arguments.get("name", "")))
        elif what == "process_labels":
            label, _, digits = str(arguments.get("labels", "")).partition(" ")
            if label == "GPU" and digits.isascii() and digits.isdigit():
                self._labels[process] = self._whole(int(digits[:9]))

    def finish(self) -> Events:
        """Return the rows, with what other events know of them."""
        kind, device, process, bytes_, correlation = (
            np.array(self.rows.columns[name]) for name in ("kind", "device", "process", "bytes", "correlation")
        )
        on_device = np.isin(kind, DEVICE)
        for row in np.flatnonzero(on_device & (device < 0)).tolist():  # the profiler makes a process up for a device
            number = int(process[row])
            self.rows.columns["device"][row] = self._labels.get(number, number if 0 <= number < 1024 else 0)
        if self._sizes:  # ROCm records the bytes of copies at the runtime calls that asked for them
            columns: dict[str, Any] = self.rows.columns
            for row in np.flatnonzero(on_device & (kind != Kind.KERNEL) & np.isnan(bytes_)).tolist():
                columns["bytes"][row] = self._sizes.get(int(correlation[row]), NAN)
        return self.rows.events()


def _is_time(value: Any) -> bool:
    """Tell whether a start is a number that a clock may show [us]."""
    return type(value) in (float, int, Decimal) and -_BIG < value < _BIG


#: What was done to an event whose text was no JSON, and how it is said.
_REPAIRED = {
    "NaN": ("read", "with NaN, Infinity or a bare word, a value that is left out"),
    "a trailing comma": ("repaired", "with a trailing comma"),
    "an unescaped quote": ("repaired", "with an unescaped quote"),
}


def _trace(source: ByteStream, stream: JsonStream, reader: Reader, root: Mapping[str, Any]) -> Trace:
    partial = bool(stream.cut or source.fault or reader.full)
    events = reader.finish()
    notes = [*_faults(source, stream, reader), *reader.repairs.notes()]
    if reader.frames:
        notes.append(f"left out {plural(reader.frames, 'Python frame')}")
    rank, world = _rank(root)
    if world > 1:
        notes.append(f"rank {rank if rank >= 0 else '?'} of {world}")
    if not len(events):
        why = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{source.name}: no events with a duration{why}; was the profiler running?")
    notes += notes_of(events)
    hosts = np.unique(events.process[events.kind == Kind.OP])
    if len(hosts) > 1:
        notes.append(f"{len(hosts)} host processes")
    if (events.kind == Kind.OTHER).all():
        notes.append("no event has a category that torch.profiler writes")
    if not reader.shapes and (events.kind == Kind.OP).any():
        notes.append(
            "no shapes were recorded; profile with record_shapes=True, which shows FLOPs, bytes and roofs, and time "
            "lost to precision, alignment, materialised scores or more work than was asked for"
        )
    return Trace(
        source.name, "torch", events, _devices(root), notes=tuple(notes), partial=partial,
        processes=reader.processes, threads=reader.threads, lost=reader.rows.lost, rank=rank, world=world,
        origin=_origin(reader, root), sequence=reader.sequence,
        memory=reader.memory.allocations(reader.rows.zero, reader.rows.scale),
    )  # fmt: skip


def _faults(source: ByteStream, stream: JsonStream, reader: Reader) -> Iterator[str]:
    """Say what was wrong with the text, and what was done."""
    if source.fault:
        yield f"{source.fault}: read what comes before"
    if reader.full:
        yield reader.full
    elif stream.cut:
        yield f"the file is cut at {stream.where()}: kept the complete events"
    elif not stream.closed:
        yield "repaired: the closing bracket is missing"
    if stream.comma:
        yield "repaired: a trailing comma after the last event"
    if stream.broken:
        yield f"skipped {plural(stream.broken, 'broken event')}"
    if stream.first:
        yield f"what was broken or repaired begins at {stream.first}"


def _rank(root: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rank of the process, and how many there are; -1 where that is not known."""
    ranks = root.get("distributedInfo")
    known = ranks if isinstance(ranks, dict) else {}
    rank, world = (known.get(key) for key in ("rank", "world_size"))
    return tuple(number if type(number) is int and 0 <= number < 2**30 else -1 for number in (rank, world))  # type: ignore[return-value]


def _origin(reader: Reader, root: Mapping[str, Any]) -> int:
    """Return when the first event began by the clock of the host [ns]."""
    base, (whole, rest) = root.get("baseTimeNanoseconds"), reader.rows.zero
    return (base if type(base) is int and 0 <= base < _BIG else 0) + 1000 * whole + round(1000 * rest)


def _devices(root: Mapping[str, Any]) -> dict[int, str]:
    listed = root.get("deviceProperties")
    names = {}
    for position, device in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            number = device.get("id", position)
            known = type(number) is int and 0 <= number < 2**30
            names[number if known else position] = text(device["name"])
    return names


#: JSON that is taken for a trace: keys of its root, what it is.
_OTHERS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"architectures"}), "a model's config.json of Hugging Face"),
    (frozenset({"model_type"}), "a model's config.json of Hugging Face"),
    (frozenset({"weight_map"}), "an index of safetensors"),
    (frozenset({"added_tokens"}), "a tokenizer.json"),
    (frozenset({"log"}), "a browser's HAR file"),
    (frozenset({"cells", "nbformat"}), "a Jupyter notebook"),
    (frozenset({"compilerOptions"}), "a tsconfig.json"),
    (frozenset({"dependencies"}), "a package.json"),
)


def _other(root: Mapping[str, Any], stream: JsonStream) -> str:
    for keys, what in _OTHERS:
        if keys <= root.keys():
            return f"looks like {what}, not a trace"
    if stream.cut:
        return f"cut at {stream.where()}, before the first event"
    keys_found = ", ".join(str(key)[:40] for key in list(root)[:6]) or "nothing"
    return f"JSON of another tool (its root has {keys_found})"
