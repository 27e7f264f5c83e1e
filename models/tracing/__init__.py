"""Any classifier of transformers: its attention found by running it, and members made of it."""
