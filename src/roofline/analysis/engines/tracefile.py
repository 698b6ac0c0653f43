"""A timeline as a Chrome trace (the JSON of trace events), as torch.profiler writes them: Perfetto opens it.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events (``X``) on a track for
each engine, flow arrows (``s``, ``f``) from what a task waited for, and what the end waits for on a track of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from roofline.analysis.engines.scheduler import Placed
from roofline.analysis.engines.tasks import COPY_IN, COPY_OUT, HOST, NETWORK, STREAM, Task
from roofline.ir.files import whole_file

#: Process of the host and of the device.
_ON_HOST, _ON_DEVICE = 1, 0
#: Category and name of what runs on each engine, as torch.profiler has them.
_WORDS = {
    HOST: ("cuda_runtime", "{}"), STREAM: ("kernel", "{}"), NETWORK: ("kernel", "nccl:{op} {}"),
    COPY_IN: ("gpu_memcpy", "Memcpy HtoD {}"), COPY_OUT: ("gpu_memcpy", "Memcpy DtoH {}"),
}  # fmt: skip
#: Colours of Chrome's viewer by what bounds a task, and of the critical path.
_COLOURS = {"compute": "thread_state_running", "memory": "thread_state_iowait", "communication": "good",
            "launch": "thread_state_runnable", "host": "rail_animation"}  # fmt: skip
_CRITICAL = "terrible"
_MICRO = 1e6


def write_trace(
    target: str | os.PathLike[str], chip: str, tasks: Sequence[Task], places: Sequence[Placed], lanes: Sequence[str],
    critical: Sequence[int],
) -> None:  # fmt: skip
    """Write a trace, the whole file or nothing.

    Args:
        target: The file.
        chip: Name of the device.
        tasks: What runs.
        places: When and where.
        lanes: Names of the engines, in their order.
        critical: Positions of the tasks on the critical path.

    Raises:
        UsageError: It cannot be written there.
    """
    events = [*_names(chip, lanes), *_slices(tasks, places, lanes, frozenset(critical)),
              *_path(tasks, places, critical, len(lanes)), *_arrows(tasks, places, lanes)]  # fmt: skip
    with whole_file(target) as stream:
        json.dump({"schemaVersion": 1, "displayTimeUnit": "ms", "deviceProperties": [{"id": 0, "name": chip}],
                   "traceEvents": events}, stream, indent=0)  # fmt: skip


def _lane(task: Task, place: Placed, lanes: Sequence[str]) -> tuple[int, int]:
    """Return process and thread of a task."""
    name = f"{task.engine} {place.lane}" if task.engine == STREAM else task.engine
    return _ON_HOST if task.engine == HOST else _ON_DEVICE, lanes.index(name)


def _names(chip: str, lanes: Sequence[str]) -> Iterator[dict[str, Any]]:
    for process, name in ((_ON_HOST, "host"), (_ON_DEVICE, chip)):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_labels", "pid": _ON_DEVICE, "tid": 0, "args": {"labels": "GPU 0"}}
    for thread, name in enumerate((*lanes, "critical path")):
        process = _ON_HOST if name == HOST else _ON_DEVICE
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}


def _slices(
    tasks: Sequence[Task], places: Sequence[Placed], lanes: Sequence[str], critical: frozenset[int]
) -> Iterator[dict[str, Any]]:
    launches = {task.name: at for at, task in enumerate(tasks) if task.engine == HOST}
    for at, (task, place) in enumerate(zip(tasks, places, strict=True)):
        process, thread = _lane(task, place, lanes)
        category, words = _WORDS[task.engine]
        after = tasks[place.after].name if place.after >= 0 else ""
        known = {"layer": task.layer, "bound": task.bound, "alone us": task.seconds * _MICRO, "waits for": after}
        launch = at if task.engine == HOST else launches.get(f"launch {task.name}")
        link = {} if launch is None else {"correlation": launch + 1}
        where = {} if task.engine == HOST else {"device": 0, "stream": thread}
        yield {
            "ph": "X", "cat": category, "name": words.format(task.name, op=task.op), "pid": process, "tid": thread,
            "ts": place.start * _MICRO, "dur": (place.end - place.start) * _MICRO,
            "cname": _CRITICAL if at in critical else _COLOURS.get(task.bound, "grey"),
            "args": {**where, **link, **known},
        }  # fmt: skip


def _path(tasks: Sequence[Task], places: Sequence[Placed], critical: Sequence[int], thread: int) -> Iterator[Any]:
    """Yield the critical path as ranges beside the device, which readers of traces take for no kernels."""
    for at in critical:
        place = places[at]
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": tasks[at].name, "pid": _ON_DEVICE, "tid": thread,
               "ts": place.start * _MICRO, "dur": (place.end - place.start) * _MICRO, "cname": _CRITICAL}  # fmt: skip


def _arrows(tasks: Sequence[Task], places: Sequence[Placed], lanes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield an arrow to each task from what it needs on another engine, and from what it waited for.

    An arrow starts amid its slice: at the end of it, where the next one of the engine begins, viewers take that one.
    """
    number = 0
    for task, place in zip(tasks, places, strict=True):
        own = _lane(task, place, lanes)
        for need in dict.fromkeys((*task.needs, *((place.after,) if place.after >= 0 else ()))):
            other = _lane(tasks[need], places[need], lanes)
            if other == own and need != place.after:
                continue
            number += 1
            both = {"cat": "needs", "name": "needs", "id": number}
            amid = (places[need].start + places[need].end) / 2
            yield {"ph": "s", **both, "pid": other[0], "tid": other[1], "ts": amid * _MICRO}
            yield {"ph": "f", "bp": "e", **both, "pid": own[0], "tid": own[1], "ts": place.start * _MICRO}
