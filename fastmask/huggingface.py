"""For transformers: a data collator and a callback, to be used in a Trainer in place of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fastmask.epochs import SharedEpoch
from fastmask.features import columns_of, padded_batch
from fastmask.laws import Bernoulli
from fastmask.masker import Masker
from fastmask.replace import Replace
from fastmask.thresholds import probability
from fastmask.vocab import Vocab

try:
    from transformers import BatchEncoding, TrainerCallback
except ImportError as error:
    raise ImportError("fastmask.huggingface needs transformers: pip install 'fastmask-kernels[huggingface]'") from error

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class DataCollatorForLanguageModeling:
    """A drop-in for transformers' class of this name, whose masks belong to samples.

    Every token that is not special is selected with probability mlm_probability; of the selected tokens the share
    mask_replace_prob become MASK, random_replace_prob a random token, and the others stay. With mlm=False nothing is
    selected, and the labels are the ids without padding.

    A sample has the masks that its content (or its sample id), the seed and the epoch give it, in any batch, worker,
    rank and order; no random state is read or changed. **The epoch must be handed over, or every epoch has the same
    masks**: give a Trainer `callbacks=[EpochCallback(collator)]`, elsewhere call `set_epoch` between epochs. It reaches
    running workers. Evaluation within a training uses the epoch that the training is in.

    Differs from transformers:
        - Random tokens are never special by default; `random_pool="vocab"` draws from all ids, as the original does.
        - Special ids are never selected, even where a feature's special_tokens_mask says 0 for them (such as [UNK]).
        - whole_word_mask: words come from a feature's word_ids, or else from the texts of tokens by
          `Vocab.from_tokenizer`, and not from offset_mapping, so that samples may differ in length; the shares stay
          what they are. `with_word_ids` adds word_ids, for tokenizers whose tokens do not say where words begin.
        - seed=None is seed 0; no global generator is used.
        - Padding that a feature brings is moved to the tokenizer's side; an attention mask with holes is refused.
        - A collator is immutable; make another one for other probabilities.

    Args:
        tokenizer: of transformers, with a pad token and, with mlm, a mask token.
        mlm: True masks; False is for causal models.
        whole_word_mask: True selects the tokens of a word together, by one draw.
        mlm_probability: in [0, 1].
        mask_replace_prob: in [0, 1].
        random_replace_prob: in [0, 1]; the sum of the two is at most 1.
        pad_to_multiple_of: the number of columns is rounded up to a multiple of it.
        return_tensors: "pt" or "np".
        seed: 0 <= seed < 2^64, or None.
        sample_id: the key of a feature that holds its sample id; None: ids from the content. (A Trainer drops keys that
            the model does not take, unless remove_unused_columns=False.)
        random_pool: what random tokens are drawn from, as `pool` of `Replace`.

    Raises:
        ValueError: a tokenizer that lacks a token, probabilities out of range, arguments that do not fit each other.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None
    sample_id: str | None = field(default=None, kw_only=True)
    random_pool: Literal["vocab"] | range | Iterable[int] | None = field(default=None, kw_only=True)
    masker: Masker = field(init=False, repr=False, compare=False)
    _shared: SharedEpoch = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.return_tensors not in ("pt", "np"):
            raise ValueError(f"return_tensors must be 'pt' or 'np', got {self.return_tensors!r}")
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer has no pad token, which padding needs: set tokenizer.pad_token")
        if self.mlm and self.tokenizer.mask_token_id is None:
            raise ValueError("tokenizer has no mask token, which masking needs: add one, or give mlm=False")
        if self.whole_word_mask and not self.mlm:
            raise ValueError("whole_word_mask=True goes with mlm=True")
        object.__setattr__(self, "masker", self._masker() if self.mlm else _no_masker(self.tokenizer))
        object.__setattr__(self, "_shared", SharedEpoch(0))

    def _masker(self) -> Masker:
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            probability(name, getattr(self, name))
        select = Bernoulli(self.mlm_probability or 0.0, unit="word" if self.whole_word_mask else "token")
        replace = Replace(self.mask_replace_prob, self.random_replace_prob, pool=self.random_pool)
        vocab = Vocab.from_tokenizer(self.tokenizer, words=None if self.whole_word_mask else False)
        return Masker(vocab, select, replace, self.seed or 0, id_dtype=np.int64)

    @property
    def epoch(self) -> int:
        """The epoch of the batches that are collated from now on; 0 at first."""
        return self._shared.value

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the batches that are collated from now on, here and in running workers."""
        self._shared.value = epoch

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> Batch:
        """The batch of some features, mappings with equal keys or bare sequences of token ids.

        Args:
            features: as for `fastmask.torch.Collator`. special_tokens_mask, word_ids and offset_mapping are not in the
                batch.
            return_tensors: "pt" or "np"; None: that of the collator.

        Returns:
            A BatchEncoding: input_ids, labels and what else the features hold; attention_mask where they have one or
            the tokenizer names it as an input of its model. Of bare sequences a dictionary: input_ids and labels.

        Raises:
            TypeError, ValueError: features that disagree or cannot be masked; the message names the sample.
        """
        columns = columns_of(features, self.sample_id, dropped=("offset_mapping",))
        words = columns.beside.pop("word_ids", None)
        if self.whole_word_mask:
            columns.beside["word_ids"] = words or _own_words(features)
        layout = {"padding_side": self.tokenizer.padding_side, "pad_to_multiple_of": self.pad_to_multiple_of}
        batch = padded_batch(self.masker, columns, self.epoch, layout)
        if not self.mlm:
            batch["labels"] = np.where(batch["input_ids"] == self.tokenizer.pad_token_id, -100, batch["input_ids"])
        batch.pop("special_tokens_mask", None)
        if "token_type_ids" in batch and (fill := self.tokenizer.pad_token_type_id):
            batch["token_type_ids"][batch["attention_mask"] == 0] = fill
        named = isinstance(features[0], Mapping)
        if not named or "attention_mask" not in {*features[0], *self.tokenizer.model_input_names}:
            del batch["attention_mask"]
        if (return_tensors or self.return_tensors) == "pt":
            from fastmask.torch.collator import as_tensors

            batch = as_tensors(batch)
        if not named:
            return batch
        encoding: Batch = BatchEncoding()
        encoding.data = batch  # type: ignore[attr-defined]  # not copied: a worker's batch knows how to travel
        return encoding


def _no_masker(tokenizer: Any) -> Masker:
    """A masker that selects nothing, for a tokenizer that may have no mask token: any other id stands in."""
    stand_in = 0 if tokenizer.pad_token_id else 1
    vocab = Vocab(max(2, 1 + max(tokenizer.get_vocab().values())), stand_in, tokenizer.pad_token_id)
    return Masker(vocab, Bernoulli(0.0), Replace(1.0, 0.0), id_dtype=np.int64)


def _own_words(features: Sequence[Any]) -> list[Any] | None:
    """The words that a fast tokenizer's encodings tell, where each feature is such an encoding."""
    if all(isinstance(feature, BatchEncoding) and feature.is_fast for feature in features):
        return [feature.word_ids() for feature in features]
    return None


def with_word_ids(encodings: BatchEncoding) -> dict[str, Any]:
    """The entries of a fast tokenizer's batch, and word_ids: the word of each token in its sample, -1 for none.

    Made for `Dataset.map(lambda batch: with_word_ids(tokenizer(batch["text"])), batched=True)`.

    Raises:
        ValueError: the encodings are not those of a fast tokenizer.
    """
    words = [encodings.word_ids(i) for i in range(len(encodings["input_ids"]))]
    return {**encodings, "word_ids": [[-1 if word is None else word for word in sample] for sample in words]}


class EpochCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not type-checked here
    """Hands a Trainer's epoch to a collator, or to anything with `set_epoch`, before the epoch's first batch.

    A training that is resumed within an epoch has the masks of this epoch.

    >>> from types import SimpleNamespace as Named
    >>> collator = Named(set_epoch=print)
    >>> callback = EpochCallback(collator)
    >>> callback.on_train_begin(None, Named(epoch=1.5), None)
    >>> callback.on_epoch_begin(None, None, None)
    1
    """

    def __init__(self, collator: Any) -> None:
        self.collator = collator
        self._next = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The epochs are counted from the one that the training begins, or is resumed, in."""
        self._next = int(state.epoch or 0)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counted, since the state's own number falls behind where epochs are ended early or have no known length."""
        self.collator.set_epoch(self._next)
        self._next += 1
