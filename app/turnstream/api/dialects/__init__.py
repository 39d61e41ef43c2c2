"""What a dialect of a frontend is built on; docs/dialects.md has how to write one."""
