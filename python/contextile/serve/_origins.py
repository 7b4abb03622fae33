"""The web pages whose scripts may call the server."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"\[([^\]]*)\](?::\d*)?|([^:]*)(?::\d*)?")


def is_own_page(origin: str, host: str, own_name: str) -> bool:
    """Returns True if the browser may have got the page from the server itself.

    ``origin`` and ``host`` are the header fields of its request. Names other than "localhost" and
    the one that the server listens on may be made to point here by a page of theirs (DNS
    rebinding).
    """
    if origin not in (f"http://{host}", f"https://{host}"):
        return False
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1] or match[2] or ""
    if name in ("localhost", own_name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
