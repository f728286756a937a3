"""DeAR written down plainly from the method's description: slow, whole, and obviously right. The oracle of the tests.

It shares no code with the package. Every layer of both towers runs on every call, the text tower on its full context,
every row of every layer is computed, the frozen model is a separate pass, masks are filled entry by entry.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def role_mask(
    heads: list[tuple[str, str | None]], attributes: list[str], kinds: list[str], strict: bool = False
) -> torch.Tensor:
    """Additive (H, L, L) mask. `kinds` names each token: "original" or its attribute."""
    mask = torch.zeros(len(heads), len(kinds), len(kinds))
    for h, (role, concept) in enumerate(heads):
        for i, query in enumerate(kinds):
            for j, key in enumerate(kinds):
                if role in ("generalization", "other_specialized"):
                    forbidden = (query == "original") != (key == "original")
                elif role == "core_attribute":
                    forbidden = key != "original" and key != concept
                    if strict and query not in ("original", concept):
                        forbidden = key != query
                else:
                    forbidden = False
                if forbidden:
                    mask[h, i, j] = float("-inf")
    return mask


def vision_features(clip, roles, images, vision_tokens, w_attr, *, first, beta, per_attribute=1, strict=False):
    """f_cls (B, E) and f_a (B, K, E), normalised."""
    visual, attributes = clip.model.visual, list(roles.attributes)
    x = visual._embeds(images)
    originals = x.shape[1]
    kinds = ["original"] * originals + [a for a in attributes for _ in range(per_attribute)]
    tokens = vision_tokens.expand(len(x), -1, -1)
    for number, block in enumerate(visual.transformer.resblocks, start=1):
        if number < first:
            x = block(x)
            continue
        injected = tokens if number == first else beta * tokens + (1 - beta) * x[:, originals:]
        x = torch.cat([x[:, :originals], injected], dim=1)
        heads = [(head.role.value, head.concept) for head in roles.layer(number)]
        mask = role_mask(heads, attributes, kinds, strict)
        x = block(x, attn_mask=mask.repeat(len(x), 1, 1))
    x = visual.ln_post(x)
    f_cls = x[:, 0] @ visual.proj
    f_attr = x[:, originals:] @ w_attr
    f_attr = torch.stack([group.mean(1) for group in f_attr.split(per_attribute, dim=1)], dim=1)
    return F.normalize(f_cls, dim=-1), F.normalize(f_attr, dim=-1)


def text_features(clip, prompts, text_tokens, *, first, beta):
    """w_c (C, E), normalised, over the full context."""
    text = getattr(clip.model, "text", clip.model)
    ids = clip.tokenizer(prompts)
    count = len(text_tokens)
    x = text.token_embedding(ids) + text.positional_embedding
    tokens = text_tokens.expand(len(x), -1, -1)
    for number, block in enumerate(text.transformer.resblocks, start=1):
        if number == first:
            x = torch.cat([x[:, :1], tokens, x[:, 1:]], dim=1)
        elif number > first:
            x = torch.cat([x[:, :1], beta * tokens + (1 - beta) * x[:, 1 : 1 + count], x[:, 1 + count :]], dim=1)
        causal = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        x = block(x, attn_mask=causal)
    x = text.ln_final(x)
    end = ids.argmax(-1) + count
    x = x[torch.arange(len(x)), end]
    x = text.text_projection(x) if isinstance(text.text_projection, torch.nn.Linear) else x @ text.text_projection
    return F.normalize(x, dim=-1)


def _w_attr(clip, method):
    if method.config.projection == "low_rank":
        return clip.model.visual.proj + method.projection_down @ method.projection_up
    return method.attribute_projection


def reference(model, images, labels, prompts):
    """All outputs and loss terms of a DeAR model's parameters, computed the slow way."""
    clip, method, config = model.clip, model.method, model.config
    f_cls, f_attr = vision_features(
        clip,
        method.roles,
        images,
        method.vision_tokens,
        _w_attr(clip, method),
        first=method.first,
        beta=config.beta,
        per_attribute=config.tokens_per_attribute,
        strict=config.routing == "strict",
    )
    w = text_features(clip, prompts, method.text_tokens, first=method.text_first, beta=config.beta)
    tau = clip.model.logit_scale.exp()
    alpha = torch.softmax(method.fusion_scalars, dim=0)
    s_cls = tau * f_cls @ w.T
    s_attr = torch.stack([tau * f_attr[:, k] @ w.T for k in range(f_attr.shape[1])], dim=1)
    logits = alpha[0] * s_cls
    for k in range(f_attr.shape[1]):
        logits = logits + alpha[k + 1] * s_attr[:, k]
    with torch.no_grad():
        clip_image = clip.model.encode_image(images, normalize=True)
        clip_text = clip.model.encode_text(clip.tokenizer(prompts), normalize=True)
    ce = F.cross_entropy(logits, labels)
    reg_image = (1 - F.cosine_similarity(f_cls, clip_image)).mean()
    reg_text = (1 - F.cosine_similarity(w, clip_text)).mean()
    fusion = -torch.log(alpha[0]) if config.fusion_loss == "neg_log" else 1 - alpha[0]
    total = ce + config.lambda_reg * (reg_image + reg_text) + config.lambda_fusion * fusion
    outputs = {
        "logits": logits,
        "cls_logits": s_cls,
        "attr_logits": s_attr,
        "alpha": alpha,
        "cls_features": f_cls,
        "attr_features": f_attr,
        "class_features": w,
    }
    terms = {"total": total, "ce": ce, "reg_image": reg_image, "reg_text": reg_text, "fusion": fusion}
    return outputs, terms
