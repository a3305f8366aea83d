"""A small BERT encoder with a masked-language-model head that computes logits for the selected tokens alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastmask.batch import CompactTargets

IGNORED = -100


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder."""

    vocabulary: int
    row_length: int
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


class Outcome(NamedTuple):
    """The mean loss in nats of the selected tokens of a batch, how many there are, and how many were guessed."""

    loss: Tensor
    selected: int
    correct: int


class Encoder(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Token, position and segment embeddings, encoder layers (normalised first), and a head tied to the embeddings.

    Source: Devlin et al., "BERT", 2019. Layers normalise their input: Xiong et al., "On Layer Normalization in the
    Transformer Architecture", 2020.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden = shape.hidden
        self.tokens = nn.Embedding(shape.vocabulary, hidden)
        self.positions = nn.Embedding(shape.row_length, hidden)
        self.segments = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(shape.dropout)
        layer = nn.TransformerEncoderLayer(
            hidden, shape.heads, 4 * hidden, shape.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, shape.layers, nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        for embedding in (self.tokens, self.positions, self.segments):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """The hidden states, (rows, columns, hidden)."""
        ids = batch["input_ids"]
        places = torch.arange(ids.shape[1], device=ids.device)
        sums = self.tokens(ids) + self.positions(places) + self.segments(batch["token_type_ids"])
        embedded = self.dropout(self.norm(sums))
        hidden: Tensor = self.layers(embedded, src_key_padding_mask=batch["attention_mask"] == 0)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """One logit per id, for hidden states (..., hidden)."""
        return functional.linear(self.head(hidden), self.tokens.weight, self.bias)

    def outcome(self, batch: Mapping[str, Any]) -> Outcome:
        """Loss and hits at the compact positions: no logits are computed elsewhere."""
        compact: CompactTargets = batch["compact"]
        rows = torch.repeat_interleave(torch.arange(len(compact.counts)), compact.counts)
        logits = self.logits(self(batch)[rows, compact.positions])
        return _outcome(logits, compact.ids)

    def full_outcome(self, batch: Mapping[str, Any]) -> Outcome:
        """The same from logits at every position, of which cross-entropy leaves out those labelled IGNORED."""
        logits = self.logits(self(batch))
        return _outcome(logits.flatten(0, 1), batch["labels"].flatten())


def _outcome(logits: Tensor, labels: Tensor) -> Outcome:
    loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED)
    correct = int((logits.argmax(-1) == labels).sum())  # no logit is that of IGNORED
    return Outcome(loss, int((labels != IGNORED).sum()), correct)
