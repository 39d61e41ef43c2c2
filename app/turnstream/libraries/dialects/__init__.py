"""The seams of the dialects of frontends; docs/dialects.md has how to write one."""
