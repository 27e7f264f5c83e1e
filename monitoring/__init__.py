"""Drift: comparison of logged or served predictions with the calibration examples."""
