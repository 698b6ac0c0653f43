"""The kinds of model that are composed by code; a model file picks one with ``family = "..."``."""

from __future__ import annotations

from importlib import import_module

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.programs.architectures.config import Family

#: Each family and the module of ``programs`` whose ``FAMILIES`` holds it; loaded when asked for.
MODULES = {
    "decoder": "architectures.decoder",
    "decoder-query-gate": "huggingface.checkpoints.blocks",
    "decoder-indexer": "huggingface.checkpoints.attention",
    "encoder": "architectures.encoder",
    "seq2seq": "architectures.seq2seq",
    "vit": "architectures.vit",
    "resnet": "architectures.convnet",
    "vgg": "architectures.convnet",
    "mobilenet_v2": "architectures.convnet",
    "convnext": "architectures.convnet",
    "unet": "architectures.convnet",
}


def family(name: str, where: str = "") -> Family:
    """Look up a family.

    Raises:
        ModelDataError: No such family.
    """
    if name not in MODULES:
        place = f"{where}: " if where else ""
        near = did_you_mean(name, MODULES)
        raise ModelDataError(f"{place}family: unknown family {name!r}; allowed: {', '.join(MODULES)}{near}")
    row: Family = import_module(f"roofline.programs.{MODULES[name]}").FAMILIES[name]
    return row
