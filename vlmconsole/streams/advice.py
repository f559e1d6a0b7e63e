"""What to do about an HTTP error of a chat server, from its status and its own words."""

from __future__ import annotations

import re

_REFUSED: tuple[tuple[str, str], ...] = (
    # mlx-vlm: "Output reservation leaves no room …"; SGLang: "max_completion_tokens is too large"; vLLM: "max_tokens=…"
    (
        r"output reservation|(max_(completion_|new_)?|output |completion )tokens.*(large|greater|at most|fewer)",
        "ask for a shorter answer: --max-tokens, s on the chat screen",
    ),
    (
        r"context|too long|longer than|input tokens|prompt tokens",
        "it does not fit: shorten it, send fewer or smaller images, or begin a new conversation",
    ),
    (r"lora|adapter", "start the server with this adapter, or ask without it"),
    (r"load model|model.*(not found|does not exist|unknown)|(unknown|no such) model", "is the model's name right?"),
    (r"image", "the server does not take this image, or not so many: try another, a smaller one, or fewer"),
)


def advice(status: int, words: str, given: bool) -> str:
    """Return what to do, in words; "" where nothing is known. given: the server was named by its address, not by a
    profile.
    """
    option = "--base-url" if given else "base_url"
    if status in (400, 413, 422):
        known = next((way for pattern, way in _REFUSED if re.search(pattern, words, re.IGNORECASE)), "")
        if known or status == 413:
            return known or "the request is too large: send smaller or fewer images"
        return "the server does not take this request as it is: its words, or its log, name the field"
    return {
        401: "a key needs a profile: api_key_env" if given else "check api_key_env or api_key_file of the profile",
        403: "this key may not do that",
        404: f"is {option} right, and the model's name?",
        405: f"this address takes no questions: {option} is the part before /chat/completions, often ending in /v1",
        429: "too many requests: wait, or ask for less",
        502: "a proxy answers, the server behind it does not: is it running?",
        503: "it is starting, or full: wait and ask again",
        504: "the server behind the proxy took too long: ask for less, or raise the proxy's time limit",
    }.get(status, "")
