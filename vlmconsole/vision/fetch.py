"""A picture from a web address, within limits of size, type and time, and never from inside this network unasked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from vlmconsole.system.bounded_http import LimitError, Limits, fetch
from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import size
from vlmconsole.vision.limits import PictureError, true_kind

if TYPE_CHECKING:
    import httpx

MAX_FETCHED_BYTES = 32 * 1024 * 1024
TIMEOUT_S = 20.0
MAX_REDIRECTS = 5
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address inside an IPv6 one, for NAT64 networks

Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True)
class Fetched:
    """The bytes of one picture file (checked to be one), a name for it and the address it came from in the end."""

    data: bytes
    name: str
    url: str


async def fetch_picture(
    url: str,
    *,
    allow_private: bool = False,
    max_bytes: int = MAX_FETCHED_BYTES,
    timeout_s: float = TIMEOUT_S,
    resolve: Resolve | None = None,
) -> Fetched:
    """Fetch `url` (http or https). `timeout_s` covers everything: look-up, redirects, the whole download.

    Each address, also after a redirect, is looked up once, checked, and then *that* address is connected to, so
    that a name cannot change its mind in between. Loopback, private, link-local and other non-public addresses
    are refused unless `allow_private`. Proxies of the environment are not used: they would look up by themselves.
    Raises PictureError, one printable line.
    """
    import httpx

    try:
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout_s) as client,
        ):
            target = _checked(httpx.URL(url.strip()))
            for _ in range(MAX_REDIRECTS + 1):
                address = await _public_address(target, allow_private, resolve or _resolve)
                answer = await _get(client, target, address, Limits(max_bytes, timeout_s))
                if isinstance(answer, bytes):
                    name = one_line(unquote(PurePosixPath(target.path).name) or target.host, 120)
                    true_kind(answer, name)
                    return Fetched(answer, name, str(target))
                target = _checked(target.join(answer.strip()))
            raise PictureError(
                f"{one_line(url)} leads through more than {MAX_REDIRECTS} redirects", code="redirects-many"
            )
    except (TimeoutError, httpx.TimeoutException):
        late = f"{one_line(url)} did not arrive within {timeout_s:g} s: download it by hand"
        raise PictureError(late, code="download-slow") from None
    except httpx.InvalidURL as error:
        raise PictureError(
            f"{one_line(url)} is not a web address: {one_line(error, 80)}", code="address-malformed"
        ) from error
    except httpx.HTTPError as error:
        reason = one_line(error, 120) or type(error).__name__
        raise PictureError(f"{one_line(url)} could not be fetched: {reason}", code="download-failed") from error


def _checked(url: httpx.URL) -> httpx.URL:
    if url.scheme not in ("http", "https") or not url.host:
        raise PictureError(f"{one_line(url)} is not an http or https address", code="address-scheme")
    if url.userinfo:
        raise PictureError(
            f"{one_line(url.host)}: an address with a user name or password in it is not fetched",
            code="address-credentials",
        )
    return url


async def _resolve(host: str, port: int) -> list[str]:
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in addresses]


async def _public_address(url: httpx.URL, allow_private: bool, resolve: Resolve) -> str:
    """One address of the URL's host to connect to. One private address among them is enough to refuse."""
    try:
        addresses = await resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
    except (OSError, UnicodeError) as error:
        raise PictureError(f"{one_line(url.host)} is not a known host name", code="host-unknown") from error
    if not addresses:
        raise PictureError(f"{one_line(url.host)} has no address")
    for address in addresses:
        if not allow_private and not is_public(address):
            raise PictureError(
                f"{one_line(url.host)} is an address inside this machine or network ({one_line(address, 60)}):"
                " put --private after the address to fetch it all the same",
                code="address-private",
            )
    return addresses[0]


def is_public(address: str) -> bool:
    """True for an address of the public internet; IPv4 addresses wrapped in IPv6 ones are judged by what they wrap."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


async def _get(client: httpx.AsyncClient, url: httpx.URL, address: str, limits: Limits) -> bytes | str:
    """The body, or the address that a redirect names."""
    shown = one_line(url)
    request = client.build_request(
        "GET",
        url.copy_with(host=address),
        # A compressed body could grow past every limit while it is unpacked; pictures gain nothing from it.
        headers={"Host": url.netloc.decode("ascii"), "Accept": "image/*", "Accept-Encoding": "identity"},
        extensions={"sni_hostname": url.host},
    )
    try:
        response = await fetch(client, request, limits, as_sent=True)
    except LimitError as error:
        if error.kind == "size":
            raise _too_large(shown, limits.size) from None
        if error.kind == "coding":
            why = f"{shown} sends its image compressed, which is not accepted: download it by hand"
            raise PictureError(why, code="download-compressed") from None
        raise TimeoutError from None
    if response.is_redirect and "location" in response.headers:
        return response.headers["location"]
    if response.status_code != 200:
        raise PictureError(
            f"{shown} answered with status {response.status_code} {response.reason_phrase}".rstrip(),
            code="download-status",
        )
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind in ("application/json", "application/xhtml+xml", "application/pdf"):
        raise PictureError(
            f"{shown} is not an image but {one_line(kind, 40)}: give the image's own address", code="picture-missing"
        )
    return response.content


def _too_large(shown: str, max_bytes: int) -> PictureError:
    return PictureError(
        f"{shown} is larger than {size(max_bytes)}: download and shrink it by hand", code="picture-large"
    )
