"""A server that answers, but not as TLS wants it: said as that, never as "nothing answers"."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from vlmconsole.engines.http import EngineError, get_json, open_client
from vlmconsole.engines.profile import make_profile
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError


def asked(url: str) -> tuple[str, str]:
    """What a control request and the gauges say of the server at `url`."""
    profile = make_profile({"name": "far", "engine": "openai", "base_url": f"{url}/v1", "model": "m"})

    async def control() -> str:
        async with open_client(profile) as client:
            with pytest.raises(EngineError) as refusal:
                await get_json(client, profile, "/v1/models")
            return str(refusal.value)

    fetcher = Fetcher(url)
    try:
        with pytest.raises(SourceError) as missing:
            fetcher.get("/metrics")
    finally:
        fetcher.close()
    return asyncio.run(control()), missing.value.message


def certificate(folder: Path, *, days: int = 1, name: str = "localhost") -> ssl.SSLContext:
    files = folder / "key.pem", folder / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", str(days), "-subj", f"/CN={name}"]
    subprocess.run([*words, "-keyout", files[0], "-out", files[1]], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    return context


async def test_https_at_a_server_that_speaks_none() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)  # of the hello
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for words in await asyncio.to_thread(asked, f"https://127.0.0.1:{port}"):
            assert "http://" in words and "nothing answers" not in words


@pytest.mark.parametrize("name", ["localhost", "elsewhere.example"])
async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path, name: str) -> None:
    try:
        context = certificate(tmp_path, name=name)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no openssl here")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for words in await asyncio.to_thread(asked, f"https://127.0.0.1:{port}"):
            assert "certificate" in words and "SSL_CERT_FILE" in words and "nothing answers" not in words


async def test_nothing_there_is_still_nothing_there() -> None:
    for words in await asyncio.to_thread(asked, "https://127.0.0.1:9"):
        assert "nothing answers" in words
