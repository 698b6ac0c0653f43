"""Predict and judge the time, memory and traffic of machine-learning programs on chips.

The names in ``__init__.pyi`` load on first use (`SPEC 1 <https://scientific-python.org/specs/spec-0001/>`_), so that
``import roofline`` stays quick; the namespaces ``roofline.passes``, ``roofline.serving``, ... hold the rest.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    from types import ModuleType

    from roofline.ir.errors import did_you_mean

    spaces = {key: value for key in __all__ if isinstance(value := _load(key), ModuleType)}
    homes = [f"roofline.{key}.{name}" for key, space in spaces.items() if name in space.__all__]
    moved = f"; it is {' or '.join(homes)}" if homes else did_you_mean(name, __all__)
    raise AttributeError(f"No roofline attribute {name}{moved}", name=name)
