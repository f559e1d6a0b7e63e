"""What the head of an answer says before any of its body is read: where it points, and how the body is packed."""

from __future__ import annotations

from collections.abc import Mapping

from vlmconsole.system.redaction import redact

MOVED = frozenset({301, 302, 303, 307, 308})


def head_fault(status: int, fields: Mapping[str, str]) -> str:
    """Return why no chat stream can follow such a head, with what to do; "" when one can. fields: names in lower case.

    Redirects are not followed: the key would travel to wherever one points.
    """
    if status in MOVED or (300 <= status < 400 and fields.get("location")):
        where = _plain(fields.get("location", ""))
        if not where:
            return f"{status} (moved) without saying where; check base_url"
        base = where.removesuffix("/").removesuffix("/chat/completions")
        return f"{status}: it points to {where}, which is not followed; if that is right, the address to give is {base}"
    packed = fields.get("content-encoding", "").strip().lower()
    if status < 300 and packed not in ("", "identity"):
        way = "switch compression off for this route, at the server or its proxy"
        return f"with a body packed as {_plain(packed)}, which was not asked for; {way}"
    kind = fields.get("content-type", "").lower()
    charset = kind.partition("charset=")[2].partition(";")[0].strip(' "')
    if status < 300 and charset.startswith(("utf-16", "utf-32")):
        return f"in {_plain(charset)}; an event stream is UTF-8"
    return ""


def _plain(text: str) -> str:
    return redact("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))[:200]
