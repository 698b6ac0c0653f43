"""Programs that others wrote, as graphs: one package a source."""
