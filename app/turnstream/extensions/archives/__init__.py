"""Archives: what an owner has, or one chat, as a file that another server imports."""

from turnstream.extension import Extension

EXTENSION = Extension(
    "archives",
    "export and import of what an owner has",
    commands={
        "owners export": "turnstream.extensions.archives.commands",
        "owners import": "turnstream.extensions.archives.commands",
    },
)
