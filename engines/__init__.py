"""What building and running share about engine files and GPUs."""
