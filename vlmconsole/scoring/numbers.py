"""Numbers as people write them, read exactly or not at all: signs, thousands separators, percent, currency, units."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Mark = Literal["auto", ".", ","]  # the decimal mark; auto: the point, or a comma that can be nothing else

LONGEST = 80  # characters of a number
LARGEST_EXPONENT = 300
LARGEST = Fraction(10) ** LARGEST_EXPONENT  # either sign; twice as much is still a float
_MINUS = str.maketrans("−‒–", "---")
_THIN = "\u00a0\u202f\u2009"
_OPENING, _CLOSING = "([{<\"'“‘*_~`", ")]}>\"'”’*_~`.,;:!?"
_SPACED = re.compile(r"(\W*[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?\W*)")
_PERCENT = {"%", "percent", "per cent", "prozent", "pct"}


def _numeral(thousands: str, mark: str) -> re.Pattern[str]:
    groups = rf"[1-9]\d{{0,2}}(?P<by>[{thousands}'’{_THIN}])\d{{3}}(?:(?P=by)\d{{3}})*(?:{mark}\d+)?"
    plain = rf"\d+(?:{mark}\d*)?|{mark}\d+"
    return re.compile(rf"(?P<number>(?:{groups}|{plain})(?:[eE][+-]?\d+)?)(?P<unit>[^\d.,]*)")


_NUMERALS = {".": _numeral(",", r"\."), ",": _numeral(r"\.", ",")}


@dataclass(frozen=True)
class ReadNumber:
    """One number of a text, exact. `percent`: a sign or word for percent stands behind it (the value is as written)."""

    value: Fraction
    percent: bool


def numbers_in(text: str, decimal: Mark = "auto") -> list[ReadNumber | None]:
    """Return the numbers of a text: one for each word that holds a digit, None where that word is no plain number.

    `1,250` is 1250 unless the comma is said to be the decimal mark; `1,25` is 1.25 unless the point is. `10x20`, `A4`,
    `5/6` and `12:30` are none.
    """
    text = unicodedata.normalize("NFC", text).translate(_MINUS).strip()
    if _SPACED.fullmatch(text):  # 1 250, where nothing else could be meant
        text = re.sub(r"(?<=\d) (?=\d)", "\u202f", text)
    words = [word for word in re.split(r"[ \t\r\n\f\v=]+|(?<!\d):|:(?!\d)", text) if word]
    numbers: list[ReadNumber | None] = []
    for at, word in enumerate(words):
        if any(char.isdigit() and char.isdecimal() for char in word):
            after = words[at + 1].strip(_CLOSING).casefold() if at + 1 < len(words) else ""
            numbers.append(_read(word.lstrip(_OPENING).rstrip(_CLOSING), decimal, after in _PERCENT))
    return numbers


def read_number(value: object, decimal: Mark = "auto") -> ReadNumber | None:
    """Return a number from a JSON number or from a text that holds exactly one; None for everything else.

    A number beyond `LARGEST` is none, however it is written.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            exact = Fraction(str(value))
        except ValueError:  # NaN, infinities, and integers of more digits than Python writes out
            return None
        return ReadNumber(exact, False) if abs(exact) <= LARGEST else None
    if not isinstance(value, str):
        return None
    numbers = numbers_in(value, decimal)
    return numbers[0] if len(numbers) == 1 else None


def _read(word: str, decimal: Mark, percent: bool) -> ReadNumber | None:
    sign = 1
    while word and (word[0] in "+-" or unicodedata.category(word[0]) == "Sc"):  # -$5 and $-5
        sign = -sign if word[0] == "-" else sign
        word = word[1:]
    if len(word) > LONGEST:
        return None
    marks = (".", ",") if decimal == "auto" else (decimal,)
    match, mark = next(((match, mark) for mark in marks if (match := _NUMERALS[mark].fullmatch(word))), (None, ""))
    if match is None:
        return None
    digits = match["number"]
    by = match["by"]
    digits = digits.replace(by, "") if by else digits
    mantissa, _, exponent = digits.replace(mark, ".").lower().partition("e")
    if exponent and abs(int(exponent)) > LARGEST_EXPONENT:
        return None
    value = Fraction(Decimal(mantissa)) * Fraction(10) ** int(exponent or 0)
    if value > LARGEST:
        return None
    unit = match["unit"].casefold()
    return ReadNumber(sign * value, percent or unit in _PERCENT)
