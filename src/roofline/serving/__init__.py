"""Language models at work: the cache of keys and values, whole requests, and the most that fits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
