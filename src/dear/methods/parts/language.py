"""A frozen language model as a source of prompts: its last layers read a text, then learned rows.

Supports every decoder of transformers with rotary positions; only this module imports transformers. Weights are read
from safetensors only, and code of a model is never executed.
Shapes: C sequences, L tokens, n learned rows, H width of the language model.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor, nn

from dear.backbone.clip import content_hash
from dear.errors import ConfigError, setting

MOST_TOKENS = 128
"""Maximum number of tokens of each part of the text."""
BATCH = 32
"""Sequences per pass through the language model."""
FROZEN = ("k_proj", "v_proj", "k_norm", "mlp")
"""Modules of a copied layer that stay frozen; all others are trained."""


RECENT_BYTES = 256 * 2**20
"""Most bytes of keys and values that are stored for lists of texts that are read again: tests, further seeds."""


class Memory(NamedTuple):
    """Keys and values of the language model for a text per class."""

    mask_CL: Tensor
    """1 where there is a token."""
    layers: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values (C, heads, L, head width) of each layer that is copied."""


class LanguageModel:
    """A frozen language model. It is not a module, so that it is not saved, moved or trained with a method."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model.requires_grad_(False).eval()
        self._tokenizer = tokenizer
        self._recent: dict[tuple[Any, ...], Memory] = {}

    @property
    def width(self) -> int:
        """H."""
        return int(self.model.norm.weight.shape[0])

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.model.layers)

    def sha256(self) -> str:
        """Hash of the last layer and the final norm."""
        return content_hash({**self.model.layers[-1].state_dict(), **self.model.norm.state_dict(prefix="norm.")})

    def chat(self, question: str) -> str:
        """A question in the model's chat format."""
        messages = [{"role": "user", "content": question}]
        system = {"role": "system", "content": "You are a helpful assistant."}
        if not getattr(self._tokenizer, "chat_template", None):
            return question
        try:
            asked = self._tokenizer.apply_chat_template([system, *messages], tokenize=False, add_generation_prompt=True)
        except TemplateError:  # some templates have no system message
            asked = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(asked)

    def tokenize(self, *parts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask (C, L) of texts in parts, each padded on its left."""
        if self._tokenizer is None:
            raise ConfigError("The language model has no tokenizer that can be read: add one to its folder.")
        return _joined([[self._tokenizer(text)["input_ids"][:MOST_TOKENS] for text in part] for part in parts])

    def remember(self, ids_CL: Tensor, mask_CL: Tensor, copied: int, device: torch.device) -> Memory:
        """Keys and values of the last layers; the same texts are read once."""
        key = ids_CL.shape, ids_CL.numpy().tobytes(), mask_CL.numpy().tobytes(), copied, str(device)
        if key not in self._recent:
            read = self.read(ids_CL, mask_CL, copied, device)
            while self._recent and sum(map(_bytes, self._recent.values())) + _bytes(read) > RECENT_BYTES:
                del self._recent[next(iter(self._recent))]
            if _bytes(read) > RECENT_BYTES:
                return read
            self._recent[key] = read
        return self._recent[key]

    @torch.no_grad()
    def read(self, ids_CL: Tensor, mask_CL: Tensor, copied: int, device: torch.device) -> Memory:
        """Run the language model on texts; positions count tokens, not padding.

        Half precision is several times slower than fp32 on a CPU, so weights are converted there.
        """
        model, parts = self.model.to(device), []
        if device.type == "cpu":
            model = model.float()
        ids_CL, mask_CL = ids_CL.to(device), mask_CL.to(device)
        for first in range(0, ids_CL.shape[0], BATCH):
            mask = mask_CL[first : first + BATCH]
            found = model(
                input_ids=ids_CL[first : first + BATCH],
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp_min(0),
                use_cache=True,
            ).past_key_values
            parts.append([(one.keys, one.values) for one in found.layers[-copied:]])
        layers = [
            (torch.cat([part[at][0] for part in parts]), torch.cat([part[at][1] for part in parts]))
            for at in range(copied)
        ]
        return Memory(mask_CL, tuple(layers))


def _bytes(memory: Memory) -> int:
    return sum(one.numel() * one.element_size() for pair in memory.layers for one in pair)


class Copies:
    """Copies of the last layers and the final norm, some of whose tensors are parameters of a method."""

    def __init__(self, lm: LanguageModel, count: int) -> None:
        self._layers = [copy.deepcopy(layer).float() for layer in lm.model.layers[lm.depth - count :]]
        self._norm, self._rotary = copy.deepcopy(lm.model.norm).float(), copy.deepcopy(lm.model.rotary_emb)

    def trained(self) -> tuple[nn.ModuleDict, nn.ParameterDict]:
        """Parameters to train, by copy and name, and those of the final norm."""
        layers = {str(at): _nested(layer) for at, layer in enumerate(self._layers)}
        return nn.ModuleDict(layers), nn.ParameterDict({n: _parameter(p) for n, p in self._norm.named_parameters()})

    def run(self, x_nH: Tensor, memory: Memory, layers: nn.ModuleDict, norm: nn.ParameterDict) -> Tensor:
        """Learned rows (C, n, H) after the text of each class, through the copies and the final norm."""
        classes, count = memory.mask_CL.shape[0], x_nH.shape[0]
        x: Tensor = x_nH.expand(classes, -1, -1)
        before = memory.mask_CL[:, None].bool().expand(-1, count, -1)
        own = torch.ones(count, count, dtype=torch.bool, device=x.device).tril().expand(classes, -1, -1)
        seen = torch.cat([before, own], dim=2)[:, None]
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(~seen, torch.finfo(x.dtype).min)
        places = memory.mask_CL.sum(1, keepdim=True) + torch.arange(count, device=x.device)
        rotation = self._rotary.to(x.device)(x, places)
        for layer, tensors, (keys, values) in zip(self._layers, layers.values(), memory.layers, strict=True):
            _link(layer, tensors)
            cache = _transformers().DynamicCache()  # the layer appends to it
            cache.update(keys.to(x.dtype), values.to(x.dtype), layer.self_attn.layer_idx)
            made = layer.to(device=x.device, dtype=x.dtype)(
                x, attention_mask=mask, position_ids=places, position_embeddings=rotation, past_key_values=cache
            )
            x = made[0] if isinstance(made, tuple) else made
        for name, parameter in norm.items():
            setattr(self._norm, name, parameter)
        y: Tensor = self._norm.to(x.device)(x)
        return y


@lru_cache(maxsize=2)
def load_language_model(name: str) -> LanguageModel:
    """A language model from a folder or from the hub."""
    transformers = _transformers()
    transformers.utils.logging.disable_progress_bar()
    local = Path(name).is_dir()
    try:
        model = transformers.AutoModel.from_pretrained(
            name, use_safetensors=True, dtype="auto", trust_remote_code=False, local_files_only=local
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"The language model {name!r} cannot be loaded ({reason}): give a folder with config.json and safetensors, "
            f"or a name on the hub, as in {setting(lm='FOLDER')}."
        ) from None
    layer = model.layers[-1] if hasattr(model, "layers") else None
    fits = all(hasattr(model, part) for part in ("norm", "rotary_emb")) and hasattr(layer, "self_attn")
    if layer is None or not fits or not hasattr(layer.self_attn, "k_proj"):
        raise ConfigError(
            f"The language model {name!r} ({type(model).__name__}) is not a decoder with rotary positions and separate "
            f"keys and values: choose one such as Llama, Mistral or Qwen."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=local)
    except (OSError, ValueError, ImportError, KeyError):
        tokenizer = None
    return LanguageModel(model, tokenizer)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise ConfigError("A language model needs the package transformers: pip install 'dear-vlm[hf]'.") from None


def _joined(parts: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    ids, masks = [], []
    for part in parts:
        length = max((len(one) for one in part), default=0)
        ids.append(torch.tensor([[0] * (length - len(one)) + list(one) for one in part], dtype=torch.int64))
        masks.append(torch.tensor([[0] * (length - len(one)) + [1] * len(one) for one in part], dtype=torch.int64))
    return torch.cat(ids, dim=1), torch.cat(masks, dim=1)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone().float())


def _own_names(layer: nn.Module) -> dict[str, str]:
    """Names of the trained tensors of a layer → our names, of the form MODULE.TENSOR."""
    names = [name for name, _ in layer.named_parameters() if not any(part in name.split(".") for part in FROZEN)]
    return {name: name.removeprefix("self_attn.") for name in names}


def _nested(layer: nn.Module) -> nn.ModuleDict:
    found: dict[str, dict[str, nn.Parameter]] = {}
    tensors = dict(layer.named_parameters())
    for name, own in _own_names(layer).items():
        module, _, leaf = own.rpartition(".")
        found.setdefault(module, {})[leaf] = _parameter(tensors[name])
    return nn.ModuleDict({module: nn.ParameterDict(of_module) for module, of_module in found.items()})


def _link(layer: nn.Module, tensors: Mapping[str, Any] | nn.Module) -> None:
    """Use a method's parameters in a copied layer. Repeated before each use, as loading may replace a parameter."""
    own_tensors = dict(tensors.named_parameters()) if isinstance(tensors, nn.Module) else tensors
    for name, own in _own_names(layer).items():
        module, _, leaf = name.rpartition(".")
        setattr(layer.get_submodule(module), leaf, own_tensors[own])
