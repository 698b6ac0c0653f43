"""Training on one device or many: from a forward program and a layout to the time and memory of a step."""

from roofline.analysis.training.plan import Plan
from roofline.analysis.training.step import TrainingStep, train

__all__ = ["Plan", "TrainingStep", "train"]
