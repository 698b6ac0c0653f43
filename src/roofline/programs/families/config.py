"""What every family's configuration is: a frozen pydantic model whose fields are the keys of a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from roofline.ir.graph import Graph
from roofline.ops.builder import Builder

#: A size that a file may state: positive, and small enough that products of a few stay exact in float64 counts.
Positive = Annotated[int, Field(gt=0, le=10**9, strict=True)]
#: A size where 0 means "none of it".
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
#: How many layers: bounded, so that no file or override asks for an endless graph.
Layers = Annotated[int, Field(gt=0, le=2000, strict=True)]


class Config(BaseModel):
    """Base of the families' configurations: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


@dataclass(frozen=True)
class Family:
    """A kind of model that is built by code from a few sizes.

    Attributes:
        name: What model files call it.
        config: The keys that its files take.
        phases: For each phase, the function that builds it.
        default_phase: The phase built when none is asked for.
    """

    name: str
    config: type[Config]
    phases: Mapping[str, Callable[[Builder, Any], Graph]]
    default_phase: str = "forward"
