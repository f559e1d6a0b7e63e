"""PNG files written by hand, with the pixels that the standard (W3C PNG, third edition) says they show."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass
from itertools import product

from odd_pictures import png_chunks

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
SIZE = (13, 9)  # not a multiple of 8: rows of few bits end in mid-byte
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


@dataclass(frozen=True)
class Written:
    """A PNG file and, pixel by pixel, the exact colour (0 to 1) and opacity (0 to 1) that it holds."""

    name: str
    data: bytes
    pixels: dict[tuple[int, int], tuple[float, float, float, float]]

    def over(self, ground: float = 1.0) -> dict[tuple[int, int], tuple[float, float, float]]:
        """8-bit colours (not rounded) over a grey ground."""
        return {
            at: (255 * (r * a + ground * (1 - a)), 255 * (g * a + ground * (1 - a)), 255 * (b * a + ground * (1 - a)))
            for at, (r, g, b, a) in self.pixels.items()
        }


def every_kind() -> list[Written]:
    """Every colour type and depth, without and with each kind of transparency it can have, plain and interlaced."""
    files = []
    for colour, interlaced in product(DEPTHS, (False, True)):
        for depth in DEPTHS[colour]:
            files += [write(colour, depth, see_through, interlaced) for see_through in _kinds(colour, depth)]
    return files


def _kinds(colour: int, depth: int) -> tuple[str, ...]:
    if colour == GREY:
        return ("none", "lowest", "middle", "highest", "high bits set", "absent")
    if colour == RGB:
        return ("none", "one", "near miss", "high bits set" if depth == 8 else "low bytes")
    if colour == PALETTE:
        return ("none", "one hole", "short", "whole", "half clear", "all opaque")
    return ("opaque", "mixed", "clear")


def write(colour: int, depth: int, see_through: str, interlaced: bool) -> Written:
    """One file; its samples are seeded by its name, the colour that is see-through among them."""
    name = f"type {colour}, {depth} bits, {see_through}{', interlaced' if interlaced else ''}"
    dice = random.Random(name)
    top = 2**depth - 1
    width, height = SIZE
    chunks: list[tuple[bytes, bytes]] = []
    key: tuple[int, ...] | None = None
    palette: list[tuple[int, ...]] = []
    alphas: list[int] = []
    if colour == GREY and see_through != "none":
        value = {"lowest": 0, "highest": top, "absent": top // 3}.get(see_through, (top + 1) // 2)
        key = (value,)
        chunks.append(
            (b"tRNS", struct.pack(">H", value | (0 if depth == 16 or see_through != "high bits set" else 0x100)))
        )
    elif colour == RGB and see_through != "none":
        key = tuple(dice.randint(0, top) for _ in range(3))
        high = 0x100 if see_through == "high bits set" else 0
        chunks.append((b"tRNS", struct.pack(">3H", *(value | high for value in key))))
    elif colour == PALETTE:
        palette = [tuple(dice.randint(0, 255) for _ in range(3)) for _ in range(min(top + 1, 200))]
        chunks.append((b"PLTE", bytes(value for entry in palette for value in entry)))
        alphas = {
            "none": [],
            "one hole": [0] if depth == 1 else [255, 0],
            "short": [128] if depth == 1 else [0, 77],
            "whole": [dice.choice((0, 255)) for _ in palette],
            "half clear": [dice.randint(0, 255) for _ in palette],
            "all opaque": [255] * len(palette),
        }[see_through]
        if alphas:
            chunks.append((b"tRNS", bytes(alphas)))
    samples: dict[tuple[int, int], tuple[int, ...]] = {}
    for y, x in product(range(height), range(width)):
        if colour == PALETTE:
            sample: tuple[int, ...] = (dice.randrange(len(palette)) if x > 2 else x % len(palette),)
        else:
            sample = tuple(dice.randint(0, top) for _ in range(CHANNELS[colour]))
            if colour in (GREY_ALPHA, RGBA):
                alpha = {"opaque": top, "clear": 0}.get(see_through, dice.choice((0, top, dice.randint(0, top))))
                sample = (*sample[:-1], alpha)
            elif key and see_through == "absent":
                sample = (key[0] + 1 if sample == key else sample[0],)
            elif key and dice.random() < 0.3:
                sample = key
            elif key and see_through in ("near miss", "low bytes", "middle") and depth > 1:
                sample = (*key[:-1], key[-1] ^ 1)  # differs in its lowest bit alone
        samples[x, y] = sample
    pixels = {}
    for at, sample in samples.items():
        if colour == PALETTE:
            index = sample[0]
            r, g, b = (value / 255 for value in palette[index])
            a = alphas[index] / 255 if index < len(alphas) else 1.0
        else:
            parts = [value / top for value in sample]
            r, g, b = parts[:3] if colour in (RGB, RGBA) else (parts[0],) * 3
            a = parts[-1] if colour in (GREY_ALPHA, RGBA) else float(sample != key)
        pixels[at] = (r, g, b, a)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    body = zlib.compress(_rows(samples, colour, depth, interlaced, dice))
    half = len(body) // 2
    return Written(
        name,
        png_chunks((b"IHDR", head), *sorted(chunks), (b"IDAT", body[:half]), (b"IDAT", body[half:]), (b"IEND", b"")),
        pixels,
    )


def _rows(
    samples: dict[tuple[int, int], tuple[int, ...]], colour: int, depth: int, interlaced: bool, dice: random.Random
) -> bytes:
    """The scan lines, each with one of the five filters."""
    width, height = SIZE
    step = max(1, CHANNELS[colour] * depth // 8)
    out = bytearray()
    for left, top, across, down in _PASSES if interlaced else ((0, 0, 1, 1),):
        above = b""
        for y in range(top, height, down):
            line = [samples[x, y] for x in range(left, width, across)]
            if not line:
                continue
            bits = "".join(f"{value:0{depth}b}" for sample in line for value in sample)
            bits += "0" * (-len(bits) % 8)
            raw = int(bits, 2).to_bytes(len(bits) // 8, "big")
            above = above or bytes(len(raw))
            out += _filtered(raw, above, step, dice.randrange(5))
            above = raw
    return bytes(out)


def _filtered(raw: bytes, above: bytes, step: int, kind: int) -> bytes:
    out = bytearray([kind])
    for at, value in enumerate(raw):
        a = raw[at - step] if at >= step else 0
        b, c = above[at], above[at - step] if at >= step else 0
        guess = a + b - c
        nearest = min((a, b, c), key=lambda near: abs(guess - near))
        out.append((value - (0, a, b, (a + b) // 2, nearest)[kind]) % 256)
    return bytes(out)
