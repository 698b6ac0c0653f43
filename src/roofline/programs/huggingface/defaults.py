"""What absent keys mean: defaults of the config classes of transformers 5.24.

``defaults.json`` beside this module is written by ``scripts/huggingface_defaults.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: For each ``model_type``, the keys that its row reads.
DEFAULTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
