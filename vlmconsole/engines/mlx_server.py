"""Starts mlx-vlm's server quickly and without its CPU faults. Runs under the *server's* interpreter.

Only the standard library and mlx-vlm are needed there, so it is started by its file name and works in an environment
without vlmconsole. What it does before the server module is imported:

* hides packages that serving never calls (torch above all) from the import system: they cost most of the start;
* replaces the Metal-only mask kernel of structured output where there is no Metal, because on a CPU one JSON request
  otherwise ends *every* running stream;
* adds two addresses: `/vlmconsole/effective` for what the server does not tell by itself (running limit, precision,
  device, pid), and `/vlmconsole/adapters`, where the lab names the adapters that requests may ask for;
* puts `mlx_guard` before everything: a key, no web pages, one model, pictures as data, no code of a model's author;
* refuses to listen on anything but the loopback interface.

Arguments are those of `python -m mlx_vlm.server`. A line `vlmconsole: …` is printed before each phase, which
`engines.launch` shows as progress.
"""

import sys

if sys.path and sys.path[0].rstrip("/").endswith("engines"):
    # Started by file name: this folder holds `profile.py`, which must not stand in for the standard library's.
    del sys.path[0]

import importlib.metadata
import os
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

# Measured with `-X importtime` on mlx-vlm 0.7.10: of 6.6 s of imports 4.3 s hang on torch (sympy, scipy and accelerate
# come only through it), none of it used to serve. transformers looks for the others and would load them where present.
HIDDEN = ("torch", "torchvision", "torchaudio", "tensorflow", "jax", "flax")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_STARTED = time.time()
KEY_VARIABLE = "MLX_VLM_SERVER_API_KEY"


def beside(name: str) -> ModuleType:
    """Return a module of this folder, by its file: the server's Python may have no vlmconsole."""
    specification = spec_from_file_location(f"vlmconsole_{name}", Path(__file__).with_name(f"{name}.py"))
    assert specification is not None and specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Without:
    """A finder of modules that does not see some packages; everything else is the wrapped finder's business."""

    def __init__(self, finder: Any, hidden: Iterable[str]) -> None:
        self._finder = finder
        self._hidden = frozenset(hidden)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(packages: Iterable[str] = HIDDEN) -> None:
    """Makes `import package` fail with ModuleNotFoundError for each of the packages not imported yet."""
    wanted = [name for name in packages if name not in sys.modules]
    sys.meta_path[:] = [Without(finder, wanted) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]


def plain_mask(logits: Any, mask: Any) -> Any:
    """Allowed tokens keep their logit, the others get −inf: what mlx-vlm's Metal kernel does, in plain operations.

    logits: (batch, vocabulary) or (vocabulary,). mask: (batch, words) or (words,); bit i of word w allows the
    token 32·w + i.
    """
    mx = import_module("mlx.core")

    if logits.ndim == 1:
        logits = logits[None, :]
    if mask.ndim == 1:
        mask = mask[None, :]
    tokens = mx.arange(logits.shape[1], dtype=mx.int32)
    # A vocabulary padded beyond the mask: those tokens do not exist and are never allowed.
    covered = tokens < mask.shape[1] * 32
    words = mx.take(mask, mx.minimum(tokens // 32, mask.shape[1] - 1), axis=1)
    allowed = mx.logical_and(mx.right_shift(words, tokens % 32) & 1, covered)
    return mx.where(allowed, logits, mx.array(float("-inf"), dtype=logits.dtype))


def without_metal() -> None:
    """Puts `plain_mask` in the place of the Metal kernel; does nothing on a machine with Metal."""
    mx = import_module("mlx.core")

    if mx.metal.is_available():
        return
    structured: Any = import_module("mlx_vlm.structured")

    if not hasattr(structured, "_apply_llguidance_mask"):
        print("vlmconsole: this mlx-vlm has another structured output; JSON requests may fail on a CPU", flush=True)
        return
    structured._apply_llguidance_mask = plain_mask


def effective(runtime: Any, running_limit: int | None, prefill_step: int | None = None) -> dict[str, Any]:
    """Return what is in force in this process. precision: the type that most floating-point numbers have, after
    loading.

    quantization: of the layers that are, as most of their weights are; None where none is. Their packed words are no
    numbers, so they do not count for the precision.
    """
    mx, utils = import_module("mlx.core"), import_module("mlx.utils")

    sizes: dict[str, int] = {}
    model = getattr(getattr(runtime, "response_generator", None), "model", None)
    for _, parameter in utils.tree_flatten(model.parameters()) if model is not None else ():
        name = str(parameter.dtype).rpartition(".")[2]
        if "float" in name:
            sizes[name] = sizes.get(name, 0) + int(parameter.size)
    precision = max(sizes, key=lambda name: sizes[name], default=None)
    return {
        "pid": os.getpid(),
        "started": _STARTED,
        "max_num_seqs": running_limit,
        "prefill_step_size": prefill_step,
        "precision": precision,
        "quantization": quantised(model, precision) if model is not None else None,
        "device": "Metal" if mx.metal.is_available() else "CPU",
    }


def quantised(model: Any, dtype: str | None) -> dict[str, Any] | None:
    """Return how a loaded model's layers are quantised (keys as in `models.quantization`); None where none is.

    dtype: of what is not quantised.
    """
    weights: dict[tuple[int, int, str], int] = {}
    layers: dict[int, int] = {}
    for _, module in model.named_modules():
        packed, bits = getattr(module, "weight", None), getattr(module, "bits", None)
        if not isinstance(bits, int) or packed is None or getattr(module, "scales", None) is None:
            continue
        kind = (bits, int(getattr(module, "group_size", 0) or 0), str(getattr(module, "mode", None) or "affine"))
        weights[kind] = weights.get(kind, 0) + int(packed.size) * 32 // bits
        layers[bits] = layers.get(bits, 0) + 1
    if not weights:
        return None
    bits, group_size, mode = max(weights, key=lambda kind: weights[kind])
    others = {str(other): count for other, count in sorted(layers.items()) if other != bits}
    quantisation = {"method": "mlx", "bits": bits, "group_size": group_size or None, "mode": mode, "dtype": dtype}
    return {**quantisation, "mixed": others} if others else quantisation


def add_effective(server: Any) -> None:
    """Serves `effective` beside mlx-vlm's own addresses; limit and prefill step of the functions its scheduler asks."""
    generation = import_module("mlx_vlm.server.generation")
    runtime = import_module("mlx_vlm.server.runtime").runtime

    async def answer() -> dict[str, Any]:
        return effective(runtime, generation.get_max_num_seqs(), generation.get_prefill_step_size())

    server.app.add_api_route("/vlmconsole/effective", answer)


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the last value of a flag in the arguments; None when it is not given."""
    value = None
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
        elif argument == flag and index + 1 < len(arguments):
            value = arguments[index + 1]
    return value


def refuse_code(trusted: bool) -> None:
    """Keep mlx-vlm from running a program that lies in a model's folder, also when it loads that again."""
    utils: Any = import_module("mlx_vlm.utils")
    plain = utils.get_model_and_args

    def checked(config: dict[str, Any], model_path: Any = None) -> Any:
        if config.get("model_file") and not trusted:
            raise ValueError(f"config.json names a program, model_file = {config['model_file']!r}: it is not run")
        return plain(config, model_path)

    utils.get_model_and_args = checked


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the server until it is ended; exits with one line when the environment cannot serve."""
    started = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if value_of("--host", given) not in LOOPBACK:  # mlx-vlm's own is 0.0.0.0
        raise SystemExit("vlmconsole: this server is for this machine alone: --host must be 127.0.0.1")
    helping = "--help" in given or "-h" in given
    # Out of the environment: nothing that the server starts needs it.
    key = os.environ.pop(KEY_VARIABLE, "")
    model = value_of("--model", given)
    if not helping and (not key or not model):
        raise SystemExit(f"vlmconsole: this server needs a key in ${KEY_VARIABLE}, and --model; it serves nobody else")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.platform.startswith("linux"):
        # Otherwise g++ compiles kernels for 10–20 s at the first request, into a folder shared with other users.
        os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    print("vlmconsole: phase importing mlx-vlm", flush=True)
    hide()
    try:
        server = import_module("mlx_vlm.server")
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"vlmconsole: {sys.executable} cannot serve: {error}. Install it with: pip install 'vlmconsole[local]'"
        ) from None
    without_metal()
    add_effective(server)
    refuse_code("--trust-remote-code" in given)
    if not helping:
        beside("mlx_guard").put_before(server, key, model)
    version = importlib.metadata.version("mlx-vlm")
    print(f"vlmconsole: imported mlx-vlm {version} in {time.monotonic() - started:.1f} s", flush=True)
    print("vlmconsole: phase loading the model", flush=True)
    sys.argv[1:] = given
    server.main()


if __name__ == "__main__":
    main()
