"""Write schemas.txt: the signatures of PyTorch's operators that roofline has rules for, one a line.

A profiler records the arguments of an operator in order and without their names. This file lets roofline read such a
record where PyTorch is not installed.

    python scripts/torch_schemas.py
"""

from __future__ import annotations

from pathlib import Path

import torch

from roofline.frontends.torch.profiled import ALIASES, EXTRA
from roofline.frontends.torch.rules import RULES

TARGET = Path(__file__).resolve().parent.parent / "src/roofline/frontends/torch/schemas.txt"
NAMESPACES = ("aten", "mkldnn")


def wanted(name: str) -> bool:
    """Whether roofline reads this operator, which may end in ``_``."""
    known = RULES.keys() | ALIASES.keys() | EXTRA.keys()
    return name in known or name.removesuffix("_") in known or name.startswith("_foreach_")


def main() -> None:
    """Write the file."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace in NAMESPACES and wanted(name) and not str(schema).count("Dimname"):
            found.append(str(schema).partition(" -> ")[0])
    TARGET.write_text("\n".join(sorted(set(found))) + "\n", encoding="utf-8")
    print(f"{len(set(found))} signatures in {TARGET}")


if __name__ == "__main__":
    main()
