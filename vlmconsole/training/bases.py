"""Which model folder a job's `base` means, and at which precision and on which device it is loaded."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.models.base import check_loadable, read_base
from vlmconsole.models.door import can_render
from vlmconsole.models.programs import refuse_programs
from vlmconsole.models.qwen2_5_vl import VISION, vision_config
from vlmconsole.system.typed_paths import named
from vlmconsole.training.prompts import check_prompts
from vlmconsole.vision.tokens import ProcessorError, ProcessorSettings

BUNDLED = "tiny-qwen2.5-vl"
NEVER = "Training and in-process evaluation never run such programs: take the entry out of a copy of the folder."
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class BaseError(LabError):
    """The base model is not on this machine, or cannot be loaded as asked."""


def base_folder(name: str) -> Path:
    """Return the folder of a base: "" (the bundled model), a path, or a Hugging Face name that was downloaded before.

    Nothing is ever downloaded. Raises BaseError with the way to get it.
    """
    if is_bundled(name):
        return Path(str(resources.files("vlmconsole.assets") / BUNDLED))
    folder = named(name)
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        folder = _downloaded(name)
    if not (folder / "config.json").is_file():
        raise BaseError(f"no model at “{name}”: config.json is missing.", "Give the folder that holds the weights.")
    return folder.absolute()


def loadable_base(name: str) -> Path:
    """`base_folder` of a base that can be trained, merged and evaluated in-process: see `models.base.check_loadable`.

    Raises BaseError when it is not on this machine, BaseReadError when it is nothing that can be loaded here.
    """
    folder = base_folder(name)
    base = read_base(folder)
    refuse_programs(folder, NEVER)
    check_loadable(base)
    return folder


def answering_base(name: str) -> Path:
    """`loadable_base` of a base whose image settings fit it and whose chat template writes what is asked here.

    Raises ProcessorError and TemplateError besides. Where this Python cannot render (the base install), the template is
    first looked at by whoever can.
    """
    folder = loadable_base(name)
    _check_images(folder)
    if can_render():
        check_prompts(folder)
    return folder


def _check_images(folder: Path) -> None:
    """Raise ProcessorError unless images are cut into the patches that the vision tower takes."""
    settings, eyes = ProcessorSettings.from_model_dir(folder), vision_config(read_base(folder).config)
    pairs = (
        ("patch_size", settings.patch_size, "patch_size"),
        ("merge_size", settings.merge_size, "spatial_merge_size"),
        ("temporal_patch_size", settings.temporal_patch_size, "temporal_patch_size"),
    )
    for key, value, of_tower in pairs:
        wanted = eyes.get(of_tower) or VISION[of_tower]
        if value != wanted:
            raise ProcessorError(
                f"{folder}: its images are cut with {key} {value}, its vision tower takes {of_tower} {wanted}.",
                "Take the model's files from their source again.",
            )


def is_bundled(name: str) -> bool:
    """Return whether a base of that name is the bundled model."""
    return name in ("", BUNDLED, f"asset:{BUNDLED}")


def base_name(name: str) -> str:
    """Return the base as provenance and conditions name it: its folder's own name, or its Hugging Face name."""
    if name in ("", f"asset:{BUNDLED}"):
        return BUNDLED
    return name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else named(name).absolute().name


def device_for(wanted: str) -> str:
    """Return the torch device for "auto", "cpu" or "cuda". Raises BaseError when CUDA is asked for and not there."""
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BaseError(
            f"device cuda was asked for, and this Python's torch ({torch.__version__}) sees no GPU.",
            "`vlmconsole doctor` shows the cards; set device=cpu to train on the CPU.",
        )
    return wanted


def precision_for(wanted: str, device: str) -> str:
    """Return the base's precision for "auto": bfloat16 on a GPU, float32 on a CPU; anything else as asked."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if device.startswith("cuda") else "float32"


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise BaseError(f"{name} is no folder, and huggingface_hub is not installed to look for it.") from None
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError):  # ValueError: no name that the Hub has
        raise BaseError(
            f"{name} is not on this machine.", f"Download it first: hf download {name}; or give a folder."
        ) from None
