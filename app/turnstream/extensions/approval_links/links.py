"""Signs and verifies approval links, and finds the call that a link is about."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

import msgspec

from turnstream.domain.identity import Identity
from turnstream.extension import CallLinks
from turnstream.storage.contents import ASKS, BLOCKS, CHATS
from turnstream.storage.database import Database, Statement

_DOMAIN = b"turnstream approval link 1\0"
_LONGEST = 4000  # maximum length of a token, in characters

# Returns the newest ask of a call: models may repeat call ids.
GET_LINKED_ASK = Statement(
    """
    SELECT asks.*, chats.id AS chat_id, chats.owner, chats.title, turns.status, turns.cancel_requested,
        blocks.index, blocks.text AS input
    FROM asks JOIN turns ON turns.id = asks.turn_id JOIN chats ON chats.id = turns.chat_id
    LEFT JOIN blocks ON blocks.turn_id = asks.turn_id AND blocks.round = asks.round
        AND blocks.tool_use_id = asks.tool_use_id AND blocks.type = 'tool_use'
    WHERE asks.turn_id = :turn AND asks.tool_use_id = :tool_use_id AND asks.kind = 'approval'
    ORDER BY asks.round DESC LIMIT 1
    """,
    opens=[BLOCKS.named(text="input"), CHATS.named(id="chat_id"), ASKS],
)


class Link(NamedTuple):
    """The signed content of a link: one call with the digest of its input, the principal who decides, and the expiry in
    seconds since 1970.
    """

    turn: UUID
    tool_use_id: str
    digest: str
    principal: str
    expires_at: int


_link = msgspec.json.Decoder(Link)


@dataclass(frozen=True, slots=True)
class LinkSigner:
    """Signs links with the first of `secrets`, and verifies links with all of them. `life` is in seconds."""

    url: str
    secrets: tuple[str, ...]
    life: float

    def sign(self, link: Link) -> str:
        """Returns the token of the link."""
        payload = msgspec.json.encode(link)
        return f"{_text(payload)}.{_text(_signature(self.secrets[0], payload))}"

    def verify(self, token: str) -> Link | None:
        """Returns the content of the token, even if the token has expired. Returns None if none of the secrets signed
        the token.
        """
        try:
            payload, signature = (_bytes(part) for part in token[:_LONGEST].split("."))
        except (ValueError, Base64Error):
            return None
        matches = [hmac.compare_digest(_signature(secret, payload), signature) for secret in self.secrets]
        return _link.decode(payload) if any(matches) else None


def identity_of(link: Link, owner: str) -> Identity:
    """Returns the identity of the person who decides through the link. The audit trail names the link by a hash of its
    content.
    """
    credential = f"link:{sha256(msgspec.json.encode(link)).hexdigest()[:16]}"
    kind, _, name = link.principal.partition(":")
    if kind == "role":
        return Identity(link.principal, frozenset({"approve"}), credential=credential, roles=frozenset({name}))
    return Identity(name or owner, frozenset({"approve"}), credential=credential)


def links_of(signer: LinkSigner, database: Database) -> CallLinks:
    """Returns a function that makes the links for a call: one link for each approver, or one link for the owner if the
    call has no approvers. Repeated calls of the function return the same links.
    """

    async def links(turn: UUID, tool_use_id: str) -> Sequence[Mapping[str, str]]:
        row = await database.row(GET_LINKED_ASK, turn=turn, tool_use_id=tool_use_id)
        if row is None:
            return ()
        end: datetime = row["asked_at"] + timedelta(seconds=signer.life)
        end = min(end, row["expires_at"] or end)
        return [
            {
                "for": principal,
                "url": f"{signer.url}/approvals/"
                + signer.sign(Link(turn, tool_use_id, row["digest"], principal, int(end.timestamp()))),
            }
            for principal in row["approvers"] or [f"person:{row['owner']}"]
        ]

    return links


def _signature(secret: str, payload: bytes) -> bytes:
    return hmac.digest(secret.encode(), _DOMAIN + payload, "sha256")


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Decodes a part of a token. Raises ValueError if the part is not the only valid encoding of its bytes."""
    value = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(value) != text:
        raise ValueError("not the only spelling")
    return value
