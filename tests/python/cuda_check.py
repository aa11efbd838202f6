"""Checks the package's tensors by pointer on a host with a GPU; prints counted results and ends with 1 where one failed.

    PYTHONPATH=BUILD/python python cuda_check.py

Needs torch with CUDA; JAX, where it has a GPU, is checked too. Everything is compared with the CPU engine on numpy input, bit for
bit.
"""

import gc
import sys
import threading
import traceback
from collections import Counter
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import torch

import quantgate as qg

RECIPES = [
    "bf16",
    "fp8_delayed",
    "fp8_current",
    "fp8_current:power_2_scales=true",
    "fp8_block",
    "mxfp8",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "nvfp4",
    "fp8_rowwise",
    "int8",
    "int4",
    "nf4",
    "bnb_fp4",
]
SOURCES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

RESULTS: Counter = Counter()
FAILED: List[str] = []


def bits(tensor: Any) -> bytes:
    """The bytes of an array of any library."""
    if isinstance(tensor, torch.Tensor):
        dense = tensor.detach().resolve_neg().contiguous().reshape(-1)
        return dense.view(torch.uint8).cpu().numpy().tobytes() if tensor.numel() else b""
    return np.ascontiguousarray(np.asarray(tensor)).tobytes()


def check(group: str, what: str, is_right: bool) -> None:
    RESULTS[group, bool(is_right)] += 1
    if not is_right:
        FAILED.append(f"{group}: {what}")


def refused(group: str, what: str, call: Callable[[], Any], kinds: Any, *texts: str) -> None:
    try:
        call()
    except kinds as error:
        check(group, f"{what}: {error}", all(text in str(error) for text in texts))
    else:
        check(group, f"{what}: was not refused", False)


def source(shape: Tuple[int, ...], dtype: str, seed: int) -> Tuple[np.ndarray, torch.Tensor]:
    """The same values in numpy and on the GPU."""
    x = qg.generate("lognormal_outliers", shape, dtype, seed=seed)
    integers = x.view(np.int16 if x.dtype.itemsize == 2 else np.int32)
    return x, torch.from_numpy(integers.copy()).cuda().view(SOURCES[dtype])


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Also of dtypes that torch fills nowhere."""
    return torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype)


def on_device(tensor: Any, device: torch.device) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device == device


def each_quantization() -> List[Tuple[str, str, bool, bool]]:
    return [
        (recipe, role, rowwise, columnwise)
        for recipe in RECIPES
        for role in ("input", "weight", "grad_output")
        for rowwise, columnwise in ((True, False), (False, True), (True, True))
    ]


def quantize_and_back(cuda: qg.Local) -> None:
    device = torch.device("cuda", 0)
    for dtype in SOURCES:
        x, t = source((256, 384), dtype, 3)
        for recipe, role, rowwise, columnwise in each_quantization():
            arguments = {"role": role, "rowwise": rowwise, "columnwise": columnwise}
            what = f"{recipe} {dtype} {arguments}"
            try:
                expected = qg.quantize(x, recipe, **arguments)
            except (qg.InvalidArgument, qg.Unimplemented):
                refused("quantize", what, lambda: cuda.quantize(t, recipe, **arguments), (qg.InvalidArgument, qg.Unimplemented))
                continue
            made = cuda.quantize(t, recipe, **arguments)
            check("quantize", f"{what}: other parts", made.tensors.keys() == expected.tensors.keys())
            for name, tensor in expected.tensors.items():
                check(
                    "quantize",
                    f"{what}: {name}",
                    on_device(made.tensors[name], device) and bits(made.tensors[name]) == bits(tensor),
                )
            memory = {name: zeros_like(tensor) for name, tensor in made.tensors.items()}
            again = cuda.quantize(t, recipe, **arguments, out=memory)
            for name, tensor in expected.tensors.items():
                check(
                    "quantize out=",
                    f"{what}: {name}",
                    again.tensors[name] is memory[name] and bits(memory[name]) == bits(tensor),
                )
            usage = "rowwise" if rowwise else "columnwise"
            try:
                values = qg.dequantize(expected, usage=usage)
            except (qg.InvalidArgument, qg.Unimplemented):
                continue
            back = cuda.dequantize(made, usage=usage)
            check("dequantize", what, on_device(back, device) and bits(back) == bits(values))
            parts = {name: tensor for name, tensor in made.tensors.items() if name.startswith(usage) or name == f"amax_{usage}"}
            out = torch.zeros_like(back)
            cuda.dequantize(made, usage=usage, out=out)
            check("dequantize out=", what, bits(out) == bits(values))
            check("dequantize on the CPU engine", what, bits(qg.dequantize(made, usage=usage)) == bits(values))
            if recipe == "mxfp8":
                check("dequantize of a dict", what, bits(cuda.dequantize(parts, usage=usage)) == bits(values))


def gemms(cuda: qg.Local) -> None:
    device = torch.device("cuda", 0)
    for dtype in SOURCES:
        a, ta = source((192, 256), dtype, 5)
        b, tb = source((128, 256), dtype, 6)
        for out_dtype in ("f32", "bf16", "f16"):
            arguments = {"arithmetic": "sm90" if dtype != "f32" else "exact", "out_dtype": out_dtype}
            expected = qg.gemm(a, b, **arguments)
            made = cuda.gemm(ta, tb, **arguments)
            check("gemm", f"{dtype} {arguments}", on_device(made.d, device) and bits(made.d) == bits(expected.d))
            out = torch.zeros_like(made.d)
            given = cuda.gemm(ta, tb, **arguments, out=out)
            check("gemm out=", f"{dtype} {arguments}", given.d is out and bits(out) == bits(expected.d))
            wide = torch.zeros(out.numel() + 1, dtype=out.dtype, device=device)
            shifted = wide[1:].view(out.shape)  # Dense, and not aligned.
            cuda.gemm(ta, tb, **arguments, out=shifted)
            check("gemm out= unaligned", f"{dtype} {arguments}", bits(shifted) == bits(expected.d) and float(wide[0]) == 0)
            mixed = cuda.gemm(ta, b, **arguments)
            check(
                "gemm with b of numpy", f"{dtype} {arguments}", on_device(mixed.d, device) and bits(mixed.d) == bits(expected.d)
            )
            host = cuda.gemm(a, tb, **arguments)
            check(
                "gemm with a of numpy",
                f"{dtype} {arguments}",
                isinstance(host.d, np.ndarray) and bits(host.d) == bits(expected.d),
            )
            on_cpu = qg.gemm(ta, tb, **arguments)
            check(
                "gemm on the CPU engine",
                f"{dtype} {arguments}",
                on_device(on_cpu.d, device) and bits(on_cpu.d) == bits(expected.d),
            )
    a, ta = source((192, 256), "bf16", 5)
    b, tb = source((128, 256), "bf16", 6)
    for recipe in ("fp8_current", "fp8_block", "mxfp8", "nvfp4", "int8"):
        qa, qb = qg.quantize(a, recipe), qg.quantize(b, recipe, role="weight")
        ca, cb = cuda.quantize(ta, recipe), cuda.quantize(tb, recipe, role="weight")
        try:
            expected = qg.gemm(qa, qb)
        except (qg.InvalidArgument, qg.Unimplemented):
            continue
        # auto is cuBLASLt on a GPU where it can be; the arithmetic that the CPU engine took is the same bits by its name.
        made = cuda.gemm(ca, cb, arithmetic=expected.arithmetic)
        check("gemm of codes", recipe, on_device(made.d, device) and bits(made.d) == bits(expected.d))
        check("gemm of codes by auto", recipe, bits(cuda.gemm(ca, cb).d) == bits(qg.gemm(qa, qb).d))
        bias, tbias = source((128,), "bf16", 8)
        check(
            "gemm of codes with bias",
            recipe,
            bits(cuda.gemm(ca, cb, bias=tbias, arithmetic=expected.arithmetic).d)
            == bits(qg.gemm(qa, qb, bias=bias, arithmetic=expected.arithmetic).d),
        )


# Of each layer kind: the shapes of x and of the gradient of y, those of the parameters by name, and the fields of the layer.
LAYERS: Dict[str, Tuple[Tuple[int, ...], Tuple[int, ...], Dict[str, Tuple[int, ...]], Dict[str, Any]]] = {
    "linear": ((128, 256), (128, 384), {"weight": (384, 256), "bias": (384,)}, {}),
    "layernorm_linear": ((128, 256), (128, 384), {"weight": (384, 256), "gamma": (256,), "beta": (256,)}, {}),
    "layernorm_mlp": (
        (128, 256),
        (128, 256),
        {"fc1.weight": (512, 256), "fc2.weight": (256, 512), "gamma": (256,)},
        {"activation": "gelu"},
    ),
    "grouped_linear": ((128, 256), (128, 256), {"weight.0": (256, 256), "weight.1": (256, 256)}, {"m_splits": [32, 96]}),
    "chain": (
        (128, 256),
        (128, 384),
        {"fc1.weight": (384, 256), "ln.gamma": (256,)},
        {
            "operations": [
                {"name": "ln", "kind": "norm", "norm": {"kind": "rmsnorm"}},
                {"name": "fc1", "kind": "basic_linear"},
                {"name": "act", "kind": "activation", "activation": {"kind": "silu"}},
            ]
        },
    ),
    "attention": (
        (64, 2, 128),
        (64, 2, 128),
        {"qkv.weight": (384, 128), "proj.weight": (128, 128)},
        {"attention": {"heads": 4}},
    ),
    "transformer_layer": (
        (64, 2, 128),
        (64, 2, 128),
        {
            "qkv.weight": (384, 128),
            "proj.weight": (128, 128),
            "norm1.gamma": (128,),
            "norm2.gamma": (128,),
            "fc1.weight": (256, 128),
            "fc2.weight": (128, 256),
        },
        {"attention": {"heads": 4}, "activation": "gelu", "norm": "rmsnorm"},
    ),
}


def layer(cuda: qg.Local, kind: str, recipe: str, with_grad: bool) -> None:
    x_shape, grad_shape, shapes, fields = LAYERS[kind]
    what = f"{kind} {recipe} {'with' if with_grad else 'without'} backward"
    x, tx = source(x_shape, "bf16", 9)
    grad, tgrad = source(grad_shape, "bf16", 10)
    parameters = {name: source(shape, "bf16", 11 + i) for i, (name, shape) in enumerate(shapes.items())}
    given: Dict[str, Any] = {
        "recipe": recipe,
        "layer": kind,
        **fields,
        "parameters": {name: p for name, (p, _) in parameters.items()},
    }
    tgiven: Dict[str, Any] = {**given, "parameters": {name: p for name, (_, p) in parameters.items()}}
    if with_grad:
        given["grad_output"], tgiven["grad_output"] = grad, tgrad
    try:
        expected = qg.run(x, **given)
    except (qg.InvalidArgument, qg.Unimplemented) as error:
        print(f"  not run: {what}: {str(error)[:120]}")
        refused("run", what, lambda: cuda.run(tx, **tgiven), (qg.InvalidArgument, qg.Unimplemented))
        return
    made = cuda.run(tx, **tgiven)
    check("run", f"{what}: other outputs", made.outputs.keys() == expected.outputs.keys())
    for name, tensor in expected.outputs.items():
        check("run", f"{what}: {name}", on_device(made.outputs[name], tx.device) and bits(made.outputs[name]) == bits(tensor))
    check("verify", what, cuda.verify(made.outputs, tx, **tgiven).passed)
    wrong = dict(made.outputs)
    name = next(iter(wrong))
    wrong[name] = wrong[name].clone()
    wrong[name].view(torch.uint8).reshape(-1)[3] ^= 1
    check("verify of a wrong bit", what, not cuda.verify(wrong, tx, **tgiven).passed)


def layers(cuda: qg.Local) -> None:
    for recipe in ("bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4"):
        for kind in LAYERS:
            for with_grad in (False, True):
                layer(cuda, kind, recipe, with_grad)
    x, tx = source((128, 256), "bf16", 9)
    w, tw = source((256, 256), "bf16", 10)
    grad, tgrad = source((128, 256), "bf16", 11)
    q, cq = qg.quantize(x, "mxfp8", columnwise=True), cuda.quantize(tx, "mxfp8", columnwise=True)
    check(
        "run of codes",
        "mxfp8",
        bits(cuda.run(cq, tw, recipe="mxfp8").outputs["y"]) == bits(qg.run(q, w, recipe="mxfp8").outputs["y"]),
    )
    check("diff", "equal", cuda.diff(tx, x).passed)
    with (
        cuda.session({"fc1": "linear"}, {"fc1.weight": tw}, recipe="mxfp8") as mine,
        qg.session({"fc1": "linear"}, {"fc1.weight": w}, recipe="mxfp8") as its,
    ):
        for one, other in zip((mine.forward(tx), mine.backward(tgrad)), (its.forward(x), its.backward(grad))):
            for name, tensor in other.outputs.items():
                check("session", name, bits(one.outputs[name]) == bits(tensor))


def views(cuda: qg.Local) -> None:
    x, t = source((128, 256), "f32", 15)
    padded = torch.zeros(128, 300, device="cuda")
    padded[:, 7:263] = t
    storage = torch.zeros(t.numel() + 3, device="cuda")
    storage[3:] = t.reshape(-1)
    cases = {
        "transposed": (t.T, x.T),
        "strided": (t[::2, ::4].contiguous()[:, :64], x[::2, ::4][:, :64]),
        "with gaps": (t[::2], x[::2]),
        "within another": (padded[:, 7:263], x),
        "unaligned": (storage[3:].view(128, 256), x),
        "broadcast": (t[:1].expand(128, 256), np.broadcast_to(x[:1], (128, 256))),
        "negated": (torch._neg_view(-t), x),
        "a parameter": (torch.nn.Parameter(t.clone()), x),
        "flipped": (t.flip(0), x[::-1]),
        "empty": (t[:0], x[:0]),
        "three dims": (t.view(4, 32, 256), x.reshape(4, 32, 256)),
    }
    for name, (view, expected) in cases.items():
        before = bits(view)
        for recipe in ("mxfp8", "fp8_current"):
            check(
                "views",
                f"{name} {recipe}",
                bits(cuda.quantize(view, recipe).rowwise_data)
                == bits(qg.quantize(np.ascontiguousarray(expected), recipe).rowwise_data),
            )
        check("views", f"{name}: changed", bits(view) == before)
    check(
        "views",
        "as another dtype",
        bits(
            cuda.dequantize(
                {
                    "rowwise_data": (cuda.quantize(t, "mxfp8").rowwise_data.view(torch.uint8), "f8_e4m3"),
                    "rowwise_scale_inv": (cuda.quantize(t, "mxfp8").rowwise_scale_inv.view(torch.uint8), "f8_e8m0"),
                }
            )
        )
        == bits(qg.dequantize(qg.quantize(x, "mxfp8"))),
    )


SLEEP = 400_000_000  # Cycles: about a fifth of a second.


def streams(cuda: qg.Local) -> None:
    """Data that a kernel writes long after the verb was called; memory that is written again and freed once it returned."""
    x, t = source((1024, 1024), "f32", 16)
    other = torch.full_like(t, float("nan"))
    expected = qg.quantize(x, "mxfp8", columnwise=True)
    for repeat in range(8):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            late = other.clone()
            torch.cuda._sleep(SLEEP)
            late.copy_(t)
            made = cuda.quantize(late, "mxfp8", columnwise=True)
            late.fill_(float("nan"))  # The verb has read it.
            for name, tensor in expected.tensors.items():
                check("a producer on a side stream", f"{repeat} {name}", bits(made.tensors[name]) == bits(tensor))
        late = other.clone()
        torch.cuda._sleep(SLEEP)
        late.copy_(t)
        made = cuda.quantize(late, "mxfp8", columnwise=True)
        del late
        reused = [torch.full_like(t, float("nan")) for _ in range(4)]  # The caching allocator gives the memory anew.
        for name, tensor in expected.tensors.items():
            check("memory given anew after the call", f"{repeat} {name}", bits(made.tensors[name]) == bits(tensor))
        del reused
        # out= memory that earlier work on the stream still writes to.
        memory = {name: zeros_like(tensor) for name, tensor in made.tensors.items()}
        torch.cuda._sleep(SLEEP)
        for tensor in memory.values():
            tensor.view(torch.uint8).fill_(0x5A)
        cuda.quantize(t, "mxfp8", columnwise=True, out=memory)
        for name, tensor in expected.tensors.items():
            check("out= that is still written", f"{repeat} {name}", bits(memory[name]) == bits(tensor))
        # Results that are dropped while a kernel of another stream has yet to read them.
        product = cuda.gemm(t, t, arithmetic="exact")
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            torch.cuda._sleep(SLEEP)
            kept = product.d.clone()
            product.d.record_stream(side)
        wanted = bits(product.d)
        del product
        for _ in range(4):
            cuda.gemm(other, other, arithmetic="exact")
        side.synchronize()
        check("results dropped before they are read", str(repeat), bits(kept) == wanted)
    for _ in range(100):
        for name, tensor in cuda.quantize(t, "mxfp8", columnwise=True).tensors.items():
            if bits(tensor) != bits(expected.tensors[name]):
                check("repeated", name, False)
    check("repeated", "", True)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        cuda.quantize(t, "mxfp8", columnwise=True)
    check("memory", "torch's memory grows", torch.cuda.memory_allocated() == before)
    graph = torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        torch.zeros(3, device="cuda").add_(1)
    try:
        with torch.cuda.graph(graph):
            refused(
                "states", "while a graph is captured", lambda: cuda.quantize(t, "mxfp8"), qg.FailedPrecondition, "capturing"
            )
            torch.zeros(3, device="cuda").add_(1)
    except RuntimeError as error:
        check("states", f"a refused call spoils the capture: {error}", False)


def threads(cuda: qg.Local) -> None:
    x, t = source((512, 512), "f32", 17)
    expected = {recipe: qg.quantize(x, recipe).tensors for recipe in ("mxfp8", "fp8_current", "nvfp4", "fp8_block")}
    right: List[bool] = []

    def work(recipe: str) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                mine = t.clone()
                made = cuda.quantize(mine, recipe)
                mine.fill_(float("nan"))
                right.append(all(bits(made.tensors[name]) == bits(tensor) for name, tensor in expected[recipe].items()))

    started = [threading.Thread(target=work, args=(recipe,)) for recipe in expected for _ in range(2)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for one in right:
        check("eight threads", "", one)
    check("eight threads", "not all came back", len(right) == 160)


def states(cuda: qg.Local) -> None:
    x, t = source((64, 64), "f32", 18)
    freed = t.clone()
    freed.untyped_storage().resize_(0)
    refused("states", "freed", lambda: cuda.quantize(freed, "mxfp8"), ValueError, "tensor is", "freed")
    refused("states", "sparse", lambda: cuda.quantize(t.to_sparse(), "mxfp8"), TypeError, "tensor is", "sparse")
    refused("states", "complex", lambda: cuda.quantize(t.to(torch.complex64), "mxfp8"), TypeError, "tensor is", "complex")
    refused("states", "bool", lambda: cuda.quantize(t > 0, "mxfp8"), TypeError, "tensor is", "bool")
    refused("states", "meta", lambda: cuda.quantize(t.to("meta"), "mxfp8"), ValueError, "tensor is", "meta")
    q = cuda.quantize(t, "mxfp8")
    refused(
        "states",
        "out with gaps",
        lambda: cuda.dequantize(q, out=torch.empty(64, 128, device="cuda")[:, ::2]),
        qg.InvalidArgument,
        "out is",
        "dense",
    )
    refused(
        "states",
        "out of another shape",
        lambda: cuda.dequantize(q, out=torch.empty(64, 63, device="cuda")),
        qg.InvalidArgument,
        "out is",
        "f32[64x64]",
    )
    refused(
        "states",
        "out that requires grad",
        lambda: cuda.dequantize(q, out=torch.empty(64, 64, device="cuda", requires_grad=True)),
        ValueError,
        "requires grad",
    )
    refused("states", "out of the input", lambda: cuda.gemm(t, t, out=t), qg.InvalidArgument, "out is", "share no memory")
    refused(
        "states",
        "out on the GPU of the CPU engine",
        lambda: qg.dequantize(q, out=torch.empty(64, 64, device="cuda")),
        qg.InvalidArgument,
        "out is",
        "on the CPU",
    )
    on_host = torch.zeros(64, 64)
    cuda.dequantize(q, out=on_host)
    check("states", "out on the host", bits(on_host) == bits(qg.dequantize(qg.quantize(x, "mxfp8"))))
    check("states", "numpy gives numpy", isinstance(cuda.quantize(x, "mxfp8").rowwise_data, np.ndarray))
    delayed = cuda.quantize(t, "fp8_delayed", scale=torch.ones(1, device="cuda"), amax_history=torch.zeros(4, device="cuda"))
    expected = qg.quantize(x, "fp8_delayed", scale=[1.0], amax_history=[0.0] * 4)
    for name, tensor in expected.tensors.items():
        check("states", f"delayed scaling: {name}", bits(delayed.tensors[name]) == bits(tensor))


def devices(cuda: qg.Local) -> None:
    if torch.cuda.device_count() < 2:
        print("  one GPU: several devices are not checked")
        return
    x, t = source((64, 64), "f32", 19)
    there = t.to("cuda:1")
    refused(
        "devices",
        "a tensor of another GPU",
        lambda: cuda.quantize(there, "mxfp8"),
        qg.InvalidArgument,
        "tensor is",
        "cuda:1",
        "cuda:0",
    )
    refused("devices", "out on another GPU", lambda: cuda.gemm(t, t, out=there), qg.InvalidArgument, "out is", "cuda:1")
    other = qg.Local(device="cuda:1")
    for current in (0, 1):
        with torch.cuda.device(current):
            made = other.quantize(there, "mxfp8").rowwise_data
            check(
                "devices",
                "an engine of the other GPU",
                made.device == there.device and bits(made) == bits(qg.quantize(x, "mxfp8").rowwise_data),
            )
            check("devices", "torch's current device changes", torch.cuda.current_device() == current)
            cuda.quantize(t, "mxfp8")
            check("devices", "torch's current device changes", torch.cuda.current_device() == current)
    refused(
        "devices",
        "codes of another GPU",
        lambda: cuda.dequantize(other.quantize(there, "mxfp8")),
        qg.InvalidArgument,
        "quantized is",
        "cuda:1",
    )


def jax_arrays(cuda: qg.Local) -> None:
    try:
        import jax

        gpus = [device for device in jax.devices() if device.platform in ("gpu", "cuda")]
    except Exception as error:  # Whatever a machine without it raises.
        print(f"  JAX is not checked: {str(error)[:100]}")
        return
    if not gpus:
        print("  JAX has no GPU: it is not checked")
        return
    for dtype in SOURCES:
        x = qg.generate("lognormal_outliers", (128, 256), dtype, seed=20)
        array = jax.device_put(x, gpus[0])
        for recipe in RECIPES:
            expected, made = qg.quantize(x, recipe), cuda.quantize(array, recipe)
            for name, tensor in expected.tensors.items():
                check(
                    "JAX quantize",
                    f"{recipe} {dtype} {name}",
                    made.tensors[name].devices() == {gpus[0]} and bits(made.tensors[name]) == bits(tensor),
                )
            check("JAX dequantize", f"{recipe} {dtype}", bits(cuda.dequantize(made)) == bits(qg.dequantize(expected)))
        late = jax.numpy.linalg.matrix_power(jax.numpy.eye(2048, device=gpus[0]), 60)[:128, :256].astype(array.dtype)
        check(
            "JAX work that is under way",
            dtype,
            bits(cuda.quantize(late, "mxfp8").rowwise_data) == bits(qg.quantize(np.asarray(late), "mxfp8").rowwise_data),
        )
    array.delete()
    refused("JAX states", "deleted", lambda: cuda.quantize(array, "mxfp8"), ValueError, "tensor is", "deleted")


class Library:
    """A tensor of a library that has DLPack alone, which notes the stream that it was asked for."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self.asked: List[Any] = []

    def __dlpack__(self, *, stream: Any = None, **arguments: Any) -> Any:
        self.asked.append(stream)
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def dlpack(cuda: qg.Local) -> None:
    x, t = source((256, 256), "f32", 21)
    for repeat in range(4):
        late = torch.full_like(t, float("nan"))
        torch.cuda._sleep(SLEEP)
        late.copy_(t)
        given = Library(late)
        made = cuda.quantize(given, "mxfp8").rowwise_data
        late.fill_(float("nan"))
        check(
            "DLPack",
            f"bits {repeat}",
            isinstance(made, np.ndarray) and bits(made) == bits(qg.quantize(x, "mxfp8").rowwise_data),
        )
        check("DLPack", f"stream {given.asked}", len(given.asked) == 1 and given.asked[0] == cuda._local.stream)
    refused("DLPack", "on the CPU engine", lambda: qg.quantize(Library(t), "mxfp8"), ValueError, "tensor is", "host memory")


def main() -> int:
    cuda = qg.Local(device="cuda")
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, {torch.cuda.device_count()} GPUs")
    for part in (quantize_and_back, gemms, layers, views, states, streams, threads, devices, dlpack, jax_arrays):
        try:
            part(cuda)
        except Exception:
            traceback.print_exc()
            check(part.__name__, "ended by an exception", False)
    for group in dict.fromkeys(group for group, _ in RESULTS):
        print(f"{group:40} {RESULTS[group, True]:6} right {RESULTS[group, False]:6} wrong")
    for what in FAILED[:40]:
        print(f"WRONG {what}")
    print(f"all: {sum(count for (_, right), count in RESULTS.items() if right)} right, {len(FAILED)} wrong")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
