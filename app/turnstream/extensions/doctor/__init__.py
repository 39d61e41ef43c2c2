"""`turnstream doctor`: the checks of a start, without starting or changing anything."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "doctor",
    "a command that checks the settings and the database",
    commands={"doctor": "turnstream.extensions.doctor.command"},
)
