"""What every architecture's configuration is: a frozen pydantic model whose fields are the keys of a model file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from roofline.ir.graph import Graph, Positions
from roofline.ops.builder import Builder

#: A size that a file may state: positive, and small enough that products of a few stay exact in float64 counts.
Positive = Annotated[int, Field(gt=0, le=10**9, strict=True)]
#: A size where 0 means "none of it".
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
#: How many layers: bounded, so that no file or override asks for an endless graph.
Layers = Annotated[int, Field(gt=0, le=2000, strict=True)]
#: Activations that a file may name; ``clamped_swiglu`` is gpt-oss's.
Activation = Literal[
    "silu", "gelu", "gelu_tanh", "gelu_new", "relu", "relu2", "quick_gelu", "xielu", "clamped_swiglu"
]  # fmt: skip
_T = TypeVar("_T")


def in_turn(pattern: Sequence[_T], layer: int, default: _T) -> _T:
    """Return a layer's entry of a pattern that repeats over the depth; an empty one says nothing."""
    return pattern[layer % len(pattern)] if pattern else default


class Config(BaseModel):
    """Base of the architectures' configurations: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PositionKeys(Config):
    """Positions of a sequence."""

    positions: Count = 0  #: Rows of a learned position table, 0 for none.
    #: Positions that the model is made for, where they are not the rows of the table; 0 where nothing says.
    max_positions: Count = 0

    @property
    def limit(self) -> Positions | None:
        """The positions of a sequence at most; a table has no more, anything else is what the model was trained for."""
        most = self.max_positions or self.positions
        return Positions(most, self.positions > 0) if most else None


#: A composed model: lays its layers down in a builder, in the form of a phase.
Model = Callable[[Builder, str], Graph]


@dataclass(frozen=True)
class Family:
    """A kind of model that is composed from a few sizes."""

    name: str  #: What model files call it.
    config: type[Config]  #: The keys that its files take.
    compose: Callable[[Any], Model]  #: The model that a config describes; a ``ValueError`` says what does not fit.
    phases: tuple[str, ...] = ("forward", "train")  #: The phases that can be built.
    default_phase: str = "forward"  #: The phase built when none is asked for.
