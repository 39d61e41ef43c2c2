"""Secrets in rows, and the keys that encrypt them. Several extensions read them."""
