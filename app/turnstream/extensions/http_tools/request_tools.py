"""Rules for HTTP tools that requests declare: their hosts, their time limit, their secrets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from yarl import URL

from turnstream.domain.turns import HttpCall
from turnstream.extensions.http_tools.client import parse_url
from turnstream.libraries.outgoing.addresses import Allowed, UrlRefused

_REFERENCE = re.compile(r"\$\{secret:(\w+)\}")


@dataclass(frozen=True, slots=True)
class OperatorSecret:
    """A value that replaces `${secret:NAME}` in headers, but only in headers of tools at these hosts."""

    value: str
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class RequestToolRules:
    """The operator's rules for tools in requests. `allowed` are the hosts that such tools may call. A call takes at
    most `longest` seconds.
    """

    allowed: Allowed = field(default_factory=Allowed)
    longest: float = 60.0
    secrets: Mapping[str, OperatorSecret] = field(default_factory=dict)

    def applied(self, call: HttpCall) -> HttpCall:
        """Returns the call with the secrets inserted into its headers, and with its time limit. Raises ValueError."""
        if call.timeout <= 0:
            raise ValueError("the `timeout` must be above 0 seconds")
        url = parse_url(call.url)
        headers = {name: self._resolved(name, value, url) for name, value in call.headers.items()}
        return replace(call, headers=headers, timeout=min(call.timeout, self.longest))

    def _resolved(self, header: str, value: str, url: URL) -> str:
        def resolved(found: re.Match[str]) -> str:
            secret = self.secrets.get(found[1])
            if secret is None or (url.host or "").lower().rstrip(".") not in secret.hosts:
                raise UrlRefused(
                    f"the header {header} names the secret {found[1]}, which the operator has not allowed for this host"
                    " (TURNSTREAM_TOOL_SECRETS)"
                )
            return secret.value

        return _REFERENCE.sub(resolved, value)


def read_secrets(text: str, environment: Mapping[str, str]) -> Mapping[str, OperatorSecret]:
    """Reads `CRM_KEY=crm.example.com, CRM_KEY=api.example.com`: variables of the environment, each with a host that may
    get its value. Raises ValueError.
    """
    secrets: dict[str, OperatorSecret] = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        name, _, host = (part.strip() for part in item.partition("="))
        if not re.fullmatch(r"\w+", name) or not host:
            raise ValueError(f"{item!r} must be the name of a variable and a host, such as CRM_KEY=crm.example.com")
        value, file = environment.get(name), environment.get(f"{name}_FILE")
        if not value and file:
            value = Path(file).read_text(encoding="utf-8").strip()
        if not value:
            raise ValueError(f"the variable {name}, or {name}_FILE with the name of a file, must have a value")
        before = secrets.get(name, OperatorSecret(value, frozenset()))
        secrets[name] = replace(before, hosts=before.hosts | {host.lower().rstrip(".")})
    return secrets
