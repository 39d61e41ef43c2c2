import socket
from ipaddress import ip_address

import pytest
from yarl import URL

from turnstream.libraries.outgoing.addresses import AddressRefused, Allowed, UrlRefused, is_internal

NOTHING = Allowed()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "203.0.113.9", "192.88.99.1",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fd00:ec2::254", "ff02::1", "100::1",
        "2001::1", "2001:db8::1", "2002:7f00:1::1", "3fff::1", "5f00::1",
    ],
)  # fmt: skip
def test_an_internal_address_is_refused_in_every_notation(address: str) -> None:
    assert is_internal(ip_address(address))
    assert not NOTHING.allows_address(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_a_public_address_is_not(address: str) -> None:
    assert not is_internal(ip_address(address))
    assert NOTHING.allows_address(address)


def test_no_socket_is_opened_for_an_internal_address() -> None:
    with pytest.raises(AddressRefused):
        NOTHING.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
    with Allowed.of(["127.0.0.1"]).open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))) as made:
        assert made.family == socket.AF_INET


def test_a_network_that_is_allowed_is_allowed_in_every_spelling() -> None:
    allowed = Allowed.of(["10.0.0.0/8", "fd00::/8"])
    assert allowed.allows_address("10.9.9.9")
    assert allowed.allows_address("::ffff:10.9.9.9")
    assert allowed.allows_address("fd12::1")
    assert not allowed.allows_address("192.168.0.1")
    assert not allowed.allows_address("::1")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "https"),
        ("ftp://example.com/", "https"),
        ("file:///etc/passwd", "https"),
        ("/relative", "https"),
        ("https://user:word@example.com/", "user or a password"),
        ("https://user@example.com/", "user or a password"),
        ("https://127.0.0.1/", "internal"),
        ("https://[::1]/", "internal"),
        ("https://[::ffff:10.0.0.1]/", "internal"),
        ("https://169.254.169.254/latest/meta-data", "internal"),
    ],
)
def test_a_url_is_refused_before_any_lookup(url: str, reason: str) -> None:
    with pytest.raises(UrlRefused, match=reason):
        NOTHING.check(URL(url))


def test_a_host_that_is_allowed_needs_no_https_and_no_public_address() -> None:
    allowed = Allowed.of(["Tools.Internal", "10.0.0.0/8"])
    for url in ("http://tools.internal:8080/x", "http://TOOLS.internal./x", "http://10.1.1.1/", "https://example.com"):
        allowed.check(URL(url))
    for url in (
        "http://other.internal/",
        "http://sub.tools.internal/",
        "https://192.168.0.1/",
        "ftp://tools.internal/",
    ):
        with pytest.raises(UrlRefused):
            allowed.check(URL(url))


def test_a_host_can_be_added_for_one_tool() -> None:
    assert NOTHING.with_host("tools.internal").allows_host("tools.internal")
    assert NOTHING.with_host("::ffff:127.0.0.1").allows_address("127.0.0.1")
    assert not NOTHING.with_host("127.0.0.1").allows_address("127.0.0.2")


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.0/33", "10.0.0.1/8", "*.example.com", "https://example.com", "a:80", "a b"]
)
def test_an_entry_must_be_a_host_or_a_network(entry: str) -> None:
    with pytest.raises(ValueError, match="must be an address, a network"):
        Allowed.of([entry])
