"""Metrics of predictions: classification, uncertainty, resampling, gates and timing."""
