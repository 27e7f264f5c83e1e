"""Data exchanged between the stages: the bundle, its plan, architecture and calibration."""
