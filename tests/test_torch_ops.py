"""Masking as operators of torch: what torch.compile makes of them, compared with the masker's own calls."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import run_python, same

import fastmask as fm

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
ops = pytest.importorskip("fastmask.torch.ops")
dynamo = pytest.importorskip("torch._dynamo.testing")
FakeTensorMode = pytest.importorskip("torch._subclasses").FakeTensorMode
from torch import library  # noqa: E402

VOCAB = fm.Vocab(60, 4, 0, (0, 1, 2, 3, 4), is_continuation=np.arange(60) % 3 == 0)
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++, and there is no g++")
DISABLED = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about its own parts
pytestmark = DISABLED

LAWS: dict[str, fm.Masker] = {
    "bernoulli": fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7),
    "int32": fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7, id_dtype=np.int32, label_dtype=np.int32),
    "exact_count": fm.Masker(VOCAB, fm.ExactCount(0.4), seed=7),
    "words": fm.Masker(VOCAB, fm.ExactCount(0.4, unit="word"), seed=7),
    "spans": fm.Masker(VOCAB, fm.Spans(0.4, fm.Geometric(0.2, 10)), seed=7),
    "diffusion": fm.Masker(VOCAB, fm.Diffusion(), seed=7),
}
MASKER = LAWS["bernoulli"]
FIELDS = ("input_ids", "labels", "decisions", "num_masked", "rates", "weights", "compact")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ids_of(rows: int = 4, columns: int = 17) -> Any:
    generator = torch.Generator().manual_seed(rows + columns)
    return torch.randint(5, 60, (rows, columns), generator=generator)


def equal(got: Any, want: Any) -> None:
    """Every part of two batches is a tensor of equal bits, or is missing from both."""
    for name in FIELDS:
        one, other = getattr(got, name), getattr(want, name)
        assert (one is None) == (other is None), name
        parts = [(one, other)] if name != "compact" else zip(one or (), other or (), strict=True)
        for x, y in parts:
            if y is not None:
                assert isinstance(x, torch.Tensor)
                same(x.numpy(), y.numpy())


def counted(module: Any, backend: str = "eager") -> tuple[Any, Any]:
    """The compiled module, whole or not at all, and the counter of its compilations."""
    counter = dynamo.CompileCounterWithBackend(backend)
    return torch.compile(module, fullgraph=True, backend=counter), counter


def given_of(name: str, ids: Any) -> dict[str, Any]:
    rows, columns = ids.shape
    ones = torch.zeros((rows, columns), dtype=torch.int64)
    ones[:, 2:-3] = 1
    return {
        "ids": {},
        "sample_ids": {"sample_ids": torch.arange(rows) + 90},
        "attention_mask": {"attention_mask": ones, "special_tokens_mask": (ids % 7 == 0)},
        "lengths": {"lengths": torch.tensor([0, 1, columns, columns - 2])},
        "word_ids": {"word_ids": ids // 20},
        "everything": {
            "sample_ids": 5,
            "returns": ("decisions", "num_masked", "compact"),
            "max_predictions": columns,
        },
    }[name]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("given", ["ids", "sample_ids", "attention_mask", "lengths", "word_ids", "everything"])
def test_a_compiled_module_masks_as_the_masker_does(law: str, given: str) -> None:
    ids, masker = ids_of(), LAWS[law]
    arguments = given_of(given, ids)
    compiled, counter = counted(ops.MaskTokens(masker), "aot_eager")
    equal(compiled(ids, epoch=3, **arguments), masker(ids, epoch=3, **arguments))
    assert counter.frame_count == 1


@NO_COMPILER
def test_inductor_masks_as_the_masker_does() -> None:
    masker, ids = MASKER, ids_of()
    compiled, _ = counted(ops.MaskTokens(masker), "inductor")
    for epoch in (2, 3, 4):
        equal(compiled(ids, epoch=epoch, sample_ids=epoch * 4), masker(ids, epoch=epoch, sample_ids=epoch * 4))


def test_rates_of_diffusion_come_along() -> None:
    masker, ids = LAWS["diffusion"], ids_of()
    given: dict[str, Any] = {"epoch": 1, "stratify": (3, 100, 7), "returns": ("rates", "num_masked")}
    compiled, _ = counted(ops.MaskTokens(masker))
    equal(compiled(ids, **given), masker(ids, **given))


def test_rates_and_offsets_of_the_caller_come_along() -> None:
    ids = ids_of()
    rates, offsets = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64), torch.tensor([0, 5, 2, 1 << 30])
    compiled, _ = counted(ops.MaskTokens(MASKER))
    for offset in (offsets, 6):
        given = {"epoch": 2, "sample_ids": 9, "rates": rates, "position_offset": offset}
        equal(compiled(ids, **given), MASKER(ids, **given))


def test_packed_samples_are_masked_as_the_masker_does() -> None:
    ids, boundaries = ids_of(1, 40).reshape(-1), torch.tensor([0, 7, 7, 31, 40])
    given: dict[str, Any] = {"cu_seqlens": boundaries, "sample_ids": 8, "returns": "compact", "max_predictions": 30}
    compiled, _ = counted(ops.MaskTokens(MASKER))
    equal(compiled(ids, epoch=0, **given), MASKER(ids, epoch=0, **given))


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("law", ["bernoulli", "int32"])
def test_a_graph_knows_shapes_and_dtypes_before_it_runs(law: str, dtype: str) -> None:
    ids, masker = ids_of().to(getattr(torch, dtype)), LAWS[law]
    given: dict[str, Any] = {"epoch": 3, "returns": ("decisions", "num_masked", "compact"), "max_predictions": 17}
    want = masker(ids, backend="numpy", **given)
    with FakeTensorMode() as mode:
        got = ops.MaskTokens(masker)(mode.from_tensor(ids), **given)
    for name in ("input_ids", "labels", "decisions", "num_masked"):
        known, real = getattr(got, name), getattr(want, name)
        assert (known.shape, known.dtype) == (real.shape, real.dtype), name
    for known, real in zip(got.compact or (), want.compact or (), strict=True):
        assert (known.shape, known.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,), (9,)])
def test_empty_and_one_dimensional_batches_keep_their_shape(shape: tuple[int, ...]) -> None:
    ids = torch.full(shape, 9)
    compiled, _ = counted(ops.MaskTokens(MASKER), "aot_eager")
    equal(compiled(ids, epoch=3, returns="num_masked"), MASKER(ids, epoch=3, returns="num_masked"))


def test_epochs_and_first_sample_ids_do_not_recompile_for_ever() -> None:
    ids = ids_of()
    compiled, counter = counted(ops.MaskTokens(MASKER))
    for step in range(8):
        equal(compiled(ids, epoch=step, sample_ids=step * 4), MASKER(ids, epoch=step, sample_ids=step * 4))
    assert counter.frame_count <= 3  # torch knows 0 and 1 from other numbers


def test_an_epoch_in_a_tensor_never_recompiles() -> None:
    ids = ids_of()
    compiled, counter = counted(ops.MaskTokens(MASKER))
    for epoch in (0, 1, 5, (1 << 24) - 1):
        equal(compiled(ids, epoch=torch.tensor(epoch)), MASKER(ids, epoch=epoch))
    assert counter.frame_count == 1


def test_another_number_of_rows_becomes_dynamic() -> None:
    compiled, counter = counted(ops.MaskTokens(MASKER), "aot_eager")
    for rows in (4, 5, 6, 7):
        equal(compiled(ids_of(rows), epoch=3), MASKER(ids_of(rows), epoch=3))
    assert counter.frame_count == 2


def test_another_masker_is_compiled_anew_and_an_equal_one_is_not() -> None:
    ids = ids_of()
    compiled, counter = counted(lambda module, ids: module(ids, epoch=3).input_ids)
    maskers = [fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=seed) for seed in (7, 8, 7, 9)]
    for masker in maskers:
        same(compiled(ops.MaskTokens(masker), ids).numpy(), masker(ids, epoch=3).input_ids.numpy())
    assert counter.frame_count == 3


@pytest.mark.parametrize(
    "other",
    [
        fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=8),
        fm.Masker(VOCAB, fm.Bernoulli(0.4), fm.Replace(0.8, 0.1, pool=range(5, 9)), seed=7),
        fm.Masker(VOCAB, fm.Bernoulli(0.4), fm.Replace(0.8, 0.1, pool=range(6, 10)), seed=7),
        fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7, ignore_index=-1),
        fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7, id_dtype=np.int32),
        fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7, label_dtype=np.int32),
        fm.Masker(fm.Vocab(60, 4, 0, (0, 1, 2, 3, 4)), fm.Bernoulli(0.4), seed=7),
    ],
)
def test_whatever_changes_an_objective_changes_its_name(other: fm.Masker) -> None:
    assert ops.register(other) != ops.register(MASKER)
    assert ops.register(pickle.loads(pickle.dumps(other))) == ops.register(other)


def test_masking_lies_within_a_graph_that_trains() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mask_tokens, self.embedding = ops.MaskTokens(MASKER), torch.nn.Embedding(60, 8)

        def forward(self, ids: Any, epoch: int) -> Any:
            batch = self.mask_tokens(ids, epoch=epoch)
            logits = self.embedding(batch.input_ids) @ self.embedding.weight.T
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())

    torch.manual_seed(0)
    model, ids = Model(), ids_of()
    compiled, _ = counted(model, "aot_eager")
    for epoch in (2, 3):
        losses = [run(ids, epoch) for run in (compiled, model)]
        torch.testing.assert_close(*losses)
        gradients = [torch.autograd.grad(loss, model.embedding.weight)[0] for loss in losses]
        torch.testing.assert_close(*gradients)
        assert gradients[0].abs().sum() > 0


def test_the_input_is_never_changed() -> None:
    ids = ids_of()
    before = ids.clone()
    compiled, _ = counted(ops.MaskTokens(MASKER), "aot_eager")
    assert not torch.equal(compiled(ids, epoch=3).input_ids, before)
    assert torch.equal(ids, before)


@pytest.mark.slow
def test_a_module_is_found_again_in_another_process() -> None:
    module, ids = ops.MaskTokens(MASKER), ids_of(2, 9)
    code = f"""if True:
        import pickle, torch
        module = pickle.loads({pickle.dumps(module)!r})
        print(torch.ops.fastmask.mask(torch.tensor({ids.tolist()}), module.name, 3)[0].tolist())
    """
    assert run_python(code, "-W", "ignore").strip() == str(MASKER(ids, epoch=3).input_ids.tolist())


def test_a_name_that_nobody_registered_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"no masker 'other' in this process: make its MaskTokens first"):
        torch.ops.fastmask.mask(ids_of(), "other", 3)


def test_bad_ids_raise_when_the_graph_runs() -> None:
    compiled, _ = counted(ops.MaskTokens(MASKER))
    ids = ids_of()
    compiled(ids, epoch=3)
    ids[2, 5] = 60
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 60\), got 60 in row 2, column 5"):
        compiled(ids, epoch=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"returns": "compact"}, "need max_predictions"),
        ({"returns": "labels"}, "returns may hold"),
        ({"returns": "rates"}, "goes with Diffusion"),
        ({"max_predictions": 3}, "goes with returns"),
        ({"epoch": 1 << 24}, "epoch must be in"),
    ],
)
def test_what_a_masker_refuses_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.MaskTokens(MASKER)(ids_of(), **({"epoch": 3} | given))


@pytest.mark.parametrize("law", ["bernoulli", "int32", "spans", "diffusion"])
def test_the_operator_passes_the_checks_of_torch(law: str) -> None:
    returns = "rates,compact" if law == "diffusion" else "compact"
    given = {"sample_id": 4, "lengths": torch.tensor([3, 0, 17, 9]), "returns": returns, "max_predictions": 17}
    library.opcheck(ops.mask, (ids_of(), ops.register(LAWS[law]), 3), given)


def supplied() -> Any:
    generator = torch.Generator().manual_seed(1)
    ids, other = (torch.randint(5, 60, (4, 9), generator=generator) for _ in range(2))
    draws = torch.rand((2, 4, 9), generator=generator, dtype=torch.float64)
    return ids, draws[0] < 0.5, draws[1], other


def test_supplied_decisions_are_carried_out_in_a_graph() -> None:
    compiled, _ = counted(ops.apply_mlm_mask, "aot_eager")
    ids, chosen, probs, other = supplied()
    for borders in ((0.8, 0.9), (0.3, 0.6)):
        got = compiled(ids, chosen, probs, other, 4, borders=borders)
        want = fm.apply_mlm_mask(ids, chosen, probs, other, 4, borders=borders)
        assert list(got) == list(want)
        for name in want:
            same(got[name].numpy(), want[name].numpy())
    with pytest.raises(ValueError, match=r"replace_probs must lie in \[0, 1\]"):
        compiled(ids, chosen, probs + 1, other, 4)


def test_the_operator_of_supplied_decisions_passes_the_checks_of_torch() -> None:
    library.opcheck(ops._apply_mlm_mask, (*supplied(), 4, 0.8, 0.9, True))
