"""Any classifier of transformers: discovery of its attention by running it, and its members."""
