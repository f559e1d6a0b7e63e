"""A server that repeats the key it got, wherever a text of its own can be: http://127.0.0.1:PORT/WAY is a base_url.

Ways: `error` (401 with the key in its words), `page` (a plain page), `event` (an error event in mid-stream), `answer`
(the model says it, cut into single characters), `reasoning`, `model` (the model is called so), `metrics`, `settings`
(in the server info), `usage`, and each of `FORMS` as `error-FORM`, `event-FORM`, `answer-FORM`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda key: key,
    "percent": lambda key: "".join(f"%{ord(char):02X}" for char in key),
    "base64": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "json": lambda key: "".join(f"\\u{ord(char):04x}" for char in key),
    "hex": lambda key: key.encode().hex(),
    "entity": lambda key: "".join(f"&#{ord(char)};" for char in key),
}


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self) -> None:
        with suppress(OSError):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            way, _, form = (re.match(r"/([a-z]+(?:-[a-z0-9]+)?)/", self.path) or ["", "error"])[1].partition("-")
            key = (self.headers.get("authorization") or "Bearer nothing").removeprefix("Bearer ")
            self.say(way, FORMS[form or "plain"](key))

    def say(self, way: str, key: str) -> None:
        if "/chat/" in self.path and way not in ("error", "page"):
            self.stream(way, key)
        elif way == "error":
            self.send(401, json.dumps({"error": {"message": f"the key {key} is not known here", "code": 401}}))
        elif way == "page":
            self.send(500, f"<html>Authorization: Bearer {key}</html>")
        elif self.path.endswith("/models"):
            self.send(200, json.dumps({"data": [{"id": key if way == "model" else "m"}]}))
        elif self.path.endswith("_info") and way == "settings":
            info = {"version": "0.5.23", "api_key": key, "served_model_name": "m", "note": f"key {key}"}
            self.send(200, json.dumps(info))
        elif self.path.endswith("/metrics") and way == "metrics":
            self.send(200, f"the key was {key}\n")
        else:
            self.send(404, json.dumps({"detail": f"Not Found for {key}"}))

    def stream(self, way: str, key: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        name = "reasoning_content" if way == "reasoning" else "content"
        for char in f"It is {key} I think." if way in ("answer", "reasoning") else "Hello":
            self.event({"model": key if way == "model" else "m", "choices": [{"index": 0, "delta": {name: char}}]})
        if way == "event":
            self.event({"error": {"message": f"out of luck with {key}", "code": 500}})
            return
        self.event({"choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 3, "completion_tokens": 6}
        self.event({"choices": [], "usage": usage | ({"billed_to": key} if way == "usage" else {})})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.reply()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def echoing() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
