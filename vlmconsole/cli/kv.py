"""``vlmconsole kv``: how much memory the keys and values of a context take."""

from __future__ import annotations

import typer

from vlmconsole.cli.common import USAGE, emit, fail

DEFAULT_TOKENS = 4096


def register(app: typer.Typer) -> None:
    """Add ``kv`` to the command tree."""

    @app.command("kv")
    def kv(
        layers: int | None = typer.Option(None, "--layers", min=1, metavar="L"),
        kv_heads: int | None = typer.Option(None, "--kv-heads", min=1, metavar="H", help="Not the query heads."),
        head_dim: int | None = typer.Option(None, "--head-dim", min=1, metavar="D"),
        element: float | None = typer.Option(
            None, "--bytes", min=0.5, metavar="B", help="Bytes an element; 2 for BF16."
        ),
        tokens: int = typer.Option(DEFAULT_TOKENS, "--tokens", min=1, metavar="T", help="Context of one sequence."),
        sequences: int = typer.Option(1, "--sequences", min=1, metavar="S"),
        model: str = typer.Option("", "--model", metavar="DIR", help="Take the figures from its config.json."),
    ) -> None:
        """KV-cache bytes = 2 · layers · sequences · tokens · KV heads · head size · bytes an element."""
        from vlmconsole.vision.kv import EXCLUDED, KVShape, from_config

        given = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
        if model:
            clash = [name for name, value in given.items() if value is not None]
            if clash:
                fail(
                    f"--model already says what {clash[0]} is.", "Give a model folder or the numbers, not both.", USAGE
                )
            shape = from_config(model)
            if element is not None:
                shape = KVShape(**{**shape.__dict__, "bytes_per_element": element})
        elif layers is None or kv_heads is None or head_dim is None or element is None:
            missing = [name for name, value in {**given, "--bytes": element}.items() if value is None]
            fail(
                f"Missing {', '.join(missing)}.",
                "For example: vlmconsole kv --layers 36 --kv-heads 2 --head-dim 128 --bytes 2 --tokens 4096,"
                " or vlmconsole kv --model DIR",
                USAGE,
            )
        else:
            shape = KVShape(layers, kv_heads, head_dim, element)
        total = shape.bytes(tokens, sequences)
        lines = [
            f"2 (keys, values) × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim}"
            f" × {shape.bytes_per_element:g} bytes = {size_text(shape.bytes_per_token)} a token",
            f"× {tokens} tokens × {sequences} sequence{'s' if sequences > 1 else ''} = {size_text(total)}",
            *shape.notes,
            f"Not in it: {', '.join(EXCLUDED)}.",
        ]
        emit(
            {
                "bytes_per_token": shape.bytes_per_token,
                "bytes": total,
                "layers": shape.layers,
                "kv_heads": shape.kv_heads,
                "head_dim": shape.head_dim,
                "bytes_per_element": shape.bytes_per_element,
                "tokens": tokens,
                "sequences": sequences,
                "notes": list(shape.notes),
                "excludes": list(EXCLUDED),
            },
            "\n".join(lines),
        )


def size_text(count: float) -> str:
    """`count` bytes in the largest binary unit that leaves at least 1: "36.0 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
