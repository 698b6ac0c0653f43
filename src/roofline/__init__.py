"""Predict and judge the time, memory and traffic of machine-learning programs on chips.

The names in ``__init__.pyi`` load on first use (`SPEC 1 <https://scientific-python.org/specs/spec-0001/>`_), so that
``import roofline`` stays quick; the namespaces ``roofline.passes``, ``roofline.serving``, ... hold the rest.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
