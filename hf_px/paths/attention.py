"""The rules of attention: attention weights are gates of the values; queries and keys only steer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .base import Args, Func, Kwargs, Norm, Rule, arguments

if TYPE_CHECKING:
    from .record_replay import Replay


@dataclass(frozen=True)
class Attention(Rule):
    """F.scaled_dot_product_attention: softmax(q·k/√d) · v."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        q, k, v, mask, causal, scale, gqa = _sdpa_arguments(*args, **kwargs)
        if gqa:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
        logits = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else logits + mask
        attention = logits.softmax(-1)
        return attention @ v, attention

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        q, k, v, *_, gqa = _sdpa_arguments(*args, **kwargs)
        groups = q.shape[-3] // v.shape[-3] if gqa else 1
        if groups > 1:
            k, v = (run.follow(t.repeat_interleave(groups, -3), t) for t in (k, v))
        return run.rescale(run.follow(run.attend(saved, q, k, v), v))


def _sdpa_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:
    return query, key, value, attn_mask, is_causal, scale, enable_gqa


@dataclass(frozen=True)
class MultiHeadAttention(Rule):
    """F.multi_head_attention_forward: one call with all of its projections."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        given = arguments("multi_head_attention_forward", func, args, kwargs)
        wanted, averaged = given["need_weights"], given["average_attn_weights"]
        y, attention = func(**{**given, "need_weights": True, "average_attn_weights": False})
        shown = None if not wanted else attention.mean(-3) if averaged else attention
        return (y, shown), attention

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        given = arguments("multi_head_attention_forward", func, args, kwargs)
        width = given["embed_dim_to_check"]
        if given["use_separate_proj_weight"]:
            projections = [given[f"{part}_proj_weight"] for part in "qkv"]
        else:
            projections = given["in_proj_weight"].split(width)
        q, k, v = (
            self._heads(given[part] @ weight.mT, given["num_heads"])
            for part, weight in zip(("query", "key", "value"), projections)
        )
        mixed = run.attend(saved, q, k, v)
        mixed = mixed.permute(2, 0, 1, 3) if mixed.dim() == 4 else mixed.permute(1, 0, 2)
        y = mixed.flatten(-2) @ given["out_proj_weight"].mT
        return run.rescale(run.follow(y, given["value"])), None

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        """(S, N, E) -> (N, H, S, d), or (S, E) -> (H, S, d)."""
        x = x.unflatten(-1, (heads, x.shape[-1] // heads))
        return x.permute(1, 2, 0, 3) if x.dim() == 4 else x.permute(1, 0, 2)
