"""Many models, chips and limits at once, over worker processes."""
