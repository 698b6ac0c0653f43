"""Which chip to build: area, energy and cost of its figures, and the cheapest that meets a target."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
