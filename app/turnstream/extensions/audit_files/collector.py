"""Sends the lines of an audit file as OpenTelemetry log records, by OTLP over HTTP in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import httpx2
import msgspec

from turnstream.domain.errors import ConfigError
from turnstream.extensions.audit_files.chain import hash_of
from turnstream.libraries.audit_entries import AuditEntry

_INFO: Final = 9
_TIMEOUT: Final = 30.0
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS")


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry and its line in the file. `previous` is the hash of the line before."""

    entry: AuditEntry
    line: bytes
    previous: str


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector that receives records at `url`, which usually ends in `/v1/logs`."""

    url: str
    headers: Mapping[str, str]

    async def send(self, lines: Sequence[AuditLine]) -> None:
        """Sends the lines. Raises ConfigError unless the collector accepts all records."""
        try:
            async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as http:
                response = await http.post(
                    self.url,
                    content=msgspec.json.encode(_request(lines)),
                    headers={"content-type": "application/json", **self.headers},
                )
        except httpx2.HTTPError as error:
            raise ConfigError(f"The collector {self.url} cannot be reached: {error!r}.") from None
        if response.status_code != httpx2.codes.OK:
            raise ConfigError(f"The collector {self.url} has answered {response.status_code}: {response.text[:300]}")
        if rejected := _rejected(response.content):
            raise ConfigError(f"The collector {self.url} has rejected {rejected} records.")


def collector_at(url: str, environment: Mapping[str, str]) -> Collector:
    """Returns the collector at `url`, with the headers that OpenTelemetry's environment variables define."""
    headers = dict[str, str]()
    for variable in _HEADERS:
        for pair in environment.get(variable, "").split(","):
            name, found, value = pair.partition("=")
            if found:
                headers[name.strip()] = unquote(value.strip())
    return Collector(url, headers)


def _rejected(content: bytes) -> int:
    try:
        partial = (msgspec.json.decode(content) or {}).get("partialSuccess") or {}
        return int(partial.get("rejectedLogRecords") or 0)
    except (msgspec.DecodeError, AttributeError, ValueError):
        return 0  # the answer is a proxy's, or has another form: the status decides


def _request(lines: Sequence[AuditLine]) -> Mapping[str, Any]:
    resource = {"attributes": [_attribute("service.name", "turnstream")]}
    records = {"scope": {"name": "turnstream.audit"}, "logRecords": list(map(_record, lines))}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [records]}]}


def _record(line: AuditLine) -> Mapping[str, Any]:
    """Returns the record of a line. Its body is the line itself, and `audit.hash` is the SHA-256 of the line with its
    line break.
    """
    entry, time = line.entry, str(int(line.entry.created_at.timestamp() * 1e6) * 1000)
    named = {
        "audit.id": entry.id,
        "audit.owner": entry.owner,
        "audit.actor": entry.actor,
        "audit.previous": line.previous,
        "audit.hash": hash_of(line.line),
    }
    return {
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": _INFO,
        "severityText": "INFO",
        "eventName": entry.kind,
        "body": {"stringValue": line.line.decode().removesuffix("\n")},
        "attributes": [_attribute(name, value) for name, value in named.items() if value is not None],
    }


def _attribute(name: str, value: str | int) -> Mapping[str, Any]:
    return {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
