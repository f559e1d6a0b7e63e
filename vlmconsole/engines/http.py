"""Control requests to a server (settings, models, flush): short, bounded, and with errors that people can read."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from typing import Any

import httpx

from vlmconsole import __version__
from vlmconsole.engines import access
from vlmconsole.engines.profile import GIVEN, ServerProfile, redact
from vlmconsole.errors import LabError
from vlmconsole.streams.advice import advice
from vlmconsole.streams.stream import error_text
from vlmconsole.system.bounded_http import LimitError, Limits, fetch, json_value
from vlmconsole.text.plain import one_line

MAX_ERROR_BODY = 64 * 1024
ERROR_BODY_S = 5.0  # seconds for the body of an error; what came by then is shown


class EngineError(LabError):
    """A server that cannot be reached or refused something; one line, without secrets.

    silent: it took the connection and did not answer (frozen, or very busy).
    """

    def __init__(self, message: str, status: int | None = None, silent: bool = False, *, code: str = "") -> None:
        super().__init__(message, code=code)
        self.status, self.silent = status, silent


def open_client(profile: ServerProfile, timeout_s: float = 5.0) -> httpx.AsyncClient:
    """Return a client for one server. Raises ProfileError when its key cannot be used.

    Redirects are not followed (the key would travel with them), and for the loopback interface proxy settings of the
    environment do not count. Answers are not compressed: a time stamp must mean arrival, not decoding.
    """
    headers = {"User-Agent": f"vlmconsole/{__version__}", "Accept-Encoding": "identity"}
    key = profile.api_key()
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
        trust_env=not profile.loopback,
        follow_redirects=False,
        event_hooks=access.event_hooks(
            profile.access.held, lambda error: EngineError(error.full_message, code=error.code)
        ),
    )


async def request(
    client: httpx.AsyncClient,
    profile: ServerProfile,
    path: str,
    method: str = "GET",
    body: Any = None,
    timeout_s: float | None = None,
) -> httpx.Response:
    """Return one whole answer, whatever its status. Raises EngineError without one, or when it passes a limit.

    timeout_s: seconds for all of it, in place of the client's; its body has the size limit of `Limits`.
    """
    within = client.timeout.read if timeout_s is None else timeout_s
    assert within is not None
    waits = httpx.Timeout(within, connect=min(within, 10.0))
    try:
        outgoing = client.build_request(method, profile.url(path), json=body, timeout=waits)
        return await fetch(client, outgoing, Limits(seconds=within))
    except LimitError as error:
        raise EngineError(error.message, silent=error.kind in ("silence", "time"), code=error.code) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise EngineError(connection_error(profile, error)) from None


async def get_json(client: httpx.AsyncClient, profile: ServerProfile, path: str) -> dict[str, Any]:
    """Return the JSON object at a path. Raises EngineError for anything else."""
    return object_of(profile, path, await request(client, profile, path))


def object_of(profile: ServerProfile, path: str, response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object that was answered at a path. Raises EngineError for anything else."""
    if response.status_code != 200:
        raise EngineError(http_error(profile, response.status_code, response.content), response.status_code)
    value = parse_object(response.content)
    if value is None:
        raise EngineError(f"{profile.url(path)} answered with something that is no JSON object")
    return value


def parse_object(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body, or None."""
    try:
        value = json_value(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def first_choice(body: bytes) -> tuple[str, tuple[float, ...]]:
    """Text and the tokens' log-probabilities of a chat completion that came whole; empty for what is missing."""
    choices = (parse_object(body) or {}).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message, logprobs = choice.get("message"), choice.get("logprobs")
    content = message.get("content") if isinstance(message, dict) else None
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    each: list[Any] = [token.get("logprob") if isinstance(token, dict) else None for token in tokens or ()]
    known = tuple(itertools.takewhile(lambda token: isinstance(token, int | float), each))
    return content if isinstance(content, str) else "", known


async def start_of_body(response: httpx.Response) -> bytes:
    """Return the start of an error's body, as much as comes within `ERROR_BODY_S` seconds and `MAX_ERROR_BODY`
    bytes.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            async for data in response.aiter_raw():
                body += data[: MAX_ERROR_BODY - len(body)]
                if len(body) >= MAX_ERROR_BODY:
                    break
    except (TimeoutError, httpx.HTTPError, httpx.StreamError):
        pass  # the status says the most of it
    return bytes(body)


def connection_error(profile: ServerProfile, error: Exception) -> str:
    """Return one line for a request that got no answer."""
    where = profile.base_url or f"server {profile.name}"
    if isinstance(error, httpx.ConnectTimeout):
        return f"{where} does not answer (no connection within the time limit)"
    if fault := tls_fault(error):
        return f"{where}: {fault}"
    if isinstance(error, httpx.ConnectError):
        return f"nothing answers at {where}: is the server running, and the tunnel up?"
    if isinstance(error, httpx.TimeoutException):
        return f"{where} did not answer in time"
    reason = error_text(str(error)) or type(error).__name__
    if isinstance(error, httpx.NetworkError) or "peer closed" in reason or "disconnected" in reason:
        return f"{where} closed the connection before the answer was whole: the server ended, or the line was cut"
    return f"the connection to {where} failed: {redact(reason)}"


def tls_fault(error: BaseException | None) -> str:
    """Say what is wrong with TLS where that is why a connection failed, and what to do; "" for any other cause.

    httpx tells it as a failed connection: something answers, though, and "is the server running?" leads astray.
    """
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if error is None:
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = one_line(error.verify_message or str(error), 200)
        return f"its certificate is not trusted ({reason}): name its authority in SSL_CERT_FILE"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return "it does not speak TLS: http:// in place of https://?"
    return f"TLS failed ({one_line(error.reason or str(error), 200)})"


def http_error(profile: ServerProfile, status: int, body: bytes) -> str:
    """Return one line for an HTTP error status, with what the server said and, where we know it, what to do."""
    value = parse_object(body)
    reason = redact(
        error_text(value if value is not None else body[:2000].decode("utf-8", "replace")), _key_of(profile)
    )
    way = advice(status, reason, profile.name == GIVEN)
    return f"{profile.called} answered {status}: {reason or 'without a word'}{f' ({way})' if way else ''}"


def _key_of(profile: ServerProfile) -> str | None:
    try:
        return profile.api_key()
    except ValueError:
        return None
