"""The loss of pre-training: the CLIP loss on captions, and auxiliary terms that use the world's ground truth.

Shapes: B images, C captions, N visible patches, D joint embedding, T prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.head_contributions import recording
from dear.backbone.vision import VisionTower
from dear.world import siglip
from dear.world.clip import Kind
from dear.world.vocabulary import ATTRIBUTES, NAMES

FIRST_LATE_LAYER = 9
UNKNOWN = -100  # label that cross-entropy ignores
PROMPT_COUNTS = [len(NAMES[attribute]) for attribute in ATTRIBUTES]


@dataclass(frozen=True)
class StepData:
    """One step's data as tensors."""

    images: Tensor  # (B, 3, 64, 64)
    tokens: Tensor  # (C, length): captions of the first C images
    asked: tuple[int, ...]  # the attributes that have prompts in this step
    prompt_tokens: Tensor  # (T, length): one prompt per value of those attributes
    truth: Tensor  # (B, 5) values, UNKNOWN if the image does not show them
    mentioned: Tensor  # (C, 5) true where the caption mentions the attribute
    shape_patches: Tensor  # (B, 64) share of the patch, 0 to 1
    object_patches: Tensor  # (B, 64)
    visible: Tensor | None  # (B, N) patches that the model sees; None for all
    restarted: Tensor  # (B,) true where [CLS] is reset to its initial state before the late layers


def image_features(
    model: nn.Module, images: Tensor, visible: Tensor | None, restarted: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return normalised features of [CLS] and the visible patches, (B, 1 + N, D), and the late heads' output for [CLS].

    Before the late layers, [CLS] is either reset or detached. So, as in CLIPs trained on photographs, the last layers
    write the embedding from what they read in the patches.
    """
    visual: Any = model.visual
    x_BND = visual.conv1(images).flatten(2).transpose(1, 2) + visual.positional_embedding[1:]
    if visible is not None:
        x_BND = x_BND.gather(1, visible[..., None].expand(-1, -1, x_BND.shape[-1]))
    cls_D = visual.class_embedding + visual.positional_embedding[0]
    x_BLD = torch.cat([cls_D.expand(len(x_BND), 1, -1), x_BND], dim=1)
    x_BLD = visual.ln_pre(x_BLD)
    start_B1D = x_BLD[:, :1]
    tower = VisionTower(visual)
    x_BLD = tower.run(x_BLD, last=FIRST_LATE_LAYER - 1)
    cls_B1D = torch.where(restarted[:, None, None], start_B1D, x_BLD[:, :1].detach())
    x_BLD = torch.cat([cls_B1D, x_BLD[:, 1:]], dim=1)
    heads: list[Tensor] = []
    x_BLD = tower.run(x_BLD, FIRST_LATE_LAYER, layers=recording(tower.layers, heads, []))
    head_outputs = [(visual.ln_post.weight * terms_BHD) @ visual.proj for terms_BHD in heads]
    return F.normalize(visual.ln_post(x_BLD) @ visual.proj, dim=-1), head_outputs


def text_features(model: Any, tokens: Tensor) -> Tensor:
    """Return normalised text features; positions past the longest text are not computed (attention is causal)."""
    length = int(tokens.argmax(dim=1).max()) + 1
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    ends = x[torch.arange(len(x)), tokens.argmax(dim=1)]
    return F.normalize(ends @ model.text_projection, dim=-1)


def also_true(truth: Tensor, mentioned: Tensor) -> Tensor:
    """Which captions of other images are also true of an image, (image, caption)."""
    same = (truth[:, None] == truth[None]) | ~mentioned[None]  # by image, caption, attribute
    return same.all(dim=2) & ~torch.eye(len(truth), dtype=torch.bool)


def contrastive(logits_CC: Tensor, truth: Tensor, mentioned: Tensor) -> Tensor:
    """CLIP's symmetric loss; captions of other images that are also true of an image are ignored."""
    logits_CC = logits_CC.masked_fill(also_true(truth, mentioned), -torch.inf)
    target = torch.arange(len(truth))
    return (F.cross_entropy(logits_CC, target) + F.cross_entropy(logits_CC.T, target)) / 2


def per_attribute(logits_BT: Tensor, truth: Tensor, asked: Sequence[int]) -> Tensor:
    """Cross-entropy of the value of each asked attribute among all its values, (attributes,)."""
    parts = torch.split(logits_BT, [PROMPT_COUNTS[a] for a in asked], dim=1)
    return torch.stack([F.cross_entropy(part, truth[:, a]) for a, part in zip(asked, parts, strict=True)])


def per_patch(logits_BNT: Tensor, batch: StepData) -> Tensor:
    """Cross-entropy per attribute for single patches, (5,): those of the shape's attributes on its patches, etc."""
    shape, thing = batch.shape_patches, batch.object_patches
    if batch.visible is not None:
        shape, thing = shape.gather(1, batch.visible), thing.gather(1, batch.visible)
    weights = [(shape > 0.4).float()] * 3 + [(thing > 0.3).float(), (shape + thing < 0.1).float()]
    losses = []
    for i, (part, weight) in enumerate(zip(torch.split(logits_BNT, PROMPT_COUNTS, dim=2), weights, strict=True)):
        target = batch.truth[:, i, None].expand(weight.shape)
        loss_BN = F.cross_entropy(part.flatten(0, 1), target.flatten(), reduction="none").view_as(weight)
        losses.append((loss_BN * weight).sum() / weight.sum().clamp(min=1))
    return torch.stack(losses)


def strayed(head_outputs: Sequence[Tensor], blocks: Sequence[Tensor]) -> Tensor:
    """Mean fraction of the late heads' variance that is about other attributes than their own; 0 is perfect.

    Head 0 of every late layer belongs to the first attribute, head 1 to the second, and so on; the last are free.
    """
    shares = []
    for terms_BHD in head_outputs:
        own_BAD = terms_BHD[:, : len(blocks)]
        variances = [(own_BAD @ (block - block.mean(dim=0)).T.detach()).var(dim=0).mean(dim=1) for block in blocks]
        variance_AA = torch.stack(variances, dim=1)  # (head, attribute)
        shares.append(1 - variance_AA.diagonal() / variance_AA.sum(dim=1))
    return torch.cat(shares).mean()


def per_prompt(prompts_TD: Tensor, anchors: Sequence[Tensor], scale: Tensor) -> Tensor:
    """Cross-entropy of each prompt's value among the anchors of its attribute."""
    parts = torch.split(prompts_TD, [len(block) for block in anchors])
    pairs = zip(parts, anchors, strict=True)
    return torch.stack([F.cross_entropy(scale * p @ block.T, torch.arange(len(p))) for p, block in pairs]).mean()


def prompts_are_true(truth: Tensor, asked: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which prompts are true of an image, and for which of them this is known; both (image, prompt)."""
    columns = [(truth[:, a, None], PROMPT_COUNTS[a]) for a in asked]
    is_true = [value == torch.arange(count) for value, count in columns]
    known = [(value != UNKNOWN).expand(-1, count) for value, count in columns]
    return torch.cat(is_true, dim=1), torch.cat(known, dim=1)


def text_losses(
    model: Any, image_BD: Tensor, captions_CD: Tensor, prompts_TD: Tensor, batch: StepData, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Return the losses of images against captions and against prompts: softmax, or sigmoid for `siglip`."""
    scale, count = model.logit_scale.exp(), len(captions_CD)
    truth, logits_CC = batch.truth[:count], scale * image_BD[:count] @ captions_CD.T
    logits_BT = scale * image_BD @ prompts_TD.T
    if kind != "siglip":
        named = per_attribute(logits_BT, batch.truth, batch.asked).mean()
        return contrastive(logits_CC, truth, batch.mentioned), named
    own = torch.eye(count, dtype=torch.bool)
    clip = siglip.pairwise_sigmoid(logits_CC + model.logit_bias, own, ~also_true(truth, batch.mentioned))
    return clip, siglip.pairwise_sigmoid(logits_BT + model.logit_bias, *prompts_are_true(batch.truth, batch.asked))


def total_loss(
    model: Any, anchors: Tensor, batch: StepData, patch_weight: float, kind: Kind = "clip"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch and its terms.

    `anchors` (84, D) is one trained direction per attribute value, to which images, patches and prompts are attracted,
    so that the two towers can be trained independently. The anchors are discarded at the end.
    """
    if kind == "siglip":
        features_BLD, encode = siglip.image_features(model, batch.images, batch.visible), siglip.text_features
    else:
        features_BLD, head_outputs = image_features(model, batch.images, batch.visible, batch.restarted)
        encode = text_features
    captions_CD, prompts_TD = encode(model, batch.tokens), encode(model, batch.prompt_tokens)
    anchors_TD = F.normalize(anchors, dim=-1)
    blocks = torch.split(anchors_TD, PROMPT_COUNTS)
    scale, image_BD = model.logit_scale.exp(), features_BLD[:, 0]
    clip, named = text_losses(model, image_BD, captions_CD, prompts_TD, batch, kind)
    attributes = per_attribute(scale * image_BD @ anchors_TD.T, batch.truth, range(len(ATTRIBUTES)))
    prompts = per_prompt(prompts_TD, [blocks[a] for a in batch.asked], scale)
    patches = per_patch(scale * features_BLD[:, 1:] @ anchors_TD.T, batch)
    loss = 0.25 * (clip + named) + 0.5 * prompts + 0.5 * attributes.sum() + patch_weight * patches.sum()
    terms = {"clip": clip, "named": named, "prompts": prompts, "scale": scale}
    if kind == "clip":
        terms["stray"] = strayed(head_outputs, blocks)
        loss = loss + terms["stray"]
    terms |= {attribute: attributes[i] for i, attribute in enumerate(ATTRIBUTES)}
    terms |= {f"patch_{attribute}": patches[i] for i, attribute in enumerate(ATTRIBUTES)}
    return loss, {name: value.detach() for name, value in terms.items()}
