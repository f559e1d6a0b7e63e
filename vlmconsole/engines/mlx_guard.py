"""What stands before mlx-vlm's server: who may ask it, and for what. Runs under the *server's* interpreter.

mlx-vlm takes whatever folder a request names as a model, opens any file or address that is named as a picture, and
lets every web page ask. Here a request needs the key of this start; names the one model and an adapter that the lab
has named before; and brings its pictures with it. What is not known to be harmless is refused by name.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from vlmconsole.text.sizes import size

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CHAT, ADAPTERS = "/v1/chat/completions", "/vlmconsole/adapters"
ROUTES = frozenset(
    {
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/v1/settings"),
        ("GET", "/v1/metrics"),
        ("GET", "/v1/cache/stats"),
        ("POST", "/v1/cache/reset"),
        ("GET", "/vlmconsole/effective"),
        ("POST", ADAPTERS),
        ("POST", CHAT),
    }
)
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
FIELDS = frozenset(
    {"model", "messages", "adapter_path", "context_management", "max_tokens", "stream", "stream_options"}
    | {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "logprobs", "top_logprobs"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty", "response_format"}
    | {"min_pixels", "max_pixels", "resize_shape", "enable_thinking", "thinking_budget", "reasoning_effort"}
)
PARTS = {"text": {"type", "text"}, "image_url": {"type", "image_url"}}
MESSAGE = frozenset({"role", "content", "name"})
LARGEST = 256 * 1024 * 1024
"""Bytes of a request, pictures and all."""


class RefusedError(Exception):
    """A request that goes no further: its status, and why in a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """An ASGI application in front of another. model: the only one it serves, as it was started with."""

    def __init__(self, app: App, key: str, model: str) -> None:
        self._app, self._key, self._model = app, key.encode(), model
        self._adapters: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: mlx-vlm's voice route
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            self._admit(scope)
            if scope["method"] == "POST" and scope["path"] in (CHAT, ADAPTERS):
                body = await _body(receive)
                if scope["path"] == ADAPTERS:
                    self._name(body)
                    await _answer(send, 200, {"status": "known"})
                    return
                body = self._checked(body)
                length = [(b"content-length", str(len(body)).encode())]
                scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"content-length"] + length
                receive = _again(body, receive)
        except RefusedError as refused:
            await _answer(send, refused.status, {"detail": refused.why})
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Host, origin, key and route, before anything of the request is read."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1").lower() for value in headers.get(b"host", [])]
        if len(hosts) != 1 or (hosts[0].rpartition(":")[0] not in HOSTS and hosts[0] not in HOSTS):
            raise RefusedError(421, "this server is asked at 127.0.0.1 only")
        if b"origin" in headers or b"cookie" in headers or b"sec-fetch-site" in headers:
            raise RefusedError(403, "this server answers no web page")
        given = headers.get(b"authorization", [b""])
        if len(given) != 1 or not hmac.compare_digest(given[0], b"Bearer " + self._key):
            raise RefusedError(401, "this server wants the key of its start, which the lab's own commands have")
        if (scope["method"], scope["path"]) not in ROUTES or scope.get("query_string"):
            raise RefusedError(404, f"{scope['method']} {scope['path']} is not served here")

    def _name(self, body: bytes) -> None:
        """Take in an adapter that requests may name from now on: a folder that holds one and nothing to run."""
        folder = _object(body).get("folder")
        if not isinstance(folder, str) or not Path(folder).is_absolute():
            raise RefusedError(400, "folder must be the whole path of an adapter's folder")
        if not all((Path(folder) / name).is_file() for name in ("adapters.safetensors", "adapter_config.json")):
            raise RefusedError(400, "that folder holds no adapter of mlx-vlm's form")
        self._adapters.add(folder)

    def _checked(self, body: bytes) -> bytes:
        """The chat request as it may go on. Raises RefusedError."""
        asked = _object(body)
        if unknown := sorted(set(asked) - FIELDS):
            raise RefusedError(400, f"not known here: {', '.join(unknown)[:200]}")
        if asked.get("model") != self._model:
            raise RefusedError(404, "this server serves one model, and the request names another")
        adapter = asked.get("adapter_path")
        if adapter is not None and not (isinstance(adapter, str) and adapter in self._adapters):
            raise RefusedError(400, "the request names an adapter that the lab has not named to this server")
        if asked.get("context_management"):
            raise RefusedError(400, "context_management must be []: this server summarises nothing unasked")
        _check_messages(asked.get("messages"))
        if "adapter_path" in asked and "context_management" in asked:
            return body
        # Left out, mlx-vlm would go on with the adapter of whoever asked before.
        return json.dumps({**asked, "adapter_path": adapter, "context_management": []}).encode()


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list):
        raise RefusedError(400, "messages must be a list")
    for message in messages:
        if not isinstance(message, dict) or set(message) - MESSAGE:
            raise RefusedError(400, f"a message has {', '.join(sorted(MESSAGE))} and nothing else")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise RefusedError(400, "content must be a text or a list of parts")
        for part in content:
            _check_part(part)


def _check_part(part: object) -> None:
    known = PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    if not isinstance(part, dict) or known is None or set(part) - known:
        raise RefusedError(400, f"a part is a {' or an '.join(PARTS)}, and nothing else")
    if part["type"] == "text":
        if not isinstance(part.get("text"), str):
            raise RefusedError(400, "the text of a part must be a text")
        return
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, dict) and not set(image) - {"url", "detail"} else None
    if not isinstance(address, str) or not address.startswith("data:image/"):
        raise RefusedError(400, "an image comes as data:image/…;base64,…: no path and no address is opened here")


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the request is no JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "the request is no JSON object")
    return value


async def _body(receive: Receive) -> bytes:
    parts, read = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise RefusedError(400, "the request broke off")
        parts.append(message.get("body", b""))
        read += len(parts[-1])
        if read > LARGEST:
            raise RefusedError(413, f"a request may have {size(LARGEST)}")
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, rest: Receive) -> Receive:
    """The body once more, then whatever comes (that the client has gone)."""
    given = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await rest()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _answer(send: Send, status: int, value: Mapping[str, str]) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def put_before(server: Any, key: str, model: str) -> None:
    """Put a guard before mlx-vlm's application, in the place of the rule that lets every page ask."""
    server.app.user_middleware[:] = [
        layer for layer in server.app.user_middleware if layer.cls.__name__ != "CORSMiddleware"
    ]
    server.app = Guard(server.app, key, model)
