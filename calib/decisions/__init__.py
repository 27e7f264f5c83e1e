"""Temperature, thresholds and prediction sets, fitted on labelled data."""
