"""Audit files: the audit trail as a file whose lines are chained by their hashes."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "audit_files",
    "copies of the audit trail as files that show changes",
    commands={
        "audit export": "turnstream.extensions.audit_files.commands",
        "audit verify": "turnstream.extensions.audit_files.commands",
    },
)
