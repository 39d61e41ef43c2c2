"""The command `turnstream doctor`: runs the checks that a start runs, but starts and changes nothing."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "doctor",
    "a command that checks the settings and the database",
    commands={"doctor": "turnstream.extensions.doctor.command"},
)
