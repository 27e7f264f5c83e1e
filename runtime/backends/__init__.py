"""What runs a graph: one protocol, and a class for each library."""
