"""Modules that only extensions and the lab import: a server without extensions does not load them."""
