"""Which chip to build: area, energy and cost of its figures, and the cheapest that meets a target."""
