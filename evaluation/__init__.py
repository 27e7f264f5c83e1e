"""Verbs that run finished bundles: evaluate them beside competitors, verify, bisect and profile them."""
