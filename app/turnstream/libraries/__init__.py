"""Modules of extensions and the lab only: a server without extensions does not load them."""
