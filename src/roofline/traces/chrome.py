"""Chrome JSON of torch.profiler (Kineto), event by event: a file of any size takes the memory of its columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import TraceError
from roofline.traces.bytestream import ByteStream
from roofline.traces.columns import NAN, Interned, Recorder, notes_of
from roofline.traces.events import DEVICE, Events, Kind, Trace
from roofline.traces.jsonstream import BETWEEN, Cut, JsonStream, text
from roofline.traces.quantities import plural

#: More events than any run that somebody looks at; the rest of a larger file is left out.
MOST_EVENTS = 20_000_000

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
    "Process Group Name", "kernel_backend", "kernel_file", "kernel_hash",
)  # fmt: skip
_KEPT = frozenset(DETAILS)
_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")

_NOTHING: dict[str, Any] = {}
_BIG = 2**62
_MICRO = 1e-6


def claims(head: bytes) -> bool:
    """Whether the first bytes are those of a JSON text."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read(source: ByteStream) -> Trace:
    """Read it.

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
        raise TraceError(f"{source.name}: {_other(root, stream)}; wanted traceEvents, as torch.profiler writes them")
    return _trace(source, stream, reader, root)


def _members(stream: JsonStream, root: dict[str, Any], reader: Reader) -> bool:
    """Read the members of the root; whether the events were among them, after which nothing is needed."""
    listed = False
    try:
        while stream.peek(BETWEEN) not in ("}", ""):
            key = stream.value()
            stream.take(":")
            if key == "traceEvents" and stream.take("["):
                reader.events(stream)
                listed = True
                if not stream.closed or reader.full:
                    stream.cut |= not stream.closed
                    break
            else:
                root[str(key)] = stream.value()
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
        skipped: How many events were left out, by kind and reason.
        frames: How many Python frames were left out.
        texts: How many numbers were written as texts.
        full: Whether there were more events than are read.
        processes: Name of each process.
        threads: Name of each thread.
        shapes: Whether any operator has its arguments recorded.
    """

    def __init__(self) -> None:
        self.rows = Recorder()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.frames = 0
        self.texts = 0
        self.full = False
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.shapes = False
        self._labels: dict[int, int] = {}
        self._sizes: dict[int, float] = {}
        self._named = Interned()
        self._names: dict[str, str] = {}

    def events(self, stream: JsonStream) -> None:
        """Read the list of events."""
        add = self._add
        for event in stream.elements():
            if type(event) is dict:
                add(event)
                if len(self.rows) >= MOST_EVENTS:
                    self.full = True
                    return

    def _add(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        if phase != "X":
            if phase == "M":
                self._metadata(event)
            elif phase in ("B", "E"):
                self.skipped["begin or end", "that no profiler of PyTorch writes"] += 1
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
        if type(start) is not float or type(duration) is not float or not 0 <= duration < _BIG:
            found = self._times(kind, start, duration)
            if found is None:
                return
            start, duration = found
        arguments = event.get("args")
        if type(arguments) is not dict:
            arguments = _NOTHING
        self._row(kind, name, start, duration, event, arguments)

    def _row(
        self, kind: Kind, name: str, start: float, duration: float, event: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        get = arguments.get
        device, stream, size, signature, detail = -1, -1, NAN, -1, -1
        correlation = self._whole(get("correlation", -1))
        if kind is Kind.OP:
            if "Input Dims" in arguments or "Input type" in arguments:
                signature = self.rows.signature(*map(get, _SHAPES))
                self.shapes = True
            if "kernel_backend" in arguments or "Collective name" in arguments:
                detail = self._detail(arguments)
        elif kind is Kind.RUNTIME:
            if "size" in arguments and (found := self._number(arguments["size"])) is not None:
                self._sizes[correlation] = found
        elif kind in DEVICE:
            device, stream = self._whole(get("device", -1), 2**30), self._whole(get("stream", event.get("tid", -1)))
            if "bytes" in arguments and (found := self._number(arguments["bytes"])) is not None:
                size = found
            detail = self._detail(arguments)
        external = get("External id", get("external id", -1))
        self.rows.add(
            kind, self._text(name), start, duration * _MICRO, self._who(event.get("pid", -1)),
            self._who(event.get("tid", -1)), self._whole(external), correlation, device, stream, size, 1, signature,
            detail,
        )  # fmt: skip

    def _times(self, kind: Kind, start: Any, duration: Any) -> tuple[float, float] | None:
        """Start and duration, whatever they are written as; counted where they are not usable."""
        begin, lasted = self._number(start), self._number(duration)
        if lasted is None:
            reason = "without a duration" if duration is None else "whose duration is no number"
        elif lasted < 0:
            reason = "with a negative duration"
        elif begin is None:
            reason = "without a start"
        else:
            self.texts += type(start) is str or type(duration) is str
            return begin, lasted
        self.skipped[(_WORDS.get(kind, "event"), reason)] += 1
        return None

    def _number(self, value: Any) -> float | None:
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return found if -_BIG < found < _BIG else None

    def _whole(self, value: Any, limit: int = _BIG) -> int:
        if type(value) is int and -limit < value < limit:
            return value
        found = self._number(value)
        return int(found) if found is not None and -limit < found < limit else -1

    def _who(self, value: Any) -> int:
        """Number of a process or thread; those with a name instead are counted down from -2."""
        if type(value) is int and -_BIG < value < _BIG:
            return value
        if (found := self._number(value)) is not None:
            return int(found)
        return -2 - self._named[str(value)]

    def _text(self, raw: str) -> str:
        found = self._names.get(raw)
        if found is None:
            found = self._names[raw] = text(raw)
        return found

    def _detail(self, arguments: dict[str, Any]) -> int:
        return self.rows.detail({key: value for key, value in arguments.items() if key in _KEPT})

    def _metadata(self, event: dict[str, Any]) -> None:
        arguments = event.get("args")
        if not isinstance(arguments, dict):
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
        """The rows, with starts from zero and what other events know of them."""
        events = self.rows.events()
        if len(events):
            # Only now in seconds: in a clock that began in 1970 a microsecond is the last digit that a float holds.
            events.start[:] = (events.start - events.start[0]) * _MICRO
        on_device = np.isin(events.kind, DEVICE)
        unknown = on_device & (events.device < 0)
        if unknown.any():
            events.device[unknown] = [self._device_of(int(process)) for process in events.process[unknown]]
        if self._sizes:
            _carry(events, self._sizes, on_device & (events.kind != Kind.KERNEL) & np.isnan(events.bytes))
        return events

    def _device_of(self, process: int) -> int:
        """Device of a process that the profiler made up for it."""
        return self._labels.get(process, process if 0 <= process < 1024 else 0)


#: What a kind is called in notes.
_WORDS = {
    Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime call", Kind.PYTHON: "Python frame",
    Kind.KERNEL: "kernel", Kind.MEMCPY: "copy", Kind.MEMSET: "memset",
}  # fmt: skip


def _carry(events: Events, sizes: Mapping[int, float], wanted: NDArray[np.bool_]) -> None:
    """Bytes of copies from the runtime calls that asked for them: ROCm records them there."""
    for row in np.flatnonzero(wanted):
        events.bytes[row] = sizes.get(int(events.correlation[row]), NAN)


def _trace(source: ByteStream, stream: JsonStream, reader: Reader, root: Mapping[str, Any]) -> Trace:
    partial = bool(stream.cut or source.fault or reader.full)
    notes = [*_faults(source, stream, reader), *_skips(reader), *_context(root)]
    events = reader.finish()
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
        notes.append("no shapes were recorded; profile with record_shapes=True")
    return Trace(
        source.name, "torch", events, _devices(root), notes=tuple(notes), partial=partial,
        processes=reader.processes, threads=reader.threads,
    )  # fmt: skip


def _faults(source: ByteStream, stream: JsonStream, reader: Reader) -> list[str]:
    """What was wrong with the text, and what was done."""
    found = []
    if source.fault:
        found.append(f"{source.fault}: read what comes before")
    if reader.full:
        found.append(f"stopped after {MOST_EVENTS:,} events")
    elif stream.cut:
        found.append(f"the file is cut at {stream.where()}: kept the complete events")
    elif not stream.closed:
        found.append("repaired: the closing bracket is missing")
    if stream.comma:
        found.append("repaired: a trailing comma after the last event")
    for what, number in stream.repaired.items():
        place = f" (first at {stream.first})" if "quote" in what and stream.first else ""
        found.append(f"repaired {plural(number, 'event')} with {what}{place}")
    if stream.broken:
        found.append(f"skipped {plural(stream.broken, 'broken event')} (first at {stream.first})")
    if stream.constants:
        found.append(f"read {plural(stream.constants, 'literal')} NaN or Infinity, which is no JSON")
    if reader.texts:
        found.append(f"read {plural(reader.texts, 'event')} whose times are texts")
    return found


def _skips(reader: Reader) -> list[str]:
    found = [f"skipped {plural(number, word)} {reason}" for (word, reason), number in reader.skipped.items()]
    if reader.frames:
        found.append(f"left out {plural(reader.frames, 'Python frame')}")
    return found


def _context(root: Mapping[str, Any]) -> list[str]:
    ranks = root.get("distributedInfo")
    if isinstance(ranks, dict) and isinstance(ranks.get("world_size"), int) and ranks["world_size"] > 1:
        return [f"rank {str(ranks.get('rank', '?'))[:9]} of {str(ranks['world_size'])[:9]}"]
    return []


def _devices(root: Mapping[str, Any]) -> dict[int, str]:
    listed = root.get("deviceProperties")
    found = {}
    for position, device in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            number = device.get("id", position)
            found[number if isinstance(number, int) and math.isfinite(number) else position] = text(device["name"])
    return found


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
