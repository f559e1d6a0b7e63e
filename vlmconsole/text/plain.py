"""Text from outside (model output, file names, server errors) made safe to show in a terminal.

Nothing here knows about markup: a screen must still hand the result to its toolkit as plain text.
"""

from __future__ import annotations

import re

# What a terminal swallows as a command, 7-bit and 8-bit forms. A string command (title, clipboard, hyperlink)
# without its terminator loses only its introducer: dropping the rest would let two stray bytes hide an answer.
_COMMANDS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\r\n\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-~]?"
)
_LINE_ENDS = re.compile("\r\n|[\r\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Embeddings, overrides and isolates reorder what a person reads ("exe.gpj"); plain direction marks do not.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def inert(text: str) -> str:
    """`text` without escape sequences and control characters; newline and tab stay.

    Every line end becomes `\\n`, direction overrides become visible as `‹U+202E›`, and bytes of a file
    name that were no text become `�`. Idempotent; text without such characters comes back unchanged.
    """
    if _UNSAFE.search(text) is None:  # nearly always: an answer that streams is looked at with every paint
        return text
    text = _COMMANDS.sub("", text)
    text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
    text = _BIDI.sub(lambda match: f"‹U+{ord(match[0]):04X}›", text)
    return _SURROGATES.sub("\ufffd", text)


def one_line(text: object, limit: int = 200) -> str:
    """`text` as one printable line of at most `limit` characters: controls are escaped (`\\x1b`), not hidden.

    For names and causes inside an error message, where a removed character would itself be a lie.
    """
    line = _UNSHOWABLE.sub(_escaped, str(text))
    return line if len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that the file system's encoding could not decode
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT_ESCAPES.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def beginning(text: str) -> str:
    """Return how an unexpected answer begins, for a reason that people read: one line, nothing that a terminal
    obeys.
    """
    words = "".join(c if c.isprintable() else " " for c in " ".join(text[:200].split()))[:60]
    return f"“{words}…”" if words else "with nothing: it is empty"
