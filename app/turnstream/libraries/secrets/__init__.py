"""Secrets in rows, and the keys that encrypt the secrets. Several extensions use these modules."""
