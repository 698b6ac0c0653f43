"""The kinds of model that are built by code; a model file picks one with ``family = "..."``."""

from __future__ import annotations

from importlib import import_module

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.programs.families.config import Family

#: Each family and the module whose ``FAMILIES`` holds it; loaded when asked for.
MODULES = {
    "decoder": "decoder",
    "encoder": "encoder",
    "seq2seq": "seq2seq",
    "vit": "vit",
    "resnet": "convnet",
    "vgg": "convnet",
    "mobilenet_v2": "convnet_mobile",
    "convnext": "convnet_mobile",
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
    found: Family = import_module(f"roofline.programs.families.{MODULES[name]}").FAMILIES[name]
    return found
