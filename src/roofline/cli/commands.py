"""All commands: importing their modules registers them."""

from __future__ import annotations

from importlib import import_module

from roofline.cli.app import app

__all__ = ["app"]

#: The modules of the commands, in the order in which the help lists them; those of one group follow each other.
_MODULES = (
    "estimate", "report", "explore", "batch", "advise", "optimize", "compare", "fleet", "sweep_chip", "codesign",
    "scaling", "request", "serve", "plan", "plot", "train", "cache", "predict", "check", "measure", "trace", "measured",
    "pipeline", "fuse", "layouts", "memory_plan", "timeline", "schedules", "tune", "quantize", "lower", "catalogue",
    "graph", "validate", "calibrate", "doctor",
)  # fmt: skip
_HOMES = [f"roofline.cli.{name}" for name in _MODULES]

for _home in _HOMES:
    import_module(_home)
app.registered_commands.sort(key=lambda command: _HOMES.index(command.callback.__module__) if command.callback else 0)
