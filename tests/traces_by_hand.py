"""Traces for tests: from a few events written out, or from what torch.profiler exports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import roofline as rl
from roofline.traces.events import Events, Kind, Signature

KINDS = {
    "cpu_op": Kind.OP, "user_annotation": Kind.ANNOTATION, "cuda_runtime": Kind.RUNTIME, "cuda_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL, "gpu_memcpy": Kind.MEMCPY, "gpu_memset": Kind.MEMSET,
}  # fmt: skip

ABSENT = {
    "kind": Kind.OTHER, "start": 0.0, "duration": 1.0, "process": 1, "thread": 1, "external": -1, "correlation": -1,
    "device": -1, "stream": -1, "bytes": float("nan"), "count": 1, "signature": -1, "detail": -1,
}  # fmt: skip
TYPES = {
    "kind": np.uint8, "start": np.float64, "duration": np.float64, "bytes": np.float64, "device": np.int32,
    "signature": np.int32, "detail": np.int32,
}  # fmt: skip


def trace(rows: Iterable[Mapping[str, Any]]) -> rl.traces.Trace:
    """Events by their fields; ``name`` is a text, ``signature`` a Signature and ``detail`` a mapping, if given."""
    ordered = sorted(rows, key=lambda row: row.get("start", 0.0))
    pools: dict[str, list[Any]] = {"name": [], "signature": [], "detail": []}
    places: dict[str, dict[Any, int]] = {key: {} for key in pools}
    table: dict[str, list[Any]] = {key: [] for key in (*ABSENT, "name")}
    for row in ordered:
        for key, column in table.items():
            value = row.get(key, ABSENT.get(key))
            if key in pools and value != -1:
                mark = repr(value)
                if mark not in places[key]:
                    places[key][mark] = len(pools[key])
                    pools[key].append(value)
                value = places[key][mark]
            column.append(value)
    columns = {key: np.array(column, TYPES.get(key, np.int64)) for key, column in table.items()}
    columns["name"] = columns["name"].astype(np.int32)
    texts = {"names": tuple(pools["name"]), "signatures": tuple(pools["signature"]), "details": tuple(pools["detail"])}
    return rl.traces.Trace("", "torch", Events(**columns, **texts))


def chrome(document: Mapping[str, Any]) -> rl.traces.Trace:
    """What torch.profiler exports, already parsed."""
    slices = [e for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") in KINDS]
    first = min((e["ts"] for e in slices), default=0.0)
    return trace(_row(e, first) for e in slices)


def _row(event: Mapping[str, Any], first: float) -> dict[str, Any]:
    args = event.get("args", {})
    row = {
        "kind": KINDS[event["cat"]], "name": event["name"], "start": (event["ts"] - first) * 1e-6,
        "duration": event["dur"] * 1e-6, "process": _number(event["pid"]), "thread": _number(event["tid"]),
        "external": args.get("External id", -1), "correlation": args.get("correlation", -1),
        "device": args.get("device", -1), "stream": args.get("stream", -1), "bytes": args.get("bytes", float("nan")),
        "detail": {key: args[key] for key in ("kernel_backend", "grid", "block") if key in args} or -1,
    }  # fmt: skip
    if "Input Dims" in args:
        row["signature"] = Signature(
            _frozen(args["Input Dims"]), _frozen(args.get("Input type", ())), _frozen(args.get("Input Strides", ())),
            _frozen(args.get("Concrete Inputs", ())),
        )  # fmt: skip
    return row


def _number(value: Any) -> int:
    return value if isinstance(value, int) else int(value) if str(value).isdigit() else 0


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value
