"""A bundle as a service: the Open Inference Protocol, metrics and drift, Triton repositories, Ray."""
