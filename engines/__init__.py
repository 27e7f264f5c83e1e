"""Engine files and GPUs, shared by building and running."""
