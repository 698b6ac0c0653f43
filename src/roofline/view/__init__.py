"""What a reader sees: charts, pages, listings."""
