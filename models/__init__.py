"""The supported model families, texts and images (``registry.LAYOUTS``)."""
