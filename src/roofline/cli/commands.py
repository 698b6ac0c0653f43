"""All commands: importing their modules registers them."""

from __future__ import annotations

from importlib import import_module

from roofline.cli.app import app

__all__ = ["app"]

#: The modules of the commands.
_MODULES = (
    "estimate", "batch", "compare", "plot", "train", "fuse", "predict", "check", "trace", "measured", "catalogue",
    "graph", "validate", "calibrate",
)  # fmt: skip
#: In the order in which the help lists them; those of one group follow each other.
_ORDER = (
    "estimate", "batch", "compare", "plot", "train", "fuse", "predict", "check", "trace", "sweep", "ops", "chips",
    "models", "graph", "validate", "calibrate",
)  # fmt: skip

for _module in _MODULES:
    import_module(f"roofline.cli.{_module}")
app.registered_commands.sort(key=lambda command: _ORDER.index(command.name or ""))
