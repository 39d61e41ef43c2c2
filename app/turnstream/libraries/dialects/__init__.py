"""Shared code of the dialects; docs/dialects.md explains how to write one."""
