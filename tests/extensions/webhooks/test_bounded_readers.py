"""A receiver of webhooks that sends an endless answer."""

import aiohttp

from tests.support.endless import ON_THE_WAY, Endless, check_documented, sending
from turnstream.extensions.webhooks.deliveries import Receiver, post_signed


async def test_only_the_status_is_read() -> None:
    check_documented("receiver of webhooks", 0)
    async with sending(Endless()) as endless, aiohttp.ClientSession() as http:
        receiver = Receiver(endless.url, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        assert await post_signed(http, receiver, "id", b"") == 200
    assert endless.sent < ON_THE_WAY
