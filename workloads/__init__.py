"""What runs on the machine: named models and micro-workloads, and model files, as Graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import Path

from compiler.ir.graph import Graph
from workloads.errors import WorkloadError, nearest
from workloads.importers import onnx_model, stablehlo, torch_export
from workloads.importers.hf_config import load_config, read_config
from workloads.micro import MICRO
from workloads.request import Workload, canonical, read_request

# Each is a file of hyper-parameters in Hugging Face form, workloads/configs/<name>.json.
MODELS = (
    "llama2-7b", "llama3-8b", "llama3-70b", "llama3-405b", "mistral-7b", "qwen3-8b", "llama-tiny",
    "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b", "gemma-2b", "gemma-7b", "gemma2-2b", "gemma2-9b",
    "gemma2-27b", "gemma3-1b", "gemma-tiny", "gemma3-tiny", "gpt2", "gpt2-xl", "gpt2-tiny",
    "clip-vit-b32", "clip-vit-l14", "clip-tiny", "llava-1.5-7b", "llava-tiny",
    "whisper-tiny", "whisper-base", "whisper-large-v3", "whisper-test",
    "t5-small", "t5-base", "flan-t5-xl", "t5-tiny",
    "gpt-oss-20b", "gpt-oss-120b", "gpt-oss-tiny",
    "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "qwen1.5-moe-a2.7b", "moe-tiny",
    "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-tiny",
    "mamba2-2.7b", "mamba2-tiny",
    "sd15-unet", "sdxl-unet", "unet-tiny", "sd-vae-decoder", "vae-tiny",
    "dit-xl2", "dit-tiny", "sd3-medium", "sd3-tiny", "flux-dev", "flux-tiny",
    "vit-b16", "vit-l16", "vit-tiny", "bert-base", "bert-large", "bert-tiny", "resnet50", "resnet-tiny",
)  # fmt: skip


UNREAD_SUFFIXES = (".py", ".gguf", ".safetensors")


@cache
def _model(name: str) -> Workload:
    config = resources.files(__name__) / "configs" / f"{name}.json"
    return read_config(name, config.read_text(encoding="utf-8"))


def _micro(workload: Workload) -> Workload:
    return workload


WORKLOADS: dict[str, Callable[[], Workload]] = {
    **{name: partial(_model, name) for name in MODELS},
    **{workload.name: partial(_micro, workload) for workload in MICRO},
}


def list_workloads() -> tuple[str, ...]:
    """Names that `build` knows, models first."""
    return tuple(WORKLOADS)


def describe(name: str) -> str:
    """What a workload (a name or a `config.json` path) is, its phases, and their keys with defaults."""
    return _find(name).describe()


def build(text: str) -> Graph:
    """The graph of `name[:phase][,key=value...]`, `name:key=value,...`, or `path/config.json[:...]`.

    Its name is the same text with every key written out. Raises WorkloadError with all problems found.
    """
    name, rest = _split(text)
    workload = _find(name)
    items = [item.strip() for item in rest.split(",") if item.strip()]
    request, problems = read_request(workload, items)
    if problems or request is None:
        raise WorkloadError("\n".join(f"{name}: {problem}" for problem in problems))
    return request.graph(canonical(workload.name, request))


def _load_json(path: Path) -> Workload:
    """A Hugging Face config, or the graph of a `torch.export` archive: told apart by what is in it."""
    return torch_export.load(path) if torch_export.is_program(path) else load_config(path)


# Model files by the end of their names, longest first.
IMPORTERS: dict[str, Callable[[Path], Workload]] = {
    ".json.gz": torch_export.load,
    ".pt2": torch_export.load,
    ".onnx": onnx_model.load,
    ".mlir": stablehlo.load,
    ".json": _load_json,
}


def _split(text: str) -> tuple[str, str]:
    """Name or path, and the text of phase and keys."""
    for suffix in IMPORTERS:
        head, found, rest = text.partition(suffix)
        if found and (not rest or rest[0] in ":,"):
            return head + suffix, rest[1:]
    for i, char in enumerate(text):
        if char in ":,":
            return text[:i].strip(), text[i + 1 :]
    return text.strip(), ""


def _find(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]()
    for suffix, load in IMPORTERS.items():
        if name.endswith(suffix):
            return load(Path(name))
    if name.endswith(UNREAD_SUFFIXES):
        raise WorkloadError(f"{name}: files of this kind cannot be read; want one of: {', '.join(IMPORTERS)}")
    raise WorkloadError(
        f"workload: got {name!r}{nearest(name, WORKLOADS)}; "
        f"want a config.json, a .pt2, an .onnx, a .mlir or one of: {', '.join(WORKLOADS)}"
    )


__all__ = ["WORKLOADS", "Workload", "WorkloadError", "build", "describe", "list_workloads"]
