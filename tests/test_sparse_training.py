"""keep: zeros stay zero, bit for bit, and what is kept trains as if the rest had never been there."""

from __future__ import annotations

import copy
import functools
import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from hf_px.core.errors import UnsupportedModelError
from hf_px.core.mask import Mask
from hf_px.sparse_training import _Zeros, keep_zeros, violations

# timm, accelerate and transformers are imported where they are used: the processes of the DDP test need none of them

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)


def net(seed=0):
    torch.manual_seed(seed)
    # matrices only, since torch's Muon takes nothing else; one of them square, like a preconditioner
    return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))


def some(model, density=0.4, seed=1):
    g = torch.Generator().manual_seed(seed)
    return Mask({n: torch.rand(w.shape, generator=g) < density for n, w in model.named_parameters() if w.dim() > 1})


def batch(seed=2, n=16):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 8, generator=g), torch.randn(n, 4, generator=g)


def train(model, optimizer, steps, clip=None, create_graph=False):
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward(create_graph=create_graph)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        return loss

    for _ in range(steps):
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def all_zero_bits(tensor):
    """+0.0 and nothing else: -0.0 has a bit set."""
    return not tensor.detach().contiguous().view(torch.uint8).any()


def assert_zeros(weights, mask):
    weights = dict(weights.named_parameters()) if isinstance(weights, nn.Module) else weights
    for name, bits in mask.bits.items():
        assert all_zero_bits(weights[name][~bits]), name
        assert weights[name][bits].count_nonzero() > 0, name  # or zero would be easy
    assert violations(weights, mask) == {}


def assert_zero_state(model, optimizer, mask, at_least=1):
    own = dict(model.named_parameters())
    for name, bits in mask.bits.items():
        found = [v for v in optimizer.state[own[name]].values() if torch.is_tensor(v) and v.shape == bits.shape]
        assert len(found) >= at_least, name
        for value in found:
            assert all_zero_bits(value[~bits]), name
            assert value[bits].count_nonzero() > 0, name


def clone(model):
    return {name: w.detach().clone() for name, w in model.named_parameters()}


# ---- every optimizer

TORCH = {
    "SGD": SGD,
    "SGD nesterov": functools.partial(SGD, nesterov=True),
    "SGD foreach": functools.partial(SGD, foreach=True),
    "SGD fused": functools.partial(SGD, fused=True),
    "AdamW": ADAMW,
    "AdamW foreach": functools.partial(ADAMW, foreach=True),
    "AdamW fused": functools.partial(ADAMW, fused=True),
    "AdamW amsgrad": functools.partial(ADAMW, amsgrad=True),
    "AdamW amsgrad fused": functools.partial(ADAMW, amsgrad=True, fused=True),
    "AdamW maximize": functools.partial(ADAMW, maximize=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "Adam, eps 0": functools.partial(torch.optim.Adam, lr=0.01, eps=0),  # 0 / 0 without a mask
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    "Adagrad": functools.partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "Adagrad fused": functools.partial(torch.optim.Adagrad, fused=True),
    "Adadelta": functools.partial(torch.optim.Adadelta, lr=1.0),
    "Adamax": functools.partial(torch.optim.Adamax, weight_decay=0.1),
    "NAdam": functools.partial(torch.optim.NAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": functools.partial(torch.optim.RAdam, lr=0.01),
    "Rprop": functools.partial(torch.optim.Rprop, lr=0.01),
    "ASGD": functools.partial(torch.optim.ASGD, lr=0.1, t0=1.0),
    "Adafactor": functools.partial(torch.optim.Adafactor, weight_decay=0.1),
    "LBFGS": functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3),
    "Muon": getattr(torch.optim, "Muon", None),  # torch 2.9
}
# ours to name, since the rest of timm's list are spellings of these; kron compiles for ten seconds and is left out
TIMM = [
    "sgdw", "adamp", "adabelief", "adafactor", "adafactorbv", "adahessian", "adamuon", "adan", "adopt", "cadamw",
    "lamb", "laprop", "lars", "lion", "madgrad", "mars", "muon", "nadamw", "novograd", "rmsproptf", "sgdp",
    "lookahead_adamw", "lookahead_sgd",
]  # fmt: skip
STATELESS = {"LBFGS", "Adafactor"}  # nothing in the shape of the weight: one flat vector; rows and columns


def stays_zero(model, optimizer, name):
    second_order = name == "adahessian"
    train(model, optimizer, 3, create_graph=second_order)  # momentum for weights that are then pruned
    mask, real = some(model), getattr(optimizer, "_base_optimizer", optimizer)
    if name not in STATELESS:
        state = [v for v in real.state[model[0].weight].values() if getattr(v, "shape", None) == (8, 8)]
        assert any(value[~mask.bits["0.weight"]].count_nonzero() for value in state)
    keep_zeros(model, mask, optimizer)
    assert_zeros(model, mask)
    before = clone(model)
    for _ in range(5):
        train(model, optimizer, 1, create_graph=second_order)
        assert_zeros(model, mask)
        if name not in STATELESS:
            assert_zero_state(model, real, mask)
    for n, weight in model.named_parameters():
        assert weight.isfinite().all()
        assert (weight != before[n])[mask.bits[n]].float().mean() > 0.5  # but for units with no way out


@pytest.mark.parametrize("name", TORCH)
def test_zeros_stay_zero_under_torch(name):
    if TORCH[name] is None:
        pytest.skip(f"this torch has no {name}")
    model = net()
    stays_zero(model, TORCH[name](model.parameters()), name)


@pytest.mark.parametrize("name", TIMM)
def test_zeros_stay_zero_under_timm(name):
    from timm.optim import create_optimizer_v2

    model = net()
    options = {} if name == "novograd" else {"momentum": 0.9}
    stays_zero(model, create_optimizer_v2(model, opt=name, lr=0.01, weight_decay=0.1, **options), name)


def test_lookahead_forgets_the_slow_weights_of_before():
    from timm.optim import create_optimizer_v2

    model = net()
    optimizer = create_optimizer_v2(model, opt="lookahead_sgd", lr=0.01, momentum=0.9)
    optimizer.sync_lookahead()  # no gradients yet: does nothing
    train(model, optimizer, 7)  # every sixth step mixes the slow weights in
    mask = some(model)
    keep_zeros(model, mask, optimizer)
    for _ in range(7):
        train(model, optimizer, 1)
        assert_zeros(model, mask)


# ---- what is kept trains as if the pruned weights did not exist


def narrow(make, clip, steps=10):
    """One output unit, inputs pruned; and the same problem without those inputs, momentum carried over."""
    torch.manual_seed(0)
    x, y = torch.randn(32, 10), torch.randn(32, 1)
    full = nn.Linear(10, 1)
    bits = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 0, 0, 1]], dtype=torch.bool)
    columns = bits[0]

    def fit(model, optimizer, x, steps):
        norms = []
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
            optimizer.step()
        return norms

    optimizer = make(full.parameters())
    fit(full, optimizer, x, 3)
    small = nn.Linear(int(columns.sum()), 1)
    with torch.no_grad():
        small.weight.copy_(full.weight[:, columns])
        small.bias.copy_(full.bias)
    twin = make(small.parameters())
    state = copy.deepcopy(optimizer.state_dict())
    for key, value in state["state"][0].items():
        if torch.is_tensor(value) and value.shape == bits.shape:
            state["state"][0][key] = value[:, columns].clone()
    twin.load_state_dict(state)

    keep_zeros(full, Mask({"weight": bits}), optimizer)
    norms = fit(full, optimizer, x, steps), fit(small, twin, x[:, columns], steps)
    return full.weight[:, columns], small.weight, full.bias, small.bias, *norms


def lamb(parameters):
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(list(parameters), opt="lamb", lr=0.01, weight_decay=0.1)


ORACLE = {
    name: TORCH[name]
    for name in ("SGD", "SGD nesterov", "SGD fused", "AdamW", "AdamW foreach", "AdamW fused", "AdamW amsgrad",
                 "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
} | {"lamb": lamb}  # fmt: skip  # lamb: the norm of a layer is that of its live weights


@pytest.mark.parametrize("clip", [0.1, 1e9], ids=["clipped", "free"])
@pytest.mark.parametrize("name", ORACLE)
def test_the_kept_train_as_if_the_rest_never_existed(name, clip):
    weight, twin_weight, bias, twin_bias, norms, twin_norms = narrow(ORACLE[name], clip)
    assert max(norms) > clip or clip == 1e9
    torch.testing.assert_close(norms, twin_norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight, twin_weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(bias, twin_bias, rtol=1e-4, atol=1e-6)


# ---- at the call


def test_the_call_masks_what_is_there_already():
    model = net()
    optimizer = ADAMW(model.parameters(), amsgrad=True)
    train(model, optimizer, 2)
    before, grads = clone(model), {n: w.grad.clone() for n, w in model.named_parameters()}
    state = {n: {k: v.clone() for k, v in optimizer.state[w].items()} for n, w in model.named_parameters()}
    mask = some(model)
    keep_zeros(model, mask, optimizer)
    for name, weight in model.named_parameters():
        bits = mask.bits[name]
        pairs = [(weight, before[name]), (weight.grad, grads[name])]
        pairs += [(v, state[name][k]) for k, v in optimizer.state[weight].items() if k != "step"]
        assert len(pairs) == 5
        for now, then in pairs:
            assert torch.equal(now, torch.where(bits, then, 0.0))
            assert all_zero_bits(now[~bits])
        assert optimizer.state[weight]["step"] == 2


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -1.0])
def test_zero_is_zero_even_where_there_was_nan_or_a_sign(poison):
    model = net()
    optimizer = SGD(model.parameters())
    train(model, optimizer, 1)
    mask = some(model)

    def poisoned(tensor):
        return torch.where(mask.bits["0.weight"], tensor, poison)

    weight = model[0].weight
    with torch.no_grad():
        weight.copy_(poisoned(weight))
    weight.grad = poisoned(weight.grad)
    optimizer.state[weight]["momentum_buffer"] = poisoned(optimizer.state[weight]["momentum_buffer"])
    keep_zeros(model, mask, optimizer)
    for tensor in (weight, weight.grad, optimizer.state[weight]["momentum_buffer"]):
        assert all_zero_bits(tensor[~mask.bits["0.weight"]])
    with torch.no_grad():
        weight.copy_(poisoned(weight))  # by hand, against the rules
    weight.grad = poisoned(weight.grad)
    optimizer.step()
    assert all_zero_bits(weight.grad[~mask.bits["0.weight"]])
    assert_zeros(model, mask)
    assert_zero_state(model, optimizer, mask)


def test_the_backward_pass_masks_gradients_and_accumulates():
    model = net()
    x, y = batch()
    F.mse_loss(model(x), y).backward()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)  # in the middle of an accumulation
    F.mse_loss(model(x), y).backward()
    once = {n: w.grad.clone() for n, w in model.named_parameters()}
    F.mse_loss(model(x), y).backward()
    for name, weight in model.named_parameters():
        assert all_zero_bits(weight.grad[~mask.bits[name]])
    torch.testing.assert_close(dense_gradients(model, mask), {n: w.grad - once[n] for n, w in model.named_parameters()})


def dense_gradients(model, mask):
    """∂L/∂θ ⊙ M by a copy that has no hooks."""
    twin = copy.deepcopy(model)
    x, y = batch()
    F.mse_loss(twin(x), y).backward()
    return {n: torch.where(mask.bits[n], w.grad, 0.0) for n, w in twin.named_parameters()}


def test_accumulated_micro_batches_equal_one_batch():
    x, y = batch()
    ends = []
    for parts in (1, 4):
        model = net()
        optimizer, mask = ADAMW(model.parameters()), some(model)
        train(model, optimizer, 3)
        keep_zeros(model, mask, optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(parts), y.chunk(parts)):
                (F.mse_loss(model(xs), ys) / parts).backward()
            optimizer.step()
            assert_zeros(model, mask)
        ends.append(clone(model))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_gradients_written_by_hand_are_masked_before_the_step():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.extend(w.grad.clone() for w in model.parameters()))
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    for grad, bits in zip(seen, mask.bits.values(), strict=True):
        assert all_zero_bits(grad[~bits])
        assert grad[bits].all()


# ---- mixed precision


@pytest.mark.parametrize("make", [SGD, functools.partial(ADAMW, fused=True)], ids=["SGD", "AdamW fused"])
def test_mixed_precision_and_a_skipped_step(make):
    model = net()
    optimizer, mask = make(model.parameters()), some(model)
    train(model, optimizer, 3)
    keep_zeros(model, mask, optimizer)
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**10)
    x, y = batch()
    for i in range(6):
        before = clone(model)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss * (float("inf") if i == 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert_zeros(model, mask)
        assert_zero_state(model, optimizer, mask)
        moved = {n: bool((w != before[n]).any()) for n, w in model.named_parameters()}
        assert moved == dict.fromkeys(moved, i != 2)
    assert scaler.get_scale() == 2.0**9


def test_an_overflow_in_a_pruned_weight_skips_nothing():
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters())
    bits = torch.tensor([[True, False, True]])
    keep_zeros(model, Mask({"weight": bits}), optimizer)
    before = model.weight.detach().clone()
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**16)
    scaler.scale(model(torch.tensor([[1.0, 1e36, 1.0]])).sum()).backward()  # 1e36 · 2^16 is inf in float32
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**16
    assert ((model.weight != before) == bits).all()


def test_half_precision_weights():
    model = net().bfloat16()
    optimizer, mask = ADAMW(model.parameters()), some(model)
    x, y = (t.bfloat16() for t in batch())
    for i in range(6):
        if i == 3:
            keep_zeros(model, mask, optimizer)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    assert_zeros(model, mask)
    assert_zero_state(model, optimizer, mask, at_least=2)


# ---- moving averages


def timm_ema(kind, **options):
    def make(model):
        import timm.utils

        return getattr(timm.utils, kind)(model, decay=0.9, **options)

    return make


EMA = {
    "timm V2": timm_ema("ModelEmaV2"),
    "timm V3": timm_ema("ModelEmaV3"),
    "timm V3 warm-up": timm_ema("ModelEmaV3", use_warmup=True, update_after_step=1),
    "timm V3 no foreach": timm_ema("ModelEmaV3", foreach=False),
    "timm V3 no buffers": timm_ema("ModelEmaV3", exclude_buffers=True, use_warmup=True),
    "SWA": AveragedModel,
    "EMA": functools.partial(AveragedModel, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "EMA one by one": functools.partial(AveragedModel, avg_fn=get_ema_avg_fn(0.9)),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", EMA)
def test_averages_keep_the_zeros(name, when):
    model = net()
    optimizer, mask = ADAMW(model.parameters()), some(model)
    ema = EMA[name](model) if when == "before" else None
    step = 0

    def update():
        nonlocal step
        step += 1
        train(model, optimizer, 1)
        if ema is not None:
            if isinstance(ema, AveragedModel):
                ema.update_parameters(model)
            else:
                ema.update(model, **({"step": step} if "V3" in name else {}))

    for _ in range(3):
        update()
    keeper = keep_zeros(model, mask, optimizer, ema=ema)
    keeper._averages.clear()  # the call alone is enough as long as updates come from the model
    if ema is None:
        ema = EMA[name](model)
    for _ in range(5):
        update()
        assert_zeros(ema.module, mask)
    for n, average in ema.module.named_parameters():
        assert (average != model.get_parameter(n))[mask.bits[n]].any()  # an average, not the model


def test_an_average_that_loads_dense_weights_is_masked_with_the_next_step():
    model = net()
    optimizer, mask, ema = SGD(model.parameters()), some(model), copy.deepcopy(net())
    keep_zeros(model, mask, optimizer, ema=ema)
    assert_zeros(ema, mask)
    ema.load_state_dict(net(seed=1).state_dict())
    assert violations(ema.state_dict(), mask)
    train(model, optimizer, 1)
    assert_zeros(ema, mask)


# ---- wrappers


@pytest.fixture
def accelerator():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_accelerate(accelerator, when):
    model = net()
    optimizer, mask = ADAMW(model.parameters()), some(model)
    train(model, optimizer, 3)
    if when == "before":
        keep_zeros(model, mask, optimizer)
    prepared, wrapped = accelerator.prepare(model, optimizer)
    assert wrapped is not optimizer
    if when == "after":
        keep_zeros(prepared, mask, wrapped)
    x, y = batch()
    for i in range(6):
        before = clone(model)
        with accelerator.accumulate(prepared):
            accelerator.backward(F.mse_loss(prepared(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 0.1)
            wrapped.step()
            wrapped.zero_grad()
        assert_zeros(model, mask)
        assert_zero_state(model, optimizer, mask, at_least=2)
        assert torch.equal(before["0.weight"], model[0].weight) == (i % 2 == 0)


def test_a_compiled_model():
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer, mask = SGD(compiled.parameters()), some(model)
    train(compiled, optimizer, 2)
    keep_zeros(compiled, mask, optimizer)
    train(compiled, optimizer, 1)
    assert_zeros(model, mask)
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(compiled(x), y).backward()
    for name, grad in dense_gradients(model, mask).items():
        assert all_zero_bits(model.get_parameter(name).grad[~mask.bits[name]])
        torch.testing.assert_close(model.get_parameter(name).grad, grad)


def test_a_child_called_module_is_no_wrapper():
    model = nn.Module()
    model.module = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    assert "module.0.weight" in mask.bits
    keep_zeros(model, mask, optimizer)
    train(model.module, optimizer, 2)
    assert_zeros(model, mask)


def test_trainer(tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=3, **sizes))
    optimizer, mask = ADAMW(model.parameters()), some(model)
    data = [{"pixel_values": torch.randn(1, 16, 16), "labels": i % 3} for i in range(12)]
    model(torch.stack([d["pixel_values"] for d in data]), labels=torch.arange(12) % 3).loss.backward()
    optimizer.step()
    before = clone(model)
    keep_zeros(model, mask, optimizer)
    options = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "bf16": True}
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, **options
    )
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()
    assert trainer.state.global_step == 3
    assert_zeros(model, mask)
    assert_zero_state(model, optimizer, mask, at_least=2)
    for name, bits in mask.bits.items():
        assert (model.get_parameter(name) != before[name])[bits].any()


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def images(rank):
    g = torch.Generator().manual_seed(rank)
    return torch.randn(8, 1, 5, 5, generator=g), torch.randint(3, (8,), generator=g)


def started():
    """A model with momentum: two dense steps, the same on every process."""
    model = wide()
    optimizer = SGD(model.parameters(), lr=0.05)
    x, y = images(2)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer, some(model)


def one_of_two(rank, port, folder):
    """A process of the DDP test: train, and write what it saw."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {"world": dist.get_world_size()}
    x, y = images(rank)
    for when in ("before", "after"):
        model, optimizer, mask = started()
        if when == "before":
            keep_zeros(model, mask, optimizer)
        # small buckets: the first is on its way while the rest of the backward pass still runs
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4, gradient_as_bucket_view=when == "after")
        if when == "after":
            keep_zeros(ddp, mask, optimizer)
        norms = []
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.2).item())
            optimizer.step()
            assert_zeros(model, mask)
            assert_zero_state(model, optimizer, mask)
        found[when] = {n: w.flatten().tolist() for n, w in model.named_parameters()} | {"norms": norms}
    found["errors"] = [sharded(wrap) for wrap in ("fully_shard", "FSDP")]
    Path(folder, str(rank)).write_text(json.dumps(found))
    dist.barrier()  # gloo aborts a process whose peer has hung up first
    dist.destroy_process_group()


def sharded(wrap):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model = wide()
    mask = some(model)
    if wrap == "FSDP":
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(UnsupportedModelError) as error:
        keep_zeros(model, mask, SGD(model.parameters()))
    return str(error.value)


def test_two_processes_agree_with_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(one_of_two, args=(port, str(tmp_path)), nprocs=2, start_method="fork")
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    assert [r["world"] for r in ranks] == [2, 2]  # two really ran
    assert ranks[0] == ranks[1]
    assert "0.weight: in shards" in ranks[0]["errors"][0]
    assert "in shards" in ranks[0]["errors"][1]

    # one process, both batches, and the law spelt out by hand
    model, optimizer, mask = started()
    norms = []
    for _ in range(5):
        optimizer.zero_grad()
        mask.apply_(model)
        sum(F.cross_entropy(model(x), y) / 2 for x, y in (images(0), images(1))).backward()
        for name, weight in mask.tensors_of(model).items():
            weight.grad[~mask.bits[name]] = 0
            optimizer.state[weight]["momentum_buffer"][~mask.bits[name]] = 0
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())
        optimizer.step()
    assert max(norms) > 0.2
    alone = {n: w.flatten().tolist() for n, w in model.named_parameters()} | {"norms": norms}
    for when in ("before", "after"):
        assert alone.keys() == ranks[0][when].keys()
        for name, values in alone.items():
            assert ranks[0][when][name] == pytest.approx(values, rel=1e-4, abs=1e-6)


# ---- saving, loading, copying, ending


def test_optimizer_state_survives_saving_and_a_dense_one_is_masked(tmp_path):
    model = net()
    optimizer, mask = ADAMW(model.parameters()), some(model)
    train(model, optimizer, 3)
    dense = copy.deepcopy(optimizer.state_dict())
    keep_zeros(model, mask, optimizer)
    train(model, optimizer, 2)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint.pt")
    train(model, optimizer, 3)

    weights, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again = net(seed=5)
    resumed = ADAMW(again.parameters())
    again.load_state_dict(weights)
    keep_zeros(again, mask, resumed)
    resumed.load_state_dict(state)
    train(again, resumed, 3)
    torch.testing.assert_close(clone(again), clone(model), rtol=0, atol=0)  # to the bit

    resumed.load_state_dict(dense)  # of before the pruning
    assert_zero_state(again, resumed, mask, at_least=2)
    train(again, resumed, 1)
    assert_zeros(again, mask)


def test_remove_ends_it():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    hooks += [optimizer._optimizer_load_state_dict_post_hooks, *(w._backward_hooks or {} for w in model.parameters())]
    with keep_zeros(model, mask, optimizer) as keeper:
        train(model, optimizer, 1)
        assert_zeros(model, mask)
    assert not any(hooks) and not any(w._backward_hooks for w in model.parameters())
    keeper.remove()  # twice is no error
    train(model, optimizer, 1)
    assert violations(dict(model.named_parameters()), mask).keys() == mask.bits.keys()


def test_a_tighter_mask_on_top():
    model = net()
    optimizer, loose = SGD(model.parameters()), some(model, 0.8)
    tight = loose & some(model, 0.5, seed=7)
    first = keep_zeros(model, loose, optimizer)
    train(model, optimizer, 2)
    with keep_zeros(model, tight, optimizer):
        train(model, optimizer, 2)
        assert_zeros(model, tight)
        assert_zero_state(model, optimizer, tight)
    train(model, optimizer, 2)
    assert_zeros(model, loose)  # the first is still in force
    assert violations(model.state_dict(), tight)
    first.remove()
    train(model, optimizer, 1)
    assert violations(model.state_dict(), loose)


def test_a_copy_of_the_model_is_free():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    twin = copy.deepcopy(model)
    assert_zeros(twin, mask)
    train(twin, SGD(twin.parameters()), 2)
    assert violations(twin.state_dict(), mask)
    train(model, optimizer, 2)
    assert_zeros(model, mask)


def test_the_zeros_follow_the_model_to_another_dtype():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    train(model, optimizer, 1)
    model.double()  # brings new gradient accumulators: the hooks must live on
    optimizer.load_state_dict(optimizer.state_dict())  # and so does the momentum
    x, y = (t.double() for t in batch())
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    for name, weight in model.named_parameters():
        assert weight.grad.dtype is torch.float64
        assert all_zero_bits(weight.grad[~mask.bits[name]])
    optimizer.step()
    assert_zeros(model, mask)


def test_the_zeros_follow_a_weight_to_another_device():
    """By hand, on the one other device that every machine has: there, .to() would make new parameters."""
    zeros = _Zeros(torch.ones(2, 3))
    zeros.add_(torch.tensor([[True, False, False], [False, True, True]]))
    elsewhere = torch.ones(2, 3, device="meta")
    assert zeros.masked(elsewhere).device == elsewhere.device
    zeros.mask_(elsewhere)  # state and averages may live elsewhere for good
    assert zeros.pruned.device.type == "cpu"
    zeros.follow_(elsewhere)
    assert zeros.pruned.device == elsewhere.device


# ---- odd tensors


def test_tied_weights_honour_both_names():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Linear(8, 4))
    model[2].weight = model[0].weight
    optimizer = SGD(model.parameters())
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(8, 8, generator=g) < 0.6 for _ in range(2))
    train(model, optimizer, 2)
    keep_zeros(model, Mask({"0.weight": a, "2.weight": b}), optimizer)
    assert len(model[0].weight._backward_hooks) == 1
    train(model, optimizer, 3)
    both = Mask({"0.weight": a & b})
    assert_zeros(model, both)
    assert_zero_state(model, optimizer, both)

    keep_zeros(model, Mask({"2.weight": torch.zeros(8, 8, dtype=torch.bool)}), optimizer)  # by the second name alone
    train(model, optimizer, 1)
    assert all_zero_bits(model[0].weight)


def test_frozen_weights_are_masked_and_left_alone():
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer, mask = SGD(model[2].parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    assert_zeros(model, mask)
    frozen = model[0].weight.clone()
    train(model, optimizer, 2)
    assert torch.equal(model[0].weight, frozen)
    assert_zeros(model, mask)

    keep_zeros(model, Mask({"0.weight": mask.bits["0.weight"]}), optimizer)  # nothing that trains: nothing to hold


def test_a_frozen_weight_that_thaws():
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 2)
    assert_zeros(model, mask)
    assert_zero_state(model, optimizer, mask)


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD])
def test_sparse_gradients(make):
    torch.manual_seed(0)
    model = nn.Embedding(6, 4, sparse=True)
    optimizer, mask = make(model.parameters(), lr=0.1), some(model)

    def backward():
        model(torch.tensor([0, 2, 2, 5])).square().sum().backward()

    backward()
    keep_zeros(model, mask, optimizer)
    bits = mask.bits["weight"]
    assert all_zero_bits(model.weight.grad.to_dense()[~bits])  # what was there
    optimizer.zero_grad()
    for _ in range(3):
        backward()
        assert model.weight.grad.is_sparse
        assert all_zero_bits(model.weight.grad.to_dense()[~bits])
        expected = torch.zeros(6, 4).index_add(0, torch.tensor([0, 2, 2, 5]), 2 * model.weight[[0, 2, 2, 5]].detach())
        torch.testing.assert_close(model.weight.grad.to_dense(), expected)
        optimizer.step()
        optimizer.zero_grad()
        assert_zeros(model, mask)


def test_scalars_and_integers_in_the_state_are_left_alone():
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(2.0))
    model.weight = nn.Parameter(torch.ones(3))
    optimizer = ADAMW(model.parameters())
    gone = Mask({"scale": torch.tensor(False), "weight": torch.tensor([True, False, False])})
    keep_zeros(model, gone, optimizer)
    codes = torch.full((3,), 128, dtype=torch.uint8)
    for i in range(3):
        (model.scale * model.weight.sum()).backward()
        model.weight.grad = torch.ones(3)
        optimizer.step()
        optimizer.state[model.weight]["codes"] = codes  # as an 8-bit optimizer has them
        assert model.scale == 0
        assert optimizer.state[model.scale]["step"] == i + 1  # the shape of the weight, but not a weight's
    assert (codes == 128).all()


def test_weights_without_gradients():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    model[0](batch()[0]).sum().backward()
    assert model[2].weight.grad is None
    optimizer.step()
    assert model[2].weight.grad is None
    assert_zeros(model, mask)


# ---- errors come before work


def test_errors_name_the_tensor_and_the_way_out():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    before = clone(model)
    other = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 5, bias=False))
    cases = [
        (ValueError, r"3\.weight: in the mask, but the model has no", model, Mask({"3.weight": torch.ones(2) > 0}), {}),
        (ValueError, r"2\.weight: mask is \(5, 8\), weight is \(4, 8\)", model, some(other), {}),
        (ValueError, r"0\.weight: the optimizer holds neither .* build it from", model, mask, {"of": net()}),
        (TypeError, "a list neither is nor wraps a torch.optim.Optimizer", model, mask, {"optimizer": [optimizer]}),
        (TypeError, "expected a torch module, not dict", {}, mask, {}),
        (ValueError, r"2\.weight: mask is \(4, 8\), weight is \(5, 8\)", model, mask, {"ema": other}),
        (ValueError, r"3\.weight: in the mask", nn.DataParallel(model), Mask({"3.weight": torch.ones(2) > 0}), {}),
    ]
    for kind, message, subject, bits, options in cases:
        chosen = SGD(options["of"].parameters()) if "of" in options else options.get("optimizer", optimizer)
        with pytest.raises(kind, match=message):
            keep_zeros(subject, bits, chosen, ema=options.get("ema"))
    assert all(torch.equal(before[n], w) and not w._backward_hooks for n, w in model.named_parameters())
    assert not optimizer._optimizer_step_post_hooks


def test_an_optimizer_that_changes_its_parameters_later_is_noticed():
    model = net()
    optimizer, mask = SGD(model.parameters()), some(model)
    keep_zeros(model, mask, optimizer)
    optimizer.param_groups[0]["params"] = [nn.Parameter(w.detach().clone()) for w in model.parameters()]  # as FSDP does
    with pytest.raises(ValueError, match=r"0\.weight: the optimizer holds neither"):
        optimizer.step()


def test_violations_count_what_is_not_zero():
    bits = torch.tensor([True, False, False, False, False])
    mask = Mask({"a": bits, "b": bits, "c": bits})
    weights = {
        "a": torch.tensor([1.0, 0.0, float("nan"), 1e-45, float("inf")]),
        "b": torch.tensor([0.0, 0.0, -0.0, 0.0, 0.0]),
        "c": torch.tensor([1, 0, 2, 0, 0]),
        "d": torch.ones(2),
    }
    assert violations(weights, mask) == {"a": 3, "c": 1}
    with pytest.raises(ValueError, match="c: in the mask, but not among the weights"):
        violations({"a": weights["a"], "b": weights["b"]}, mask)
    with pytest.raises(ValueError, match=r"a: mask is \(5,\), weight is \(2,\)"):
        violations({"a": torch.ones(2)}, mask)
    assert weights["a"].isnan().any()  # read, not written
