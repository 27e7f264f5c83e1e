"""Drift: logged or served predictions against the calibration examples."""
