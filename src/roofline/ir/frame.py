"""A data frame of rows in SI units that a notebook shows with units."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from roofline.ir.notebook import ROWS, text_of

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Any) -> pd.DataFrame:
    """Return rows as a plain data frame; only its table in a notebook has ``41 ms`` in the place of 0.041."""
    made: pd.DataFrame = _kind()(rows)
    return made


@cache
def _kind() -> Any:
    import pandas as pd  # slow to load

    class Frame(pd.DataFrame):
        """A data frame whose table in a notebook has units."""

        @property
        def _constructor(self) -> Any:
            return Frame

        def _repr_html_(self) -> str:
            texts = {key: [text_of(str(key), value) for value in self[key]] for key in self.columns}
            numbered = isinstance(self.index, pd.RangeIndex)
            return pd.DataFrame(texts, self.index).to_html(max_rows=ROWS, index=not numbered, border=0)

    Frame.__qualname__ = "Frame"
    return Frame


def __getattr__(name: str) -> Any:
    """Let pickle find the class."""
    if name == "Frame":
        return _kind()
    raise AttributeError(name)
