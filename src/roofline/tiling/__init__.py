"""What tiles of a computation move between the memory levels of a chip."""
