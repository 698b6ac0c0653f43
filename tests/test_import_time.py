"""`import roofline` must stay light: what only some calls need is loaded by those calls."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["pandas", "matplotlib", "typer", "rich", "torch", "transformers", "onnx", "jax"]


def test_import_loads_nothing_heavy() -> None:
    program = (
        "import json, sys\n"
        "import roofline\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert "roofline" in loaded
    assert [name for name in HEAVY if name in loaded] == []
