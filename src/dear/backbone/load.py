"""Load a frozen CLIP by its OpenCLIP name, from a folder or from the model hub.

Besides this module, `backbone.names` imports open_clip for its lists, `backbone.safety` to check configurations,
`backbone.tokenizer` for its tokenizers, `backbone.built` for its norm, `backbone.foreign` to convert models of
transformers and `world.clip` to build the CLIP of the synthetic world.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import open_clip
import torch
from open_clip.pretrained import get_pretrained_cfg
from torch.overrides import TorchFunctionMode
from torchvision import transforms

from dear.backbone.augment import TrainTransform
from dear.backbone.built import cast, geometry_of
from dear.backbone.clip import FrozenClip, content_hash
from dear.backbone.download import cached, download, listing
from dear.backbone.foreign import CONFIG, Foreign, is_foreign, read_foreign
from dear.backbone.foreign_hub import repository_folder
from dear.backbone.guarded import one_sentence, quiet, without_code
from dear.backbone.hub import CONFIG_FILE, WEIGHTS, WHOLE, Wanted
from dear.backbone.limits import check_parameters, check_preprocess
from dear.backbone.names import RANDOM, SUGGESTION, check_pretrained, repository_of, resolve_name, shipped
from dear.backbone.origin import PAGE, Origin, origin_of
from dear.backbone.own_trunk import register
from dear.backbone.safety import SAFE, check_config, check_format, check_readable, weights_of
from dear.backbone.support import refused
from dear.backbone.text_hub import HUB_POOL
from dear.backbone.tokenizer import read_tokenizer
from dear.errors import BackboneError, HubError, MissingExtraError, backbone, option
from dear.progress.stages import stage
from dear.storage import documents
from dear.storage.files import NotRegularError, is_file, read_regular

Precision = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PREPROCESSING = {"mean", "std", "interpolation", "resize_mode"}
"""What open_clip's tags say about the images that their weights expect."""
RANDOM_VALUES = {"uniform_", "normal_", "trunc_normal_"} | {
    f"{name}_{kind}_" for name in ("kaiming", "xavier") for kind in ("uniform", "normal")
}
"""Functions of torch that fill a tensor with random numbers."""
NUMPY = (".npz", ".npy")
"""Files that open_clip reads without checking that no weight is missing."""
ClipProvider = Callable[..., FrozenClip]
"""Anything that is called with the arguments of `load_clip` and returns a CLIP."""


def load_clip(
    name: str,
    pretrained: str | Path | None = None,
    device: str | torch.device = "cpu",
    *,
    precision: Precision = "fp32",
    seed: int = 0,
    allow_pickled: bool = False,
) -> FrozenClip:
    """Load a frozen CLIP with its preprocessing, tokenizer, geometry and weights' hash.

    Args:
        name: an OpenCLIP name ("ViT-B-16-quickgelu"), "hf-hub:org/repo" or "local-dir:path" in the format of OpenCLIP
            or transformers, or "world" or "world-siglip", the small CLIPs that ship with this package.
        pretrained: a tag ("openai"), the path of a checkpoint, or "random" for random weights.
            Leave it out for folders and hub repositories, which contain their own weights.
        device: where to put the model.
        precision: type of the frozen weights; trained parameters stay fp32.
        seed: seed of the random weights.
        allow_pickled: also read weights that are not in a safetensors file (tensors only, never code).
    """
    return _provider(name, pretrained, device, precision=precision, seed=seed, allow_pickled=allow_pickled)


@contextmanager
def clips_from(provider: ClipProvider) -> Iterator[None]:
    """Let `provider` answer every `load_clip` inside this block, whichever module calls it, instead of `read_clip`.

    A program that already has its CLIPs in memory can share them this way. Child processes read their own.
    """
    global _provider
    before, _provider = _provider, provider
    try:
        yield
    finally:
        _provider = before


def read_clip(
    name: str,
    pretrained: str | Path | None,
    device: str | torch.device,
    *,
    precision: Precision,
    seed: int,
    allow_pickled: bool,
) -> FrozenClip:
    """Read a CLIP from OpenCLIP, the hub or a folder: what `load_clip` does unless `clips_from` says otherwise."""
    pretrained = str(pretrained) if isinstance(pretrained, Path) else pretrained
    home = _check_arguments(name, pretrained, device, precision, seed)
    name = resolve_name(name)
    source = _source(name)
    foreign = _foreign(name, source, pretrained)
    config = foreign.config if foreign else _read_config(source)
    if source.startswith(("local-dir:", "hf-hub:")):
        check_config(name, config)
    if reason := refused(config):
        raise BackboneError(f"{name} cannot be loaded: {reason}.")
    check_extra(name, config)
    check_pretrained(source, pretrained, config)
    own = pretrained != RANDOM and not foreign
    weights = _find_weights(source, pretrained, allow_pickled=allow_pickled) if own else None
    with stage(f"loading {Path(name).name}"):
        model = _create(source, pretrained, weights, seed, foreign)
    with one_sentence(source, pretrained):
        geometry = geometry_of(model, config)
    text_cfg, vocab_size = config["text_cfg"], geometry.vocab_size
    tokenizer = foreign.tokenizer() if foreign else read_tokenizer(source, _folder(source), text_cfg, vocab_size)
    weights_sha256 = content_hash(model.state_dict())
    if precision != "fp32":
        cast(model, DTYPES[precision])
    preprocess = _preprocessing(model)
    text = getattr(model, "text", model)
    model.visual.output_tokens = text.output_tokens = False
    return FrozenClip(
        model.to(home),
        name=name,
        pretrained=pretrained,
        precision=precision,
        seed=seed if pretrained == RANDOM else None,
        geometry=geometry,
        weights_sha256=weights_sha256,
        preprocess_train=_train_transform(preprocess),
        preprocess_eval=open_clip.transform.image_transform_v2(preprocess, is_train=False),
        tokenizer=tokenizer,
        text_pool=str(getattr(text, "text_pool_type", None) or getattr(text, "pool_type", HUB_POOL)),
        text_eos_id=getattr(text, "text_eos_id", None) or getattr(text, "eos_id", None) or 0,
        origin=_origin(source, pretrained, foreign),
        pickled=weights is not None and weights.suffix != SAFE and not _is_listed(source, pretrained),
    )


_provider: ClipProvider = read_clip


def _check_arguments(name: object, pretrained: object, device: Any, precision: object, seed: object) -> torch.device:
    """Raise `BackboneError` for invalid arguments before anything large is built; return the device."""
    if not isinstance(name, str) or not name.strip():
        raise BackboneError(f"The backbone is {name!r}: give its name, such as {backbone(*SUGGESTION)}.")
    if pretrained is not None and not isinstance(pretrained, str):
        raise BackboneError(f"pretrained is {pretrained!r}: give a tag such as 'openai', a path, or 'random'.")
    if not isinstance(precision, str) or precision not in DTYPES:
        raise BackboneError(f"precision is {precision!r}, but can be 'fp32', 'bf16' or 'fp16'.")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise BackboneError(f"seed is {seed!r}, but must be a whole number from 0 on.")
    try:
        home = torch.device(device)
        if home.type == "meta":
            raise RuntimeError("tensors there have no values")
        torch.empty(0, device=home)
    except (RuntimeError, TypeError, AssertionError):
        raise BackboneError(
            f"The device {device!r} cannot be used on this machine: try {option(device='cpu')}."
        ) from None
    return home


def _source(name: str) -> str:
    """The name under which open_clip finds a backbone."""
    folders = shipped()
    return f"local-dir:{folders[name]}" if name in folders else name


def _folder(name: str) -> Path | None:
    """The folder of a backbone's configuration, in the cache if it is on the hub; None for OpenCLIP's own names."""
    if name.startswith("local-dir:"):
        return Path(name.removeprefix("local-dir:"))
    if name.startswith("hf-hub:"):
        return repository_folder(name)
    return None


def _foreign(name: str, source: str, pretrained: str | None) -> Foreign | None:
    """A folder or repository in transformers' format; None for everything else."""
    if not source.startswith(("local-dir:", "hf-hub:")):
        return None
    check_pretrained(source, pretrained, {})
    folder = _folder(source)
    return read_foreign(name, folder) if folder and is_foreign(folder, CONFIG_FILE) else None


def config_of(name: str) -> dict[str, Any]:
    """The model configuration of a backbone, from OpenCLIP, the hub or a folder."""
    source = _source(resolve_name(name))
    foreign = _foreign(name, source, None)
    return foreign.config if foreign else _read_config(source)


def _read_config(name: str) -> dict[str, Any]:
    """Read the model's configuration, before anything large is built or downloaded."""
    if folder := _folder(name):
        path = folder / CONFIG_FILE
        try:
            content = documents.parse(read_regular(path), where=name, what="a config", error=BackboneError)
            config, images = content["model_cfg"], content.get("preprocess_cfg")
        except NotRegularError as error:
            raise BackboneError(f"{path} cannot be read: {error.strerror}.") from None
        except OSError:
            raise BackboneError(
                f"{path} does not exist: local-dir: needs a folder with {CONFIG_FILE} or {CONFIG}, and weights."
            ) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            config = images = None
        check_preprocess(name, images)
    else:
        config = open_clip.get_model_config(name)
    if not isinstance(config, dict) or not all(isinstance(config.get(f"{t}_cfg"), dict) for t in ("vision", "text")):
        raise BackboneError(
            f"{name} is not an OpenCLIP configuration: its model_cfg needs a vision_cfg and a text_cfg."
        )
    return config


def _find_weights(source: str, pretrained: str | None, *, allow_pickled: bool) -> Path:
    """The file with the weights, downloaded if necessary.

    Third-party weights in a format that can contain code are refused; weights that open_clip lists are trusted.
    """
    wanted = _wanted(source, pretrained)
    trusted = allow_pickled or _is_listed(source, pretrained)
    if wanted is not None:
        path = _of_hub(wanted, source, trusted=trusted)
        check_format(path, source, trusted=trusted)
    elif folder := _folder(source):
        path = weights_of(folder)
        check_format(path, str(folder), trusted=trusted)
    else:
        path = Path(str(pretrained))
        check_format(path, str(pretrained), trusted=trusted, clip=source)
    check_readable(path, "put an undamaged copy there" if wanted is None else "run the same command again")
    return path


def _of_hub(wanted: Wanted, source: str, *, trusted: bool) -> Path:
    """Weights of the hub, from the cache or downloaded; refused ones in the cache do not hide others on the hub."""
    safe = tuple(name for name in wanted.names if name.endswith(SAFE))
    if path := cached(wanted if trusted else replace(wanted, names=safe)):
        return path
    try:
        return _download(wanted, source, trusted=trusted)
    except HubError:
        if path := cached(wanted):
            return path
        raise


def _download(wanted: Wanted, source: str, *, trusted: bool) -> Path:
    """Download weights, unless they are refused, and the repository's page, which states their license."""
    listed = listing(wanted)
    if (file := listed.first(wanted.names)) is not None:
        check_format(Path(file.name), source, trusted=trusted)
    path = download(wanted, listed)
    if PAGE in listed.files:
        with suppress(HubError):
            download(replace(wanted, names=(PAGE,), optional=True), listed)
    return path


def _wanted(name: str, pretrained: str | None) -> Wanted | None:
    """The weights that are needed from the hub; None for weights of a folder or a file."""
    if name.startswith("local-dir:") or is_file(pretrained or ""):
        return None
    if folder := _folder(name):
        return Wanted(name, name.removeprefix("hf-hub:"), WEIGHTS, revision=folder.name)
    repository, file = repository_of(name, str(pretrained))
    names, by_hand = ((str(Path(file).with_suffix(SAFE)), file), (file,)) if file else (WEIGHTS, WHOLE)
    return Wanted(f"{name} ({pretrained})", repository, names, by_hand=by_hand)


def _is_listed(name: str, pretrained: str | None) -> bool:
    """Whether open_clip itself names the weights, by a tag."""
    return not name.startswith(("local-dir:", "hf-hub:")) and not is_file(pretrained or "")


def _origin(name: str, pretrained: str | None, foreign: Foreign | None) -> Origin | None:
    """The hub repository of a backbone's weights, with what the hub's cache records about it."""
    if foreign and name.startswith("hf-hub:") and pretrained != RANDOM:
        return origin_of(name.removeprefix("hf-hub:"), CONFIG)
    wanted = None if pretrained == RANDOM else _wanted(name, pretrained)
    return origin_of(wanted.repository, wanted.names[0]) if wanted else None


def check_extra(name: str, config: dict[str, Any]) -> None:
    """Raise `MissingExtraError` if the text tower or the tokenizer needs transformers, which is not installed."""
    text = config["text_cfg"]
    needed = text.get("hf_model_name") or text.get("hf_tokenizer_name")
    if needed and importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(f'{name} reads text with transformers: pip install "dear-vlm[hf]".')


def _create(name: str, pretrained: str | None, weights: Path | None, seed: int, foreign: Foreign | None = None) -> Any:
    """Build the model in fp32 on the CPU with weights from a file, or with random weights; nothing is downloaded."""
    folder = _folder(name)
    tag = get_pretrained_cfg(name, pretrained) if weights and _is_listed(name, pretrained) else {}
    failing = one_sentence(name, pretrained, weights=weights)
    with quiet(), torch.random.fork_rng(devices=[]), failing, without_code(name):
        if foreign:
            torch.manual_seed(seed)
            return foreign.build(random=pretrained == RANDOM)
        register()
        is_complete = weights is not None and weights.suffix not in NUMPY
        model_of = partial(
            open_clip.create_model,
            f"local-dir:{folder}" if folder else name,
            load_weights=False,
            pretrained_text=False,
            force_preprocess_cfg={key: value for key, value in tag.items() if key in PREPROCESSING},
        )
        if folder and folder not in shipped().values():
            with torch.device("meta"):  # nothing is allocated yet
                check_parameters(name, model_of(device="meta"), weights)
        torch.manual_seed(seed)
        with _NoRandomValues() if is_complete else nullcontext():
            model = model_of()
        if weights is not None:
            open_clip.load_checkpoint(model, str(weights), weights_only=True)
        return model


class _NoRandomValues(TorchFunctionMode):
    """Leaves out random initial values, half the time of loading a CLIP; a file that lacks a weight is refused."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in RANDOM_VALUES:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _preprocessing(model: Any) -> Any:
    """open_clip's settings of images, in the one form that all readers understand, also in the model itself.

    A configuration may have one number for all channels, of which open_clip ignores 0 in tests, and an interpolation
    "random", which is bicubic in tests.
    """
    settings = model.visual.preprocess_cfg
    for key in ("mean", "std"):
        if isinstance(settings[key], int | float):
            settings[key] = [float(settings[key])] * 3
    if settings["interpolation"] == "random":
        settings["interpolation"] = "bicubic"
    return open_clip.transform.PreprocessCfg(**settings)


def _train_transform(cfg: Any) -> TrainTransform:
    """The paper's augmentation with this backbone's size, interpolation, mean and standard deviation."""
    to_input = transforms.Compose([transforms.ToTensor(), transforms.Normalize(cfg.mean, cfg.std)])
    size = (cfg.size, cfg.size) if isinstance(cfg.size, int) else tuple(cfg.size)
    return TrainTransform(size=size, interpolation=cfg.interpolation, to_input=to_input)
