"""Read a JSON file that a stranger wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roofline.ir.errors import ModelDataError

#: A JSON file larger than this is refused [byte].
MAX_BYTES = 4 * 2**20


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """Read a JSON file, with the bare ``Infinity`` and ``NaN`` that Python's own writer puts there.

    Args:
        path: The file.
        most: The largest file that is read [byte].

    Raises:
        ModelDataError: Not a readable file, too large, or not JSON (names line and column).
    """
    try:
        if not path.is_file():
            what = "a directory" if path.is_dir() else "no such file" if not path.exists() else "not a file"
            raise ModelDataError(f"{path}: {what}; wanted a JSON file")
        if (size := path.stat().st_size) > most:
            raise ModelDataError(f"{path}: {size} bytes; allowed: at most {most}")
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ModelDataError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ModelDataError(f"{path}: nested too deeply") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelDataError(f"{path}: cannot be read: {str(why)[:200]}") from None
