"""`vlmconsole kv`: how much memory the keys and values of a context take."""

from __future__ import annotations

import typer

from vlmconsole.cli.common import USAGE, emit, fail

DEFAULT_TOKENS = 4096
LEAST_BYTES, MOST_BYTES = 0.5, 16  # an element: a 4-bit number, and a complex one of two doubles


def register(app: typer.Typer) -> None:
    """Add `kv` to the command tree."""

    @app.command("kv")
    def kv(
        layers: int | None = typer.Option(None, "--layers", min=1, max=10**5, metavar="L"),
        kv_heads: int | None = typer.Option(
            None, "--kv-heads", min=1, max=10**6, metavar="H", help="KV heads, not query heads"
        ),
        head_dim: int | None = typer.Option(None, "--head-dim", min=1, max=10**6, metavar="D"),
        element: float | None = typer.Option(
            None, "--bytes", metavar="B", help="Bytes per element, 0.5 to 16; 2 for BF16"
        ),
        tokens: int = typer.Option(
            DEFAULT_TOKENS, "--tokens", min=1, max=10**12, metavar="T", help="Context of one sequence, tokens"
        ),
        sequences: int = typer.Option(1, "--sequences", min=1, max=10**9, metavar="S"),
        model: str = typer.Option(
            "",
            "--model",
            metavar="MODEL",
            help="Model whose config.json is read: a folder, or a profile's name for it",
        ),
    ) -> None:
        """KV-cache bytes = 2 · layers · sequences · tokens · KV heads · head size · bytes an element."""
        from vlmconsole.engines.profile import model_folder
        from vlmconsole.vision.kv import EXCLUDED, KVShape, from_config
        from vlmconsole.vision.steps import kv_steps

        # Said the other way round, it would let a NaN pass, as the option's own range does.
        if element is not None and not LEAST_BYTES <= element <= MOST_BYTES:
            fail(f"--bytes {element:g} is no size of an element.", "Write 0.5 to 16; 2 for BF16.", USAGE)
        given = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
        if model:
            clash = [name for name, value in given.items() if value is not None]
            if clash:
                fail(
                    f"--model already says what {clash[0]} is.", "Give a model folder or the numbers, not both.", USAGE
                )
            shape = from_config(model_folder(model))
            if element is not None:
                shape = KVShape(**{**shape.__dict__, "bytes_per_element": element})
        elif layers is None or kv_heads is None or head_dim is None or element is None:
            missing = [name for name, value in {**given, "--bytes": element}.items() if value is None]
            fail(
                f"Missing {', '.join(missing)}.",
                "For example: vlmconsole kv --layers 36 --kv-heads 2 --head-dim 128 --bytes 2 --tokens 4096,"
                " or vlmconsole kv --model MODEL",
                USAGE,
            )
        else:
            shape = KVShape(layers, kv_heads, head_dim, element)
        total = shape.bytes(tokens, sequences)
        lines = kv_steps(shape, tokens, sequences)
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
