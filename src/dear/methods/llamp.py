"""LLaMP: a frozen language model reads about each class and provides class-specific prompts for the text tower.

Shapes: B images, C classes, K paraphrases, n rows that pass the language model, M learned words, H its width, D text
width, E joint embedding, T tokens, L tokens of the language model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer
from dear.backbone.rows import Rows
from dear.data.prompts import ClassList
from dear.errors import BackboneError, ConfigError, setting
from dear.methods.api import (
    About,
    Batch,
    Can,
    Method,
    Needs,
    Output,
    Recipe,
    Resource,
    Settings,
    Special,
    tokens_of,
    unit,
)
from dear.methods.parts.language import Copies, LanguageModel, Memory, load_language_model
from dear.methods.parts.lora import Dropout, LowRank, with_low_rank
from dear.methods.parts.published_layers import PUBLISHED_DEPTH, of_twelve
from dear.methods.parts.tokens import WORDS, placeholders, prompted_image, random_linear, word_rows

LARGEST_SCALE = 4.605
RECORD = "language_model.json"
NONE = "none"
"""The setting `lm` for LLaMP without a language model: a control in comparisons."""
QUESTIONS = (
    "describe the distinctive appearance of {}.",
    "what does {} look like?",
    "which visual features tell {} apart from others?",
    "describe how one recognises {} in a photo.",
    "what are the shape, the colours and the texture of {}?",
    "list what can be seen of {}.",
    "describe {} to somebody who has never seen it.",
    "by which details can {} be identified?",
    "what is characteristic of the look of {}?",
    "describe the parts of {} that are visible.",
    "what would a picture of {} show?",
)
"""The first one is published; the others are our own."""


class LLaMPConfig(Settings):
    """Config of LLaMP."""

    lm: Annotated[str, Resource(external=True)] = ""
    """The language model: a folder, a name on the hub, or "none" for rows that are the same for all classes."""
    paraphrases: int = Field(default=11, ge=1, le=len(QUESTIONS))
    """Texts per class that the language model reads: a random one per step, all of them in evaluation."""
    llm_prompts: int = Field(default=16, ge=1, le=4096)
    """Learned rows that pass the language model's last layer."""
    decoder_layers: int = Field(default=1, ge=1)
    """Layers of the language model that are copied and partly trained."""
    llm_depth: int = Field(default=9, ge=1)
    """Number of text layers, from the first on, with class-specific rows."""
    text_prompts: int = Field(default=4, ge=1, le=64)
    """Learned words of the prompt."""
    text_depth: int = Field(default=9, ge=1)
    """Number of text layers, from the first on, with their own learned words; at least `llm_depth`."""
    vision_prompts: int = Field(default=4, ge=1, le=4096)
    """Learned rows of the image tower."""
    vision_depth: int = Field(default=6, ge=1)
    """Number of image layers, from the first on, with their own learned rows."""
    lora_first: int = Field(default=7, ge=1, le=PUBLISHED_DEPTH)
    """First image layer of twelve with low-rank terms; counted from the end in other towers."""
    lora_last: int = Field(default=PUBLISHED_DEPTH, ge=1, le=PUBLISHED_DEPTH)
    """Last image layer with low-rank terms."""
    lora_rank: int = Field(default=8, ge=1, le=4096)
    """Rank of the terms on queries and values."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """The terms are multiplied by lora_alpha / lora_rank."""
    lora_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout rate of their inputs in training."""
    clean_teacher: bool = False
    """Distil from plain CLIP's image features; the published code uses a tower with the low-rank terms."""
    lambda_dist: float = Field(default=2.5, ge=0)
    """Weight of the distillation."""
    l1_text: float = Field(default=25.0, ge=0)
    """Weight of the distance of class features from plain CLIP's."""
    l1_image: float = Field(default=10.0, ge=0)
    """Weight of the distance of image features from the teacher's."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy."""


class FrozenClasses(NamedTuple):
    """Everything about a class list that training does not change."""

    rows_CTD: Tensor
    """Embedded prompts with positions."""
    end_C: Tensor
    memories: tuple[Memory | None, ...]
    """One per paraphrase; a single None without a language model."""
    targets_CE: Tensor
    """Plain CLIP's class features, of unit length."""


class LLaMP(Method[LLaMPConfig]):
    """Class-specific prompts from a frozen language model that reads about the classes."""

    name = "llamp"
    needs_of_clip = frozenset({Can.WORDS, Can.IMAGE_LAYERS, Can.TEXT_LAYERS, Can.CAUSAL_TEXT})
    recipe = Recipe(
        lr=2e-4,
        groups={"lora.*": 2e-5},
        floors={"lora.*": 5e-6, "*": 1e-5},
        decay=5e-5,
        clip_norm=1.0,
        epochs=20,
        cosine_epochs=20,
        warmup_epochs=0.1,
        batch_size=4,
        crop=(0.08, 1.0),
    )
    special = (
        Special({"epochs": 10}, data=("imagenet",)),
        Special({"epochs": 50, "lr": 2e-5, "groups": {"lora.*": 2e-5}}, {"lambda_dist": 1.0}, protocols=("few-shot",)),
    )
    about = About(
        citation="Zheng et al., Large Language Models are Good Prompt Learners for Low-Shot Image Classification, "
        "CVPR 2024",
        year=2024,
        touches="both towers, layers 1–9 and 7–12",
        parameters=None,
        needs="a language model; descriptions, if any",
        code="zhaohengz/LLaMP 3dec7f3",
        licence="MIT",
        trained="52,764,673 (LLaMA-2-7B)",
    )
    log_probabilities = True

    def __init__(self, clip: FrozenClip, config: LLaMPConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self._lm = self._language_model()
        self._record_language_model()
        if clip.text.first != 1:
            raise BackboneError(f"llamp needs a start token in prompts, which those of {clip.name} do not have.")
        width, wide = clip.text.width, clip.vision.width
        self._words_depth = min(max(config.text_depth, config.llm_depth), clip.text.depth)
        self._llm_depth = min(config.llm_depth, clip.text.depth)
        self._lora = of_twelve(clip.vision.depth, config.lora_first, config.lora_last)
        first = min(self._lora.values())
        self._teacher = "feature" if config.clean_teacher else f"rows@{first}"
        self.needs = Needs(image=("rows@1",), training=(self._teacher,))
        if self._lm is not None:
            self._copies = Copies(self._lm, config.decoder_layers)
            self.class_token = _uniform(self.generator, self._lm.width, config.llm_prompts, self._lm.width)
            self.decoder, self.norm = self._copies.trained()
            self.text_proj = nn.ModuleList(
                random_linear(self.generator, self._lm.width, width, bias=False) for _ in range(self._llm_depth)
            )
        self.llm_prompt_bias = nn.ParameterList(
            _uniform(self.generator, width, config.llm_prompts, width) for _ in range(self._llm_depth)
        )
        later = [_uniform(self.generator, width, config.text_prompts, width) for _ in range(self._words_depth)]
        self.text_prompts = nn.ParameterList([self._first_words(clip, later[0]), *later[1:]])
        shape = min(config.vision_depth, clip.vision.depth), config.vision_prompts, wide
        self.visual_prompts = _uniform(self.generator, config.vision_prompts * wide, *shape)
        self.lora = nn.ModuleDict(
            {
                str(layer - 1): nn.ModuleDict({m: LowRank(wide, config.lora_rank, self.generator) for m in "qv"})
                for layer in self._lora
            }
        )
        self.logit_scale = nn.Parameter(torch.tensor([math.log(clip.temperature)]))

    def _language_model(self) -> LanguageModel | None:
        """Load the language model, if any; a relative folder becomes an absolute one in the config."""
        name = self.config.lm
        if not name:
            raise ConfigError(f"llamp needs a language model, a folder or a name on the hub: {setting(lm='FOLDER')}.")
        if name == NONE:
            return None
        if Path(name).is_dir():
            self.config = self.config.model_copy(update={"lm": str(Path(name).resolve())})
        elif RECORD in self.files and Path(name).is_absolute():
            raise ConfigError(
                f"The language model that this was trained with is not at {name!r} any more: put it back, or load with "
                f"dear.load(RUN, moved={{'lm': FOLDER}}), and save the model again for commands."
            )
        return load_language_model(self.config.lm)

    def _record_language_model(self) -> None:
        """Record the language model, or check that it is the one used in training."""
        lm, name = self._lm, self.config.lm
        if lm is not None and lm.depth < self.config.decoder_layers:
            raise ConfigError(f"decoder_layers is {self.config.decoder_layers}, but {name} has {lm.depth}: use fewer.")
        now = {"name": Path(name).name, "sha256": lm.sha256() if lm else ""}
        if RECORD in self.files and json.loads(self.files[RECORD])["sha256"] != now["sha256"]:
            raise ConfigError(f"This was trained with another language model than {name!r}: put that one in its place.")
        self.files.setdefault(RECORD, json.dumps(now))

    def resources(self) -> dict[str, str]:
        """The language model: its name and size, without the folder that it is in."""
        size = f" ({self._lm.depth} layers of width {self._lm.width})" if self._lm else ""
        return {"language model": json.loads(self.files[RECORD])["name"] + size}

    def _first_words(self, clip: FrozenClip, random: nn.Parameter) -> nn.Parameter:
        """Words of the first layer: embeddings of "a photo of a" with positions; random if there are more words."""
        count = self.config.text_prompts
        if count > len(WORDS.split()):
            return random
        return nn.Parameter(word_rows(clip, WORDS, count) + clip.text.positions[1 : 1 + count].detach().float())

    def language_inputs(self, classes: ClassList) -> list[tuple[Tensor, Tensor]]:
        """Ids and mask (C, L) per paraphrase: a question, and a description of the class if there is one.

        None at all without a language model.
        """
        lm = self._lm
        if lm is None:
            return []
        kind = classes.template.strip().removesuffix(".").removeprefix("a photo of ")
        descriptions = classes.descriptions or {}
        found = []
        for number, question in enumerate(QUESTIONS[: self.config.paraphrases]):
            asked = [question.replace("{}", kind.replace("{}", name)) for name in classes.names]
            parts = [
                [
                    f"{lm.chat(f'In one sentence, {one}')} The {name} appears as"
                    for one, name in zip(asked, classes.names, strict=True)
                ]
            ]
            if any(descriptions.get(name) for name in classes.names):
                sentences = [descriptions.get(name) or ("",) for name in classes.names]
                parts.append([each[number % len(each)] for each in sentences])
            found.append(lm.tokenize(*parts))
        return found

    def targets(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Plain CLIP's class features (C, E): the mean over "PROMPT with SENTENCE", or the prompt's feature."""
        found = []
        for name, prompt in zip(classes.names, classes.prompts(), strict=True):
            described = (classes.descriptions or {}).get(name) or ()
            sentences = [f"{prompt.removesuffix('.')} with {one}" for one in described] or [prompt]
            found.append(unit(clip.text.encode(sentences, cut=bool(classes.descriptions))).mean(0))
        return unit(torch.stack(found))

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenClasses:
        """Embedded prompts, keys and values of the language model, and targets."""
        count = self.config.text_prompts
        words = WORDS if count <= len(WORDS.split()) else placeholders(count)
        tokens = tokens_of(clip, classes, f"{words} {{}}")
        rows_CTD = clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C).words
        memories: tuple[Memory | None, ...] = (None,)
        if self._lm is not None:
            lm, copied = self._lm, self.config.decoder_layers
            memories = tuple(lm.remember(*one, copied, clip.device) for one in self.language_inputs(classes))
        return FrozenClasses(rows_CTD, tokens.end_C, memories, self.targets(clip, classes))

    def class_rows(self, memory: Memory | None, count: int) -> list[Tensor]:
        """The rows (C, n, D) of each text layer for `count` classes: read from their texts, or the same for all."""
        if memory is None:
            return [bias.expand(count, -1, -1) for bias in self.llm_prompt_bias]
        read_CnH = self._copies.run(self.class_token, memory, self.decoder, self.norm)
        return [proj(read_CnH) + bias for proj, bias in zip(self.text_proj, self.llm_prompt_bias, strict=True)]

    def features(self, clip: FrozenClip, frozen: FrozenClasses, memory: Memory | None) -> Tensor:
        """Class features (C, E), unnormalised, by one paraphrase."""
        own = self.class_rows(memory, frozen.rows_CTD.shape[0])
        words, count = self.text_prompts, self.config.text_prompts
        x_CTD, n = frozen.rows_CTD, self.config.llm_prompts
        at_C = frozen.end_C - 1 - count
        body = torch.cat([x_CTD[:, 1 + count :], x_CTD.new_zeros(x_CTD.shape[0], n, x_CTD.shape[2])], dim=1)
        each = torch.arange(x_CTD.shape[0], device=x_CTD.device)
        end_CD = x_CTD[each, frozen.end_C]
        body = _placed(_placed(body, at_C, own[0]), at_C + n, end_CD[:, None])
        first = torch.cat([x_CTD[:1, :1], words[0][None].to(x_CTD.dtype)], dim=1)

        def edit(layer: int, rows: Rows) -> Rows:
            if 1 < layer <= len(words):
                rows = rows.put(1, words[layer - 1][None])
            if not 1 < layer <= len(own):
                return rows
            place_C = at_C + 1 + count - rows.past.shape[1]
            return rows._replace(words=_placed(rows.words, place_C, own[layer - 1]))

        return clip.text.features(Rows(first, body, at_C + n), edit=edit)

    def text(self, clip: FrozenClip, frozen: FrozenClasses, batch: Batch | None = None) -> dict[str, Tensor]:
        """Class features per paraphrase (C, K, E), in training of one paraphrase; their mean direction; targets."""
        memories: Sequence[Memory | None] = frozen.memories
        if batch is not None:
            number = float(replace(batch, rows=None).draw("paraphrase")[0])
            memories = [memories[int(number * len(memories))]]
        each_CKE = unit(torch.stack([self.features(clip, frozen, memory) for memory in memories], dim=1))
        return {"classes": unit(each_CKE.mean(1)), "each": each_CKE, "targets": frozen.targets_CE}

    def _layers(self, clip: FrozenClip, batch: Batch | None, name: str) -> list[Layer]:
        """The image tower with low-rank terms."""
        layers, scale = clip.vision.layers, self.config.lora_alpha / self.config.lora_rank
        for layer, own in self._lora.items():
            drop = None
            if batch is not None and self.config.lora_dropout:
                drop = Dropout(batch, self.config.lora_dropout, f"{name}.{layer - 1}")
            terms = dict(self.lora[str(layer - 1)].named_children())
            layers[own - 1] = with_low_rank(layers[own - 1], terms, scale, drop)
        return layers

    @torch.no_grad()
    def _taught(self, clip: FrozenClip, image: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The teacher's image features (B, E), without learned rows."""
        if self.config.clean_teacher:
            return unit(image["feature"])
        layers = self._layers(clip, batch, "teacher")
        first, vision = min(self._lora.values()), clip.vision
        return unit(vision.feature(vision.run(image[self._teacher], first, layers=layers, read=vision.pooled)))

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Mapping[str, Tensor], batch: Batch | None = None
    ) -> Output:
        """Log of the mean probability over paraphrases; in training, scaled cosines of the step's paraphrase."""
        layers = self._layers(clip, batch, "lora")
        image_BE = unit(prompted_image(clip, image["rows@1"], list(self.visual_prompts), tower=layers))
        classes, features = text["classes"], {"cls": image_BE}
        cosine_KBC = torch.einsum("be,cke->kbc", image_BE, text["each"])
        if batch is None:
            mean = cosine_KBC.log_softmax(-1).logsumexp(0) - math.log(cosine_KBC.shape[0])
            return Output({"logits": mean}, features, classes=classes)
        rest = {"teacher": self._taught(clip, image, batch), "cosine": cosine_KBC[0], **text}
        return Output({"logits": self._temperature() * cosine_KBC[0]}, features, classes=classes, rest=rest)

    def _temperature(self) -> Tensor:
        """The learned temperature (1,) within its range; the gradient passes as if nothing were clamped."""
        clamped = self.logit_scale.detach().clamp(0, LARGEST_SCALE)
        return (clamped + (self.logit_scale - self.logit_scale.detach())).exp()

    @torch.no_grad()
    def before_update(self) -> None:
        """Clamp the temperature's logarithm, so that the optimiser starts from the value that the step used."""
        self.logit_scale.clamp_(0, LARGEST_SCALE)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, distances from plain CLIP's features, and divergence from the teacher's predictions."""
        config, text, teacher = self.config, out.rest, out.rest["teacher"]
        wanted = (self._temperature() * (teacher @ text["targets"].T)).log_softmax(-1)
        away = wanted.exp() * (wanted - out.logits.log_softmax(-1))
        return {
            "ce": F.cross_entropy(out.logits, batch.required_labels, label_smoothing=config.label_smoothing),
            "l1": config.l1_text * (text["targets"] - text["each"][:, 0]).abs().mean()
            + config.l1_image * (out.features["cls"] - teacher).abs().mean(),
            "dist": config.lambda_dist * away.mean(),
        }


def _uniform(generator: torch.Generator, fan: int, *shape: int) -> nn.Parameter:
    """A parameter with uniform initial values within ±1/√fan."""
    return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * fan**-0.5)


def _placed(words_CTD: Tensor, at_C: Tensor, new_CnD: Tensor) -> Tensor:
    """Replace rows of each class from position `at_C` on."""
    where = at_C[:, None] + torch.arange(new_CnD.shape[1], device=at_C.device)
    return words_CTD.scatter(1, where[..., None].expand(-1, -1, words_CTD.shape[-1]), new_CnD.to(words_CTD.dtype))
