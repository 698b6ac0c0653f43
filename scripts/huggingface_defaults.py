"""Write what absent keys of a config mean: the defaults of the config classes of the transformers that is installed.

    python scripts/huggingface_defaults.py > src/roofline/programs/huggingface/defaults.json

Kept are the keys that the rows of ``KINDS`` ask for; ``tests/test_huggingface_counts.py`` compares the result with
the installed classes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def class_defaults(model_type: str) -> dict[str, Any]:
    """The fields of a config class that have a plain default."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:  # its code is remote: an absent key has no meaning here
        return {}
    fields = dataclasses.fields(CONFIG_MAPPING[model_type])
    return {f.name: _plain(f.default) for f in fields if f.default is not dataclasses.MISSING}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def kept(model_type: str) -> dict[str, Any]:
    """The defaults that the row of a ``model_type`` asks for."""
    from roofline.programs.huggingface.assemble import KINDS, options_of
    from roofline.programs.huggingface.keys import Keys

    kind, known = KINDS[model_type], class_defaults(model_type)
    keys = Keys(model_type, {"model_type": model_type}, {**known, **kind.defaults}, kind)
    try:
        options_of(keys)
    except Exception as error:  # a class whose defaults are no model; what was read until then is kept
        keys.notes.append(str(error))
    return {key: known[key] for key in sorted(keys.used & known.keys()) if _counts(known[key])}


def _counts(value: Any) -> bool:
    """Whether a default can be a size or a switch: not null, no list with an infinity."""
    return value is not None and "inf" not in str(value)


def main() -> None:
    """Print the table, a line a ``model_type``."""
    from roofline.programs.huggingface.assemble import KINDS

    lines = [f" {json.dumps(model_type)}: {json.dumps(kept(model_type))}" for model_type in KINDS]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
