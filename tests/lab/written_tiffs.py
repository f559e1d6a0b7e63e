"""TIFF files written by hand: greys and colours of 8 and 16 bits with every kind of extra sample, and their pixels."""

from __future__ import annotations

import struct

COLOURS = ((1.0, 0.25, 0.0), (0.5, 0.5, 0.5), (0.2, 0.8, 1.0), (0.0, 0.0, 0.0))
OPACITIES = (1.0, 0.5, 0.0, 0.25)
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
UNSPECIFIED, ASSOCIATED, UNASSOCIATED = 0, 1, 2


def tiff(photometric: int, bits: int, extra: int | None) -> tuple[bytes, list[tuple[float, ...]]]:
    """A 4×1 file, little-endian and uncompressed; and its 8-bit colours over white. Source: TIFF 6.0."""
    top = 2**bits - 1
    row, shown = [], []
    for colour, opacity in zip(COLOURS, OPACITIES, strict=True):
        parts = colour if photometric == RGB else colour[:1]
        stored = [round(part * (opacity if extra == ASSOCIATED else 1) * top) for part in parts]
        row += [top - value if photometric == WHITE_IS_ZERO else value for value in stored]
        row += [] if extra is None else [round(opacity * top)]
        seen = opacity if extra in (ASSOCIATED, UNASSOCIATED) else 1.0
        whole = parts if photometric == RGB else parts * 3
        shown.append(tuple(255 * (part * seen + 1 - seen) for part in whole))
    pixels = struct.pack(f"<{len(row)}{'B' if bits == 8 else 'H'}", *row)
    samples = (3 if photometric == RGB else 1) + (extra is not None)
    return _file(photometric, bits, samples, extra, pixels), shown


def _file(photometric: int, bits: int, samples: int, extra: int | None, pixels: bytes) -> bytes:
    shorts = {256: 4, 257: 1, 259: 1, 262: photometric, 277: samples, 278: 1, 284: 1}
    entries: dict[int, bytes] = {tag: struct.pack("<HIHH", 3, 1, value, 0) for tag, value in shorts.items()}
    if extra is not None:
        entries[338] = struct.pack("<HIHH", 3, 1, extra, 0)
    end = 8 + 2 + 12 * (len(entries) + 3) + 4
    depths = struct.pack(f"<{samples}H", *[bits] * samples)
    entries[258] = struct.pack("<HI", 3, samples) + (depths.ljust(4, b"\0") if samples < 3 else struct.pack("<I", end))
    end += len(depths) if samples > 2 else 0
    entries[273] = struct.pack("<HII", 4, 1, end)
    entries[279] = struct.pack("<HII", 4, 1, len(pixels))
    table = b"".join(struct.pack("<H", tag) + entries[tag] for tag in sorted(entries))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    return head + (depths if samples > 2 else b"") + pixels
