"""Predictions of data of any size: in shards and chunks, on one machine or on many, resumed where they stopped."""
