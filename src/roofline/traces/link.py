"""What ran on the device, tied to the operator that asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.traces.events import Kind, Signature, Trace


@dataclass(frozen=True, slots=True)
class Launch:
    """One device event; in a trace without a device, one operator on the processor with its own time.

    Attributes:
        kind: ``KERNEL``, ``MEMCPY`` or ``MEMSET``; ``OP`` on a processor.
        name: The kernel's name; the operator's on a processor.
        start: Since the trace's first event [s].
        duration: [s]; on a processor without the operators inside it.
        device: Number of the device, -1 for the processor.
        stream: Of the device.
        bytes: Moved by a copy [B], nan where not recorded.
        count: Launches that the row stands for.
        op: The innermost operator that caused it, such as ``aten::mm``; empty where none is known.
        signature: Its recorded arguments, ``None`` where shapes were not recorded.
        path: Operators and ranges around it on the host, outermost first, ``op`` last.
        call: Position of the operator among the trace's events, -1 where none is known; launches of one call share it.
        issued: When the host began to launch it [s], nan where not recorded.
        detail: What else was recorded, position in the events' ``details`` or -1.
    """

    kind: Kind
    name: str
    start: float
    duration: float
    device: int
    stream: int
    bytes: float
    count: int
    op: str
    signature: Signature | None
    path: tuple[str, ...]
    call: int
    issued: float
    detail: int

    @property
    def end(self) -> float:
        """When it ended [s]."""
        return self.start + self.duration


def launches(trace: Trace) -> tuple[Launch, ...]:
    """What ran on the device, in order of start."""
    raise NotImplementedError
