"""Maskers with the laws of well-known models, each with its source and with where it differs from the original code.

What differs in all of them, and is not said again: a mask depends on (seed, epoch, sample id, position), not on the
order of the data, workers, ranks or a global random state; no special token is selected or, unless a pool names it,
drawn at random, whereas originals exclude some or none; probabilities are exact in steps of 2^-24; counts are rounded
half up.

Presets over words read `vocab.is_continuation` (see `Vocab.from_tokenizer`), or the `word_ids` of a call. For other
numbers, write the `Masker`: a preset is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fastmask.laws import Bernoulli, Diffusion, ExactCount, Spans
from fastmask.lengths import Geometric, InverseLength
from fastmask.masker import Masker
from fastmask.replace import Replace
from fastmask.vocab import Vocab

RandomPool = Literal["vocab"] | range | Iterable[int] | None

__all__ = ["albert", "bert", "electra", "esm2", "llada", "mdlm", "modernbert", "roberta", "spanbert"]


def bert(
    vocab: Vocab,
    seed: int = 0,
    *,
    whole_word: bool = False,
    max_masked: int | None = None,
    pool: RandomPool = None,
) -> Masker:
    """15 % of a sample's tokens, an exact count and at least one, of which 80 % MASK, 10 % random, 10 % kept.

    The count is floor(0.15 * n + 0.5) of all n real tokens, special ones included, as in the original; so the share
    of candidates is higher, most in short samples.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        whole_word: True selects whole words, until the count of tokens is reached or passed. Each token is then
            replaced on its own account, as in the original.
        max_masked: at most so many tokens per sample (max_predictions_per_seq: 20 for rows of 128).
        pool: what random tokens are drawn from: None for all ids that are not special; "vocab" for every id, as in
            the original; a range or a list.

    Source: Devlin et al., "BERT", 2019, section 3.1; google-research/bert, create_pretraining_data.py.

    Differs:
        - Random tokens are never special by default: the original draws [MASK], [PAD] or [CLS] as readily as a word.
          `pool="vocab"` gives its law.
        - The original writes `dupe_factor` masks per sample into files; the epochs 0 .. dupe_factor - 1 in turn are the
          same, and a new epoch each time is dynamic masking.
        - It excludes [CLS] and [SEP] only, and rounds half to even.
        - whole_word: it passes over a word that would overshoot the count and looks for a shorter one, which favours
          short words. Here the last word may overshoot; with `max_masked` the selection ends before it.

    >>> bert(Vocab(30522, 103, 0, (100, 101, 102))).select
    ExactCount(p=0.15, unit='token', min_masked=1, max_masked=None, count_of='sequence')
    """
    unit: Literal["token", "word"] = "word" if whole_word else "token"
    select = ExactCount(0.15, unit, min_masked=1, max_masked=max_masked, count_of="sequence")
    return Masker(vocab, select, Replace(0.8, 0.1, pool=pool), seed)


def roberta(vocab: Vocab, seed: int = 0) -> Masker:
    """Each token with probability 15 %, anew in each epoch, of which 80 % MASK, 10 % random, 10 % kept.

    This is also the law of transformers' DataCollatorForLanguageModeling.

    Source: Liu et al., "RoBERTa", 2019, section 4.1 (dynamic masking); fairseq, MaskTokensDataset.

    Differs:
        - fairseq takes floor(0.15 * n + u) tokens of a sample, u uniform in [0, 1): the same mean as here, and a
          smaller spread. `ExactCount(0.15)` is close to it.
        - fairseq does not exclude <s> and </s>. A million samples have 34,415 distinct seeds there, so that some 29
          share one stream; here each sample has its own.
        - transformers draws random tokens from all ids, special ones included.

    >>> roberta(Vocab(50265, 50264, 1, (0, 2, 3))).select
    Bernoulli(p=0.15, unit='token', min_masked=0, max_masked=None)
    """
    return Masker(vocab, Bernoulli(0.15), Replace(0.8, 0.1), seed)


def modernbert(vocab: Vocab, seed: int = 0, *, p: float = 0.3) -> Masker:
    """Each token with probability 30 % (15 % in evaluation), of which 80 % MASK, 10 % random, 10 % kept.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        p: 0.3 for training; 0.15 for evaluation, with one epoch for ever.

    Source: Warner et al., "Smarter, Better, Faster, Longer", 2024, section 2.2; AnswerDotAI/ModernBERT,
        sequence_packer.py.

    Differs:
        - The original selects special tokens too, and writes MASK and random tokens over padding.
        - It draws random tokens from the ids up to the largest in the batch, so that a batch's data decide what can be
          drawn; here all ids that are not special can.
        - Its masks depend on the packing, and are the same on every rank.

    >>> modernbert(Vocab(50368, 50284, 50283)).select.p, modernbert(Vocab(50368, 50284, 50283), p=0.15).select.p
    (0.3, 0.15)
    """
    return Masker(vocab, Bernoulli(p), Replace(0.8, 0.1), seed)


def spanbert(vocab: Vocab, seed: int = 0, *, weights: Iterable[float] | None = None) -> Masker:
    """Spans of 1 to 10 words (geometric, 0.2, mean 3.8) that fill 15 % of the tokens; 80/10/10 per whole span.

    One draw decides for a span whether it becomes MASK, random or stays; each of its random tokens is drawn for itself.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        weights: one per id, the counts of tokens in the corpus, as in the original; None draws random tokens uniformly.

    Source: Joshi et al., "SpanBERT", 2020, section 3.1; facebookresearch/SpanBERT, masking.py.

    Differs:
        - Random tokens follow the corpus only where `weights` are given.
        - The budget is floor(0.15 * n + 0.5) candidates and at least one; the original rounds up.
        - A span starts at any word or reaches in from the border, and covers words, so that no position is favoured;
          the original starts at the word of a random token, which favours long words and covers the first ones less.
        - The targets of the span boundary objective are not made here.

    >>> masker = spanbert(Vocab(28996, 103, 0, (100, 101, 102)))
    >>> masker.select
    Spans(p=0.15, lengths=Geometric(p=0.2, n=10), unit='word', min_masked=1, max_masked=None)
    >>> masker.replace.unit
    'span'
    """
    select = Spans(0.15, Geometric(0.2, 10), unit="word", min_masked=1)
    return Masker(vocab, select, Replace(0.8, 0.1, weights=weights, unit="span"), seed)


def albert(vocab: Vocab, seed: int = 0, *, ngram: int = 3, max_masked: int | None = None) -> Masker:
    """Spans of 1 to 3 words, of length n with weight 1 / n, that fill 15 % of the tokens; 80/10/10 per token.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        ngram: the longest span, in words.
        max_masked: at most so many tokens per sample (max_predictions_per_seq).

    Source: Lan et al., "ALBERT", 2020, section 4.1; google-research/albert, create_pretraining_data.py.

    Differs:
        - The budget is floor(0.15 * n + 0.5) of the candidates, at least one, and is filled exactly: a last word may be
          cut. The original counts special tokens in n, tries shorter spans where one would overshoot, and may fall
          short.
        - Spans may touch and overlap; the original drops one that overlaps another.
        - A word is what lies between spaces. The original also begins one at punctuation, at "<" and at pieces with a
          letter outside ASCII, so that words of most scripts fall into pieces; pass `word_ids` for such words.
        - There is no permutation of n-grams. Lengths are seeded here, and are not in the original.

    >>> albert(Vocab(30000, 4, 0, (1, 2, 3))).select
    Spans(p=0.15, lengths=InverseLength(n=3), unit='word', min_masked=1, max_masked=None)
    """
    select = Spans(0.15, InverseLength(ngram), unit="word", min_masked=1, max_masked=max_masked)
    return Masker(vocab, select, Replace(0.8, 0.1), seed)


def electra(
    vocab: Vocab, seed: int = 0, *, p: float = 0.15, mask: float = 0.85, max_masked: int | None = None
) -> Masker:
    """The generator's input: 15 % of a sample's tokens, an exact count, of which 85 % MASK, 15 % kept, none random.

    The count is floor(p * n + 0.5) of all n real tokens, special ones included, and at least one. 0.85 is the share of
    the official code, which trained the published models; the paper says that every selected token becomes MASK, which
    is `mask=1.0`. The discriminator's input and labels: `replaced_tokens`.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        p: 0.15 for the small and base models, 0.25 for the large one.
        mask: the share of selected tokens that become MASK; the others are kept.
        max_masked: at most so many tokens per sample; the original takes int((p + 0.005) * row length).

    Source: Clark et al., "ELECTRA", 2020, section 2 and table 6; google-research/electra, pretrain_helpers.py.

    Differs:
        - The original draws positions with replacement: some 7 % fewer tokens are masked than counted, and a position
          drawn twice counts twice in the loss. Here every position is drawn once.
        - It excludes [CLS], [SEP], [MASK] and padding, not [UNK], and rounds half to even.

    >>> electra(Vocab(30522, 103, 0, (100, 101, 102))).replace
    Replace(mask=0.85, random=0.0, pool=None, weights=None, exclude_original=False, unit='token')
    """
    select = ExactCount(p, min_masked=1, max_masked=max_masked, count_of="sequence")
    return Masker(vocab, select, Replace(mask, 0.0), seed)


def llada(vocab: Vocab, seed: int = 0) -> Masker:
    """Each sample draws a rate t, uniform in [0.001, 1); each token becomes MASK with probability t, weight 1 / t.

    Source: Nie et al., "LLaDA", 2025, algorithm 1 (pre-training).

    Differs:
        - The original masks BOS, EOS and padding like any token. Here they stay, as special tokens; a vocabulary that
          does not name a token as special has it masked.
        - For fine-tuning, mark the prompt in `special_tokens_mask`; the division by answer or row length is the loss's.
        - The original cuts 1 % of the batches to a random length; that is left to the loader.

    >>> llada(Vocab(126464, 126336, 126081)).select
    Diffusion(eps=0.001)
    """
    return Masker(vocab, Diffusion(1e-3), seed=seed)


def mdlm(vocab: Vocab, seed: int = 0) -> Masker:
    """Each sample draws a rate t in [0.001, 1); each token becomes MASK with probability t, weight 1 / t.

    This is the log-linear schedule. Rates spread evenly over a batch, as in the original, come with `stratify=` in the
    call; without it they are independent, and the law is LLaDA's.

    Source: Sahoo et al., "MDLM", 2024; kuleshov-group/mdlm, diffusion.py.

    Differs:
        - The original gives row i of a device's batch the i-th part of [0, 1) and a random number of its own; with
          `stratify=` one random number per step shifts an even grid over the global batch.
        - It masks special tokens and padding too.
        - Of its schedules there is the log-linear one alone. Others are `Bernoulli(1)` and `Replace(1, 0)` with
          `rates=` in the call; their weights are the caller's.

    >>> mdlm(Vocab(30522, 103, 0, (100, 101, 102))).replace.mask
    1.0
    """
    return Masker(vocab, Diffusion(1e-3), seed=seed)


def esm2(vocab: Vocab, seed: int = 0, *, amino_acids: Iterable[int]) -> Masker:
    """Each residue with probability 15 %, of which 80 % MASK, 10 % a random amino acid, 10 % kept.

    Args:
        vocab: the vocabulary.
        seed: 0 <= seed < 2^64.
        amino_acids: the ids that random residues are drawn from; range(4, 24) are the 20 standard ones of ESM-2's
            alphabet. Required, since recipes that pass for the same differ in it.

    Source: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a language model", 2023,
        supplementary methods; NVIDIA BioNeMo, bionemo.llm.data.masking.

    Differs:
        - BioNeMo draws from a contiguous range, like the one above; recipes on transformers' collator draw from the
          whole vocabulary, special tokens included (give `range(vocab.size)` for that).

    >>> esm2(Vocab(33, 32, 1, (0, 2, 3)), amino_acids=range(4, 24)).replace.pool
    range(4, 24)
    """
    return Masker(vocab, Bernoulli(0.15), Replace(0.8, 0.1, pool=amino_acids), seed)
