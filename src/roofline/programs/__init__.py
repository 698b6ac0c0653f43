"""Programs by name or description: model files, architectures, Hugging Face configs, workloads."""
