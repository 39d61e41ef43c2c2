"""Checks URLs that come from others: such a URL may lead to a public address, or to an address that the operator
allows.
"""

import errno
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp import AddrInfoType
from yarl import URL

_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")

_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network

# Internal addresses that `is_global` calls public in some supported version of Python: protocol assignments (metadata
# of Oracle Cloud), the platform service of Azure, relays of 6to4.
_INSIDE_V4 = tuple(map(IPv4Network, ["192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24"]))
_PUBLIC_V6 = IPv6Network("2000::/3")
# Tunnels (Teredo, 6to4) whose far end is an IPv4 address that the sender chooses, and addresses for documentation.
_INSIDE_V6 = tuple(map(IPv6Network, ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"]))
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(OSError):
    """A connection would have reached an internal address. The message is the same for every address, because a host
    may have several addresses, and the caller gets the error of only one of its addresses.
    """

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "the address is internal")


class UrlRefused(ValueError):
    """A URL is not allowed. The message does not contain the URL."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Hosts and networks that the operator allows, even if they are internal or do not use https. If `public` is false,
    no other hosts are allowed.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()
    public: bool = True

    @classmethod
    def of(cls, entries: Iterable[str]) -> "Allowed":
        """Parses entries: an address, a network such as 10.0.0.0/8, or the name of a host. Raises ValueError."""
        hosts: set[str] = set()
        networks: list[_Network] = []
        for entry in entries:
            try:
                networks.append(ip_network(entry))
            except ValueError:
                if not _HOST.fullmatch(entry):
                    raise ValueError(
                        f"{entry!r} must be an address, a network such as 10.0.0.0/8, or the name of a host"
                    ) from None
                hosts.add(_normalize(entry))
        return cls(frozenset(hosts), tuple(networks))

    def with_host(self, host: str) -> "Allowed":
        address = _literal(host)
        if address is None:
            return replace(self, hosts=self.hosts | {_normalize(host)})
        return replace(self, networks=(*self.networks, ip_network(_unwrapped(address))))

    def allows_host(self, host: str) -> bool:
        """Returns whether the operator allows the host of a URL, by its name or its address."""
        address = _literal(host)
        return _normalize(host) in self.hosts if address is None else self._holds(address)

    def allows_address(self, address: str) -> bool:
        found = ip_address(address)
        return self._holds(found) or not is_internal(found)

    def open_socket(self, info: AddrInfoType) -> socket.socket:
        """Opens a socket for an allowed address. The address is checked after the lookup of the host's name, so the
        address cannot change between the check and the connection.
        """
        family, kind, protocol, _, address = info
        if not self.allows_address(address[0]):
            raise AddressRefused
        return socket.socket(family, kind, protocol)

    def check(self, url: URL) -> None:
        """Raises UrlRefused for a URL that can be refused without a lookup of its host."""
        if url.scheme not in {"http", "https"} or not url.host:
            raise UrlRefused("the URL must begin with https://")
        if url.raw_user is not None or url.raw_password is not None:
            raise UrlRefused("the URL must not hold a user or a password; put them into a header")
        if self.allows_host(url.host):
            return
        if not self.public:
            raise UrlRefused("the URL must lead to a host that the operator allows (TURNSTREAM_REQUEST_TOOLS_ALLOW)")
        if url.scheme == "http":
            raise UrlRefused("the URL must begin with https://")
        address = _literal(url.host)
        if address is not None and is_internal(address):
            raise UrlRefused("the URL leads to an internal address")

    def _holds(self, address: _Address) -> bool:
        address = _unwrapped(address)
        return any(address in network for network in self.networks)


def is_internal(address: _Address) -> bool:
    """True for every address that is not public: private, loopback, link-local, shared, multicast, reserved, …"""
    address = _unwrapped(address)
    if isinstance(address, IPv4Address):
        inside = any(address in network for network in _INSIDE_V4)
        return inside or address.is_multicast or not address.is_global
    return address not in _PUBLIC_V6 or any(address in network for network in _INSIDE_V6)


def _unwrapped(address: _Address) -> _Address:
    """Returns the IPv4 address that an IPv6 address contains, if it is mapped (::ffff:…) or translated (NAT64), else
    the address itself.
    """
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


def _literal(host: str) -> _Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _normalize(host: str) -> str:
    return host.lower().rstrip(".")
