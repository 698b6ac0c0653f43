"""Programs whose sizes differ from run to run: distributions of sizes, and of the times that follow."""
