"""Every call of a server with all extensions: those of the core and the dialects, and those in the form of OpenAI."""

from turnstream.api.routes import CORE
from turnstream.extension import installed

PARTS = [CORE, *(part for extension in installed().values() for part in extension.calls())]
ENDPOINTS = [endpoint for part in PARTS if part.foreign is None for endpoint in part.endpoints]
OPENAI = [endpoint for part in PARTS if part.foreign for endpoint in part.endpoints]
