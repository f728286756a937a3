"""The role-based attention mask (Eq. 7-9), computed from a role map and not saved.

Whether a query sees a key depends only on the kinds of the two tokens: original (0), or attribute a (1..K).
A head's mask is therefore a (K+1, K+1) table, expanded to the sequence [originals, attribute tokens].
Shapes: H heads, L tokens, G = K + 1 kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dear.methods.dear.config import Routing
from dear.roles.rolemap import HeadRole, Role


def kind_table(head: HeadRole, attributes: Sequence[str], *, routing: Routing = "open") -> Tensor:
    """(G, G) booleans: may a query of kind i see a key of kind j in this head?

    An attribute's head hides the other attributes' tokens as keys. As queries, they see the image through it as well if
    the routing is open (the main text's Eq. 9); if it is strict (the supplement's section B), nothing but themselves.
    """
    kinds = len(attributes) + 1
    sees_GG = torch.ones(kinds, kinds, dtype=torch.bool)
    if head.role in (Role.GENERALIZATION, Role.OTHER):
        sees_GG[0, 1:] = False
        sees_GG[1:, 0] = False
    elif head.role is Role.CORE:
        assert head.concept is not None
        own = attributes.index(head.concept) + 1
        sees_GG[:, 1:] = False
        sees_GG[:, own] = True
        if routing == "strict":
            others = [kind for kind in range(1, kinds) if kind != own]
            sees_GG[others] = False
            sees_GG[others, others] = True
    return sees_GG


def token_kinds(originals: int, attributes: int, tokens_per_attribute: int = 1) -> Tensor:
    """(L,) kinds of the sequence: originals first, then each attribute's tokens in order."""
    kinds_G = torch.tensor([originals] + [tokens_per_attribute] * attributes)
    return torch.repeat_interleave(torch.arange(attributes + 1), kinds_G)


def layer_mask(
    heads: Sequence[HeadRole], attributes: Sequence[str], kinds_L: Tensor, *, routing: Routing = "open"
) -> Tensor:
    """(H, L, L) booleans for one layer's heads, True where the query (row) may see the key (column)."""
    tables_HGG = torch.stack([kind_table(head, attributes, routing=routing) for head in heads]).to(kinds_L.device)
    return tables_HGG[:, kinds_L][:, :, kinds_L]
