"""Picture paths in pasted or dropped text: quoted, escaped, several at once, as file:// URLs, amid other words."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from vlmconsole.system.typed_paths import named

SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("png", "apng", "jpg", "jpeg", "jpe", "jfif", "mpo", "gif", "webp", "bmp", "dib", "tif", "tiff", "ico"),
        *("heic", "heif", "hif", "avif", "jp2", "j2k", "ppm", "pgm", "pbm", "pnm", "svg"),
    )
)
LONGEST_TEXT = 200_000  # characters; a longer paste is a document, not paths
_MOST_WORDS = 16  # words of one unquoted path with spaces
_MARKS = "?!.,;:"
_MOST_NAMES = 20_000  # names of one folder looked through for a twin

# Only what a shell separates by: U+00A0 and U+202F (in every Mac screenshot's name) are part of a name.
_WORD = re.compile(r"[^ \t\r\n]+")
_SHELL_WORD = re.compile(r"""(?:\\[^\n]|'[^'\n]*'|"(?:\\[^\n]|[^"\\\n])*+"|[^ \t\r\n\\'"])++(?=[ \t\r\n]|$)""")
_SHELL_PIECE = re.compile(r"""\\(.)|'([^'\n]*)'|"((?:\\.|[^"\\\n])*)"|([^\\'"]+)""")
_ROOTED = re.compile(r"/|~|file:/|\.\.?/")
_FOREIGN = re.compile(r"[A-Za-z]:[\\/]|\\\\|file:/+[A-Za-z]:|(?!file:)[A-Za-z][\w+.-]*://")  # Windows, web addresses


@dataclass(frozen=True)
class Pasted:
    """`found` exist here; `missing` look like pictures but do not exist here, as written; `text` is the rest."""

    paths: tuple[Path, ...]
    missing: tuple[Path, ...]
    text: str


@dataclass(frozen=True)
class _Word:
    start: int
    end: int
    value: str  # as a shell reads it


@dataclass(frozen=True)
class _Taken:
    path: Path
    exists: bool
    words: int


def parse_paths(text: str, *, folder: Path | None = None, typed: bool = False) -> Pasted:
    """Split pasted `text` into picture paths that exist, picture paths that do not, and everything else.

    Absolute paths, `~` and `file://` are taken wherever they stand; names relative to `folder` (default: the
    working folder) only when the whole text is paths, so that prose which names a file stays prose. Unquoted
    spaces inside a path are understood. Without any path `text` comes back untouched. Windows paths and web
    addresses stay text. In what was `typed` a picture's path counts amid words when it is relative and names a folder,
    too, and without the mark that ends its sentence.
    """
    if len(text) > LONGEST_TEXT:
        return Pasted((), (), text)
    words = [_bare(word) for word in _split(text)] if typed else _split(text)
    folder = folder or Path()
    only = _all_paths(text, words, folder)
    if only is not None:
        return Pasted(tuple(t.path for t in only if t.exists), tuple(t.path for t in only if not t.exists), "")
    paths: list[Path] = []
    missing: list[Path] = []
    rest, kept_to, at = "", 0, 0
    while at < len(words):
        taken = _take(text, words, at, folder, alone=False, typed=typed)
        if taken is None:
            at += 1
            continue
        (paths if taken.exists else missing).append(taken.path)
        rest = _join(rest, text[kept_to : words[at].start])
        at += taken.words
        kept_to = words[at - 1].end
    if not (paths or missing):
        return Pasted((), (), text)
    return Pasted(tuple(paths), tuple(missing), _join(rest, text[kept_to:]).strip())


def picture_path(written: str) -> Path:
    """Return the file that one written path means, as pasted text does: `~`, a file:// URL, or a name that differs
    from the
    one on disk only in kinds of spaces (macOS screenshots hold U+202F) or composed accents. As written without any.

    Raises LabError for a user that is not there.
    """
    path = Path(written)
    for text in dict.fromkeys((written, _decoded(written))):
        path = named(text)
        if "\0" not in text and os.path.lexists(path):
            return path
    return _twin(path) or path


def _all_paths(text: str, words: list[_Word], folder: Path) -> list[_Taken] | None:
    """Every path of a text that is nothing but paths; None as soon as something else stands in it."""
    taken: list[_Taken] = []
    at = 0
    while at < len(words):
        path = _take(text, words, at, folder, alone=True)
        if path is None:
            return None
        taken.append(path)
        at += path.words
    return taken or None


def _bare(word: _Word) -> _Word:
    """A picture's name without the marks of its sentence behind it."""
    value = word.value.rstrip(_MARKS)
    marks = len(word.value) - len(value)
    return _Word(word.start, word.end - marks, value) if marks and _is_picture_name(value) else word


def _take(text: str, words: list[_Word], at: int, folder: Path, *, alone: bool, typed: bool = False) -> _Taken | None:
    """The path that starts at word `at`; `alone` also accepts relative names and files without a picture's suffix."""
    first = words[at]
    raw = text[first.start : first.end]
    relative = typed and "/" in first.value and _is_picture_name(first.value)
    if _FOREIGN.match(raw) or not (alone or relative or _ROOTED.match(first.value)):
        return None
    longest = 1
    while (
        longest < _MOST_WORDS
        and at + longest < len(words)
        and "\n" not in text[first.start : words[at + longest].start]
        and not _ROOTED.match(words[at + longest].value)
    ):
        longest += 1
    for count in range(longest, 0, -1):
        for written in (text[first.start : words[at + count - 1].end], *([first.value] if count == 1 else [])):
            existing = _existing(_decoded(written), folder, any_suffix=alone and bool(_ROOTED.match(written)))
            if existing is not None:
                return _Taken(existing, True, count)
    written = _decoded(first.value)
    if _is_picture_name(written):
        return _Taken(Path(written), False, 1)
    # An unquoted path with spaces that is not here: only believed when it fills its line.
    line = next((n for n in range(1, longest + 1) if _ends_line(text, words[at + n - 1], before=False)), 0)
    if line > 1 and _ROOTED.match(first.value) and _ends_line(text, first, before=True):
        written = _decoded(text[first.start : words[at + line - 1].end])
        if _is_picture_name(written):
            return _Taken(Path(written), False, line)
    return None


def _split(text: str) -> list[_Word]:
    words: list[_Word] = []
    at = 0
    while match := _WORD.search(text, at):
        start, end, value = match.start(), match.end(), match[0]
        if shell := _SHELL_WORD.match(text, start):  # balanced quotes and escapes; otherwise the plain word
            end = shell.end()
            value = "".join(_piece(piece) for piece in _SHELL_PIECE.finditer(shell[0]))
        words.append(_Word(start, end, value))
        at = end
    return words


def _piece(piece: re.Match[str]) -> str:
    escaped, single, double, plain = piece.groups()
    if double is not None:
        return re.sub(r'\\(["\\$`])', r"\1", double)
    return next(part for part in (escaped, single, plain) if part is not None)


def _decoded(written: str) -> str:
    """A file:// URL as its path; anything else as it is. The host is ignored: a drop over SSH names the laptop."""
    if not written.lower().startswith("file:/"):
        return written
    rest = written[5:]
    if rest.startswith("//"):
        rest = "/" + rest[2:].partition("/")[2]
    return unquote(rest, errors="surrogateescape")


def _existing(written: str, folder: Path, *, any_suffix: bool) -> Path | None:
    picture = _is_picture_name(written)
    if "\0" in written or not (picture or any_suffix):
        return None
    path = folder / os.path.expanduser(written)  # noqa: PTH111 - pathlib's raises for an unknown user
    if picture:  # a broken link or a pipe too: opening it will say so, while "not on this machine" would be wrong
        return path if os.path.lexists(path) else _twin(path)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - pathlib's raises for names that are too long


def _twin(path: Path) -> Path | None:
    """The one file whose path differs only in kinds of spaces or composed accents, of its folders' names too."""
    folder: Path | None = path.parent
    if not path.name or folder is None:
        return None
    if not os.path.lexists(folder):
        folder = _twin(folder)
        if folder is None:
            return None
    wanted = _folded(path.name)
    try:
        with os.scandir(folder) as entries:
            alike = [
                entry.name
                for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)
                if _folded(entry.name) == wanted
            ]
    except (OSError, ValueError):
        return None
    return folder / alike[0] if len(alike) == 1 else None


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", re.sub("[\u00a0\u2007\u202f]", " ", name))


def _is_picture_name(written: str) -> bool:
    return os.path.splitext(written)[1].lower() in SUFFIXES  # noqa: PTH122


def _ends_line(text: str, word: _Word, *, before: bool) -> bool:
    """True when nothing but spaces stands between the word and its line's start (`before`) or end."""
    side = text[: word.start].rpartition("\n")[2] if before else text[word.end :].partition("\n")[0]
    return not side.strip()


def _join(left: str, right: str) -> str:
    return f"{left.rstrip(' ')} {right.lstrip(' ')}" if left and right else left + right
