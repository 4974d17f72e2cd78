"""Compare the Host header of a request with the names of this node.

A page of another site cannot read a node's answers. But its owner can let the name of the site
resolve to the node's address, and the browser then treats the node as a part of the site (DNS
rebinding). Such a request has the site's name in its Host header. An address in the Host header
cannot come from a name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Set
from urllib.parse import urlsplit

from ha_engine.config import HttpConfig


def host_names_of(http: HttpConfig) -> frozenset[str]:
    """The host names under which clients without a token may reach this process, in lower case."""
    own = (urlsplit(http.url).hostname or "", name_of(http.listen))
    names = (*own, *http.host_names, socket.gethostname())
    return frozenset(name.lower() for name in names if name)


def is_served(host: str, names: Set[str]) -> bool:
    """Whether the Host header ``host`` has an address, a name of the loopback, or one of
    ``names``, which are in lower case."""
    name = name_of(host)
    return name in names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def name_of(host: str) -> str:
    """The name or address in a Host header or in HOST:PORT, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
