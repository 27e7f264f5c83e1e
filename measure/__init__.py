"""Verbs that run a finished bundle: verify, bisect, profile, calibrate."""
