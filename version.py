"""The version of hydrant."""

__version__ = "0.2.0"
