"""Every call of a server with the extensions of this run: the calls of the core, of the dialects and of OpenAI's
API.
"""

from tests.support.extensions import complete
from turnstream.api.routes import CORE
from turnstream.extension import installed

_ACTIVE = [extension for extension in installed().values() if extension.name in complete()]
PARTS = [CORE, *(part for extension in _ACTIVE for part in extension.calls())]
ENDPOINTS = [endpoint for part in PARTS if part.foreign is None for endpoint in part.endpoints]
OPENAI = [endpoint for part in PARTS if part.foreign for endpoint in part.endpoints]
# The calls that cause a model call, by path. Several calls of a dialect may have the same body.
ASKING = {
    endpoint.path: endpoint.takes
    for endpoint in (*ENDPOINTS, *OPENAI)
    if endpoint.limits is not None and "requests" in endpoint.limits
}
