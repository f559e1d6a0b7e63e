"""Pictures from the web, from a real server on this machine: limits of size, type and time, and no way inside."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image
from refusals import refused

from vlmconsole.vision.fetch import Fetched, fetch_picture, is_public
from vlmconsole.vision.images import PictureError, open_picture


def _png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 24), "red").save(out, "PNG")
    return out.getvalue()


PNG = _png()


class Handler(BaseHTTPRequestHandler):
    hosts: list[str] = []  # noqa: RUF012 - one server per test session, read by its tests

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        path, port = self.path.partition("?")[0], self.server.server_address[1]
        if path.endswith(".png"):
            self.answer(PNG, "image/png")
        elif path == "/untyped":
            self.answer(PNG, None)
        elif path == "/page":
            self.answer(b"<html>login</html>", "text/html; charset=utf-8")
        elif path == "/lying":
            self.answer(b"<html>login</html>", "image/png")
        elif path == "/large":
            self.answer(bytes(50_000), "image/png")
        elif path == "/large-unsaid":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(bytes(10_000))
        elif path == "/packed":
            self.answer(PNG, "image/png", ("Content-Encoding", "gzip"))
        elif path == "/gone":
            self.send_error(404)
        elif path == "/loop":
            self.answer(b"", None, ("Location", "/loop"), status=302)
        elif path == "/moved":
            self.answer(b"", None, ("Location", "/a%20picture.png"), status=301)
        elif path == "/inside":
            self.answer(b"", None, ("Location", f"http://inside.test:{port}/x.png"), status=302)
        elif path == "/to-file":
            self.answer(b"", None, ("Location", "file:///etc/passwd"), status=302)
        elif path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"\x89")
                time.sleep(0.05)
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(PNG)))
            self.end_headers()
            self.wfile.write(PNG[:20])

    def answer(self, body: bytes, kind: str | None, *headers: tuple[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in ((("Content-Type", kind),) if kind else ()) + headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: the test's own output is enough."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on purpose here
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def fetch(url: str, **options: object) -> Fetched:
    return await fetch_picture(url, allow_private=True, timeout_s=10, **options)  # type: ignore[arg-type]


async def test_a_picture_arrives_whole(base: str) -> None:
    got = await fetch(f" {base}/dir/cat.png?size=1#top ")
    assert (got.data, got.name) == (PNG, "cat.png")
    assert open_picture(got.data, name=got.name).size == (40, 24)
    assert (await fetch(f"{base}/untyped")).data == PNG
    moved = await fetch(f"{base}/moved")
    assert moved.name == "a picture.png" and moved.url == f"{base}/a%20picture.png"


@pytest.mark.parametrize(
    ("path", "code", "noun"),
    [
        ("/page", "picture-missing", "text/html"),
        ("/lying", "picture-missing", "web page"),
        ("/large", "picture-large", "KiB"),
        ("/large-unsaid", "picture-large", "KiB"),
        ("/packed", "download-compressed", "compressed"),
        ("/gone", "download-status", "404"),
        ("/loop", "redirects-many", "5 redirects"),
        ("/to-file", "address-scheme", "https"),
        ("/cut", "download-failed", "/cut"),
    ],
)
async def test_what_is_refused(base: str, path: str, code: str, noun: str) -> None:
    with refused(code, noun, error=PictureError) as caught:
        await fetch(base + path, max_bytes=20_000)
    assert str(caught.value).isprintable()


async def test_the_whole_download_has_one_time_limit(base: str) -> None:
    started = time.perf_counter()
    with refused("download-slow", "0.5 s", error=PictureError):
        await fetch_picture(f"{base}/slow", allow_private=True, timeout_s=0.5)
    assert time.perf_counter() - started < 4


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.org/x.png", "address-scheme"),
        ("file:///etc/passwd", "address-scheme"),
        ("cat.png", "address-scheme"),
        ("http://", "address-scheme"),
        ("http://me:secret@example.org/x.png", "address-credentials"),
        ("http://[::1/x.png", "address-malformed"),
        ("http://no-such-host.invalid/x.png", "host-unknown"),
        ("http://127.0.0.1:1/x.png", "download-failed"),
        ("http://exa\x1b[31mmple/x.png", "address-malformed"),
    ],
)
async def test_addresses_that_cannot_be_fetched(url: str, code: str) -> None:
    with refused(code, error=PictureError) as caught:
        await fetch(url)
    assert str(caught.value).isprintable()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f.1", "169.254.169.254"]
)
async def test_addresses_inside_are_refused_unless_asked_for(base: str, host: str) -> None:
    port = base.rpartition(":")[2]
    with pytest.raises(PictureError) as caught:
        await fetch_picture(f"http://{host}:{port}/cat.png", timeout_s=5)
    assert caught.value.code in ("address-private", "host-unknown")


async def test_the_checked_address_is_the_one_connected_to(base: str) -> None:
    """A name that resolves to a public address first and to loopback later never gets its second answer used."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    port = base.rpartition(":")[2]
    Handler.hosts.clear()
    got = await fetch_picture(f"http://pictures.test:{port}/cat.png", allow_private=True, resolve=rebinding)
    assert got.data == PNG
    assert asked == ["pictures.test"] and Handler.hosts == [f"pictures.test:{port}"]


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    async def mixed(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"]

    with refused("address-private", "mixed.test", "10.0.0.1", "--private"):
        await fetch_picture("http://mixed.test/x.png", resolve=mixed)


async def test_a_redirect_inside_is_checked_again(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host counts as public here, the one it redirects to does not."""
    import vlmconsole.vision.fetch as module

    async def names(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "outside.test" else ["127.0.0.2"]

    monkeypatch.setattr(module, "is_public", lambda address: address == "127.0.0.1")
    port = base.rpartition(":")[2]
    with refused("address-private", "inside.test"):
        await fetch_picture(f"http://outside.test:{port}/inside", resolve=names)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2001:db8::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public
