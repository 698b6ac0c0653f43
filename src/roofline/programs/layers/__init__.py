"""Layers as values: small frozen dataclasses that add their operators to a graph when they are called.

A layer knows its sizes and nothing of the config that they come from; it is called with a :class:`~roofline.programs.
layers.base.Run`, which holds what the layers of one build share, and the name of its input. Architectures compose them.
"""
