"""What looks at data: which heads members keep, and when a prediction is to be trusted."""
