"""The kinds of model that are composed by code; a model file picks one with ``family = "..."``."""

from __future__ import annotations

from importlib import import_module

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.programs.architectures.config import Family

#: Each family and the module whose ``FAMILIES`` holds it; loaded when asked for.
MODULES = {
    "decoder": "decoder",
    "encoder": "encoder",
    "seq2seq": "seq2seq",
    "vit": "vit",
    "resnet": "convnet",
    "vgg": "convnet",
    "mobilenet_v2": "convnet",
    "convnext": "convnet",
    "unet": "convnet",
}


def family(name: str, where: str = "") -> Family:
    """Look up a family.

    Args:
        name: As in a model file.
        where: The file, for the error.

    Raises:
        ModelDataError: No such family.
    """
    if name not in MODULES:
        place = f"{where}: " if where else ""
        near = did_you_mean(name, MODULES)
        raise ModelDataError(f"{place}family: unknown family {name!r}; allowed: {', '.join(MODULES)}{near}")
    row: Family = import_module(f"roofline.programs.architectures.{MODULES[name]}").FAMILIES[name]
    return row
