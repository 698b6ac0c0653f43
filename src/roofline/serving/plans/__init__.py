"""The best deployment under limits of latency and memory, and its launch flags."""
