"""Audit files: the audit trail as a file with a hash chain over its lines."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "audit_files",
    "copies of the audit trail as files that show changes",
    commands={
        "audit export": "turnstream.extensions.audit_files.commands",
        "audit verify": "turnstream.extensions.audit_files.commands",
    },
)
