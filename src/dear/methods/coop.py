"""CoOp: learned words instead of "a photo of a".

Shapes: M learned words, C classes, T tokens, D text width, E joint embedding.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.rows import Rows
from dear.methods.api import About, Batch, Can, ClassList, ConfigError, Draw, Method, Needs, Recipe, Special, unit
from dear.methods.parts.contexts import ContextConfig, context_start, context_template
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import (
    prompt_rows,
    prompt_tokens,
    random_rows,
    with_words,
)


class CoOpConfig(ContextConfig):
    """Config of CoOp."""

    position: Literal["end", "middle", "front"] = "end"
    """Position of the class name: after the context, in its middle, or before it."""
    per_class: bool = False
    """One context per class, with a random start; such a model cannot classify new classes."""

    @property
    def start(self) -> str:
        """The words to start from, or ""."""
        return "" if self.per_class else self.words


class FrozenPrompts(NamedTuple):
    """Embedded prompts without learned words."""

    rows: Rows
    order_CT: Tensor | None
    """If the name is not at the end: indices into [rows, context] for each prompt; `rows` then has no positions."""
    seen_C: Tensor
    """Index of each class among the trained ones."""


class CoOp(Method[CoOpConfig]):
    """Learned words instead of "a photo of a"; the image tower is unchanged."""

    name = "coop"
    needs_of_clip = frozenset({Can.WORDS})
    recipe = Recipe(**DASSL, epochs=200)
    special: ClassVar[tuple[Special, ...]] = (
        Special(config={"words": ""}, protocols=("few-shot",)),
        Special({"epochs": 100}, protocols=("few-shot",), shots=(2, 7)),
        Special({"epochs": 50}, protocols=("few-shot",), shots=(1, 1)),
        Special({"epochs": 50}, protocols=("cross-dataset", "domain")),
        Special({"epochs": 50}, data=("imagenet",)),
    )
    about = About(
        citation="Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022",
        year=2022,
        touches="words of the prompt",
        parameters=2_048,
        code="KaiyangZhou/CoOp ff61507",
        licence="MIT",
    )
    sized_by_data = ("ctx",)

    def __init__(self, clip: FrozenClip, config: CoOpConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(drawn_images=False, novel=not self.config.per_class)
        self.ctx = nn.Parameter(torch.empty(0)) if self.config.per_class else self.start(clip)

    def start(self, clip: FrozenClip) -> nn.Parameter:
        """Initial context (M, D) for all classes."""
        return context_start(clip, self.config, self.generator)

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Create one context per class."""
        if self.config.per_class:
            generator = torch.Generator().manual_seed(draw.seed)
            shape = len(draw.classes.names), self.config.length, clip.text.width
            self.ctx.data = random_rows(generator, *shape).data.to(clip.device)

    def template(self, classes: ClassList) -> str:
        """The prompt whose first words are overwritten."""
        return context_template(self.config)

    def classes(self, clip: FrozenClip, classes: ClassList) -> Any:
        """Embedded prompts, and their order if the name is not at the end."""
        if self.config.per_class and min(classes.seen or (-1,)) < 0:
            raise ConfigError(
                f"With per_class=true, {self.name} knows only the classes it was trained on: leave out the others."
            )
        seen_C = torch.tensor(classes.seen or range(len(classes.names)), device=clip.device)
        template = self.template(classes)
        if self.config.position == "end":
            return FrozenPrompts(prompt_rows(clip, classes, template, self.config.length), None, seen_C)
        tokens = prompt_tokens(clip, classes, template)
        embedded = Rows.of(clip.text.embed(tokens.ids_CT), tokens.end_C)
        return FrozenPrompts(embedded, self._order(clip, classes, tokens.ids_CT.shape[1]), seen_C)

    def _order(self, clip: FrozenClip, classes: ClassList, length: int) -> Tensor:
        """(C, T): indices into [rows, context], if the name is in the middle or at the front."""
        count = self.config.length
        half = count // 2 if self.config.position == "middle" else 0
        context = list(range(length, length + count))
        orders = []
        first = clip.text.first
        for tokens in map(clip.text.count, classes.names):
            name = list(range(first + count, first + count + tokens))
            rest = list(range(first + count + tokens, length))
            orders.append([*range(first), *context[:half], *name, *context[half:], *rest])
        return torch.tensor(orders, device=clip.device)

    def prompts(self, clip: FrozenClip, frozen: FrozenPrompts, context: Tensor) -> Rows:
        """The input of the first text layer with a context (M, D), or one per class."""
        if frozen.order_CT is None:
            return with_words(clip, frozen.rows, context)
        words_CTD = frozen.rows.words
        each_CMD = context.to(words_CTD.dtype).expand(words_CTD.shape[0], *context.shape[-2:])
        picked = frozen.order_CT[..., None].expand(-1, -1, words_CTD.shape[-1])
        x_CTD = torch.cat([words_CTD, each_CMD], dim=1).gather(1, picked)
        half = 0 if context.ndim == 3 or self.config.position == "front" else self.config.length // 2
        return clip.text.rows(x_CTD, frozen.rows.end, clip.text.first + half)

    def text(self, clip: FrozenClip, frozen: Any, batch: Batch | None = None) -> Any:
        """Class features of unit length (C, E)."""
        context = self.ctx[frozen.seen_C] if self.config.per_class else self.ctx
        return unit(clip.text.features(self.prompts(clip, frozen, context)))
