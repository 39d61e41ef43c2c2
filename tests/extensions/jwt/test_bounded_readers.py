"""An issuer that sends an endless list of keys or an endless configuration."""

import httpx2
import pytest
import structlog

from tests.support.endless import ON_THE_WAY, Endless, check_documented, sending
from turnstream.libraries.outgoing.issuer_keys import _MOST_BYTES, IssuerKeys


@pytest.mark.parametrize("gzip", [False, True])
async def test_keys_are_read_up_to_their_bound(gzip: bool) -> None:
    check_documented("compressed keys of an issuer" if gzip else "keys and configuration of an issuer", _MOST_BYTES)
    for url in (True, False):
        async with sending(Endless(gzip=gzip)) as endless, httpx2.AsyncClient() as client:
            keys = IssuerKeys(endless.url, endless.url if url else None, client)
            with structlog.testing.capture_logs() as logs:
                await keys._fetch()
            await keys.close()
        assert f"has more than {_MOST_BYTES} bytes" in logs[0]["error"]
        assert endless.sent < ON_THE_WAY
