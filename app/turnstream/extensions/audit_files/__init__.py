"""Audit files: copies of the audit trail, in which a hash chain over the lines reveals changes."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "audit_files",
    "copies of the audit trail as files that show changes",
    commands={
        "audit export": "turnstream.extensions.audit_files.commands",
        "audit verify": "turnstream.extensions.audit_files.commands",
    },
)
