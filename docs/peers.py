"""Times the steps beside PyTorch's attention backends and FlashAttention-3, in one process, on the same values.

    python3 docs/peers.py --lib build/cuda/bin/steps --csv peers.csv [--steps 26,27] [--dims 64,128] ...

Needs a CUDA build of this repository and PyTorch. The steps are called through their C interface with ctypes
(steps/course/step_interface.h), PyTorch's backends through scaled_dot_product_attention, FlashAttention-3 through
its authors' interface, if an installed package has the module flash_attn_interface. One that works on an H200, with
PyTorch 2.11.0+cu130, is a third party's build of FlashAttention-3's code for Hopper:

    pip install tokenspeed-fa3==3.0.0.post20260810

(The package fa3-fwd 0.0.3 is built without FP16.) Who is absent or refuses a problem is named and skipped.
Each gets Q, K and V contiguous in its own layout: [B, H, S, D], and [B, S, H, D] for FlashAttention-3.

FP8: fa3fp8 is FlashAttention-3 on e4m3 tensors, with a factor a head, its quantization untimed. A step that multiplies
FP8 numbers is timed twice: "37_fp8" quantizes FP16 tensors and attends, "37_fp8 attention" starts from what it quantized.

Every competitor is verified first, then timed in turn with both protocols, as a CUDA graph of as many launches as take
0.3 ms, so that the time to launch is not measured:

    burst   0.4 s idle, then the kernel alone; median of the replays that begin 10 to 40 ms after the start
    steady  the same run, median of the last 0.3 s of 0.7 s, when the power limiter has settled

FLOPs are 4 * B * H * Sq * Sk * D, halved for causal. TFLOP/s of different runs are not comparable to a per cent;
ratios within one run are.
"""

import argparse
import csv
import ctypes
import datetime
import importlib
import importlib.metadata
import itertools
import math
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Problem(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("batch", "heads", "seq_q", "seq_k", "dim")] + [
        ("causal", ctypes.c_int32), ("scale", ctypes.c_float), ("dtype", ctypes.c_int32)]


class Tensors(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("Q", "K", "V", "O", "LSE", "workspace")] + [
        ("workspace_bytes", ctypes.c_uint64), ("descales", ctypes.c_void_p)]


def e4m3(x):
    """x [B, H, S, D] in e4m3 with a factor a head, so that its largest becomes 448; and what takes it back, [B, H]."""
    descale = x.float().abs().amax((2, 3)) / 448
    return (x.float() / descale[:, :, None, None]).to(torch.float8_e4m3fn), descale


class Step:
    """One step's shared library. With `alone`, an FP8 step starts from tensors that it has quantized before."""

    note = ""

    def __init__(self, path, alone=False):
        self.name = path.name.split(".")[0] + (" attention" if alone else "")
        self.library = ctypes.CDLL(str(path))
        self.library.flash_workspace_bytes.restype = ctypes.c_int64
        self.library.flash_precision.restype = ctypes.c_char_p
        self.fp8 = self.library.flash_precision().startswith(b"fp8")
        self.alone = alone
        self.error = ctypes.create_string_buffer(1000)

    def prepare(self, q, k, v, causal):
        """Returns a function that launches once, with the tensor LSE that it writes as its attribute, and the tensor O."""
        b, h, sq, d = q.shape
        problem = Problem(b, h, sq, k.shape[2], d, causal, d ** -0.5, q.dtype == torch.bfloat16)
        size = self.library.flash_workspace_bytes(ctypes.byref(problem), self.error, 1000)
        if size < 0:
            raise RuntimeError(self.error.value.decode())
        out = torch.full_like(q, float("nan"))
        lse = torch.full((b, h, sq), float("nan"), device=q.device)
        workspace = torch.full((max(size, 16),), 255, dtype=torch.uint8, device=q.device)
        tensors = Tensors(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(),
                          workspace.data_ptr(), workspace.numel())

        def launch(keep=(problem, tensors, workspace, q, k, v, out, lse)):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if self.library.flash_attention(ctypes.byref(problem), ctypes.byref(tensors), stream, self.error, 1000):
                raise RuntimeError(self.error.value.decode())

        launch.lse = lse
        if self.alone:
            launch()
            out.fill_(float("nan"))
            if self.library.flash_quantized(ctypes.byref(problem), ctypes.byref(tensors), self.error, 1000):
                raise RuntimeError(self.error.value.decode())
        return launch, out


class Backend:
    """One of PyTorch's scaled_dot_product_attention backends."""

    note, fp8 = "", False

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def prepare(self, q, k, v, causal):
        box = {}

        def launch():
            with sdpa_kernel(self.backend):
                box["out"] = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        launch()
        return launch, box


class FlashAttention3:
    """FlashAttention-3's own kernels, from whichever installed package has its Python interface."""

    def __init__(self, name="fa3"):
        self.name, self.fp8 = name, name == "fa3fp8"
        try:
            self.forward = importlib.import_module("flash_attn_interface").flash_attn_func
        except (ImportError, OSError, AttributeError) as error:
            raise RuntimeError(f"flash_attn_interface cannot be imported: {error}") from error
        packages = importlib.metadata.packages_distributions().get("flash_attn_interface", [])
        self.note = " ".join(f"{p} {importlib.metadata.version(p)}" for p in sorted(set(packages)))

    def prepare(self, q, k, v, causal):
        descales = {}
        if self.fp8:
            (q, descales["q_descale"]), (k, descales["k_descale"]), (v, descales["v_descale"]) = map(e4m3, (q, k, v))
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
        box = {}

        def launch():  # num_splits=0: it may split the keys, as it sees fit
            out = self.forward(q, k, v, causal=causal, num_splits=0, **descales)
            box["out"] = (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        launch()
        return launch, box


def competitors(args):
    """The steps and backends that the arguments name; a backend that is absent is named."""
    wanted = [s for s in args.steps.split(",") if s]
    libraries = sorted(pathlib.Path(args.lib).glob("*.gpu.so"))
    result = []
    for path in libraries:
        if not wanted or any(path.name.startswith(w) for w in wanted):
            result.append(Step(path))
            result += [Step(path, alone=True)] if result[-1].fp8 else []
    known = {"fa2": lambda: Backend("fa2", SDPBackend.FLASH_ATTENTION),
             "cudnn": lambda: Backend("cudnn", SDPBackend.CUDNN_ATTENTION),
             "fa3": FlashAttention3, "fa3fp8": lambda: FlashAttention3("fa3fp8")}
    for name in args.backends.split(","):
        try:
            result += [known[name]()] if name in known else []
        except RuntimeError as error:
            print(f"{name} skipped: {str(error).splitlines()[0]}")
    return result


def hidden(q, k, rows):
    """[rows, Sk]: which keys these queries do not see; causal, bottom-right."""
    return torch.arange(k.shape[2], device=q.device)[None] > rows[:, None] + k.shape[2] - q.shape[2]


def exact(q, k, v, causal, rows):
    """Float64 attention of these query rows of every head: O [B, H, rows, D] and LSE [B, H, rows]."""
    outs, lses = [], []
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        s = q[b, h, rows].double() @ k[b, h].double().T * q.shape[3] ** -0.5
        if causal:
            s.masked_fill_(hidden(q, k, rows), -math.inf)
        lses.append(torch.logsumexp(s, -1))
        outs.append(torch.exp(s - lses[-1][:, None]) @ v[b, h].double())
    return tuple(torch.stack(x).unflatten(0, q.shape[:2]) for x in (outs, lses))


def ends(x):
    """The first and the last head of a tensor [B, H, ...], as [2, 1, ...]."""
    return torch.stack([x[0, :1], x[-1, -1:]])


def answer(out):
    """O, of a competitor that has it and of one that puts it into a box."""
    return out["out"] if isinstance(out, dict) else out


def verified(out, want, rows, tolerance):
    got = ends(answer(out))[:, :, rows].double()
    error = ((got - want).norm() / want.norm()).item()
    return error <= tolerance  # false for NaN


def graph_of(launch):
    """A CUDA graph of as many launches as take 0.3 ms, and how many these are."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()
        begin.record()
        for _ in range(10):
            launch()
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    count = max(1, round(0.3 / (begin.elapsed_time(end) / 10)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    return graph, count


def time_launches(launch, seconds=0.7, idle=0.4):
    """(start, duration) in ms of every call of `launch` in one run that begins after an idle pause."""
    launch()
    torch.cuda.synchronize()
    time.sleep(idle)
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    begin = time.perf_counter()
    while len(events) == 1 or time.perf_counter() - begin < seconds:
        launch()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) % 64 == 0 and len(events) > 256:  # stay at most a few hundred launches ahead
            events[-200].synchronize()
    torch.cuda.synchronize()
    ends = [events[0].elapsed_time(e) for e in events]
    return [(a, b - a) for a, b in zip(ends, ends[1:])]


def sm_clock():
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=5).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def protocols(launch):
    """Of burst and steady the median ms of a launch, the number of replays, the launches in each, and a note if one outlasts
    the window."""
    graph, count = graph_of(launch)
    result = measure(graph.replay)
    return {p: (ms / count, replays, count, note) for p, (ms, replays, note) in result.items()}


def measure(launch):
    """Of burst and steady the median ms of a call, the number of calls, and a note if one outlasts the window."""
    runs = time_launches(launch)
    if statistics.median(d for _, d in runs) > 30:  # longer than the burst window: three runs
        three = statistics.median(d for _, d in time_launches(launch, 0.0)[:1] +
                                  time_launches(launch, 0.0)[:1] + time_launches(launch, 0.0)[:1])
        return {"burst": (three, 3, "three runs"), "steady": (statistics.median(d for _, d in runs), len(runs), "")}
    end = runs[-1][0]
    burst = [d for s, d in runs if 10 <= s <= 40] or [runs[0][1]]
    steady = [d for s, d in runs if s >= end - 300]
    return {"burst": (statistics.median(burst), len(burst), ""), "steady": (statistics.median(steady), len(steady), "")}


def problems(args):
    """(batch, heads, seq_q, seq_k, dim, causal) of every case that is timed."""
    if args.shapes:
        for shape in args.shapes.split(","):
            yield *map(int, shape.split("x")), False
        return
    for dim in map(int, args.dims.split(",")):
        for causal in (c == "1" for c in args.causal.split(",")):
            for length in map(int, args.lengths.split(",")):
                yield 16384 // length, 2048 // dim, length, length, dim, causal


def copy_bandwidth():
    """TB/s that a copy within the GPU's memory reads and writes, together."""
    source = torch.empty(2 ** 31, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = [d for _, d in time_launches(lambda: target.copy_(source), seconds=0.2)]
    return 2 * source.numel() / statistics.median(times) / 1e9


def matmul(dtype):
    """What a large product of two matrices reaches, C = A B with 8192 x 8192 elements each: the GPU's ceiling in practice."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * 8192 ** 3, protocols(lambda: torch.matmul(a, b))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default="build/cuda/bin/steps", help="folder with the steps' *.gpu.so")
    parser.add_argument("--steps", default="", help="comma-separated numbers; all if empty")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="2048,4096,8192,16384", help="16384 tokens in all, hidden size 2048")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--shapes", default="", help="BxHxSqxSkxD,... instead of --dims and --lengths; full mask")
    parser.add_argument("--backends", default="fa2,cudnn,fa3", help="any of fa2, cudnn, fa3, fa3fp8, matmul, none")
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--csv", default="peers.csv")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU; nothing can be timed here.")
        return 77

    print(f"copy within the GPU's memory: {copy_bandwidth():.2f} TB/s, read and written")
    field = competitors(args)
    dtype, tolerance = (torch.bfloat16, 1.6e-2) if args.dtype == "bf16" else (torch.float16, 2e-3)
    name = torch.cuda.get_device_name()
    stamp = [datetime.date.today().isoformat(), name, torch.__version__, torch.version.cuda]
    with open(args.csv, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow("date,gpu,torch,cuda,protocol,competitor,batch,heads,seq_q,seq_k,dim,causal,dtype,ms_median,replays,"
                       "launches_a_replay,tflops,sm_clock_mhz,verified,note".split(","))

        def write(name, shape, flops, result, right, remark):
            clock = sm_clock()
            for protocol, (ms, replays, count, note) in result.items():
                table.writerow(stamp + [protocol, name, *shape, args.dtype, f"{ms:.4f}", replays, count,
                                        f"{flops / ms / 1e9:.1f}", clock, right, note or remark])

        if "matmul" in args.backends.split(","):
            flops, result = matmul(dtype)
            write("matmul", (1, 1, 8192, 8192, 8192, 0), flops, result, "", "not attention")
            print(f"{args.dtype} matmul " + "/".join(f"{flops / r[0] / 1e9:.0f}" for r in result.values()))
        for batch, heads, seq_q, seq_k, dim, causal in problems(args):
            torch.manual_seed(1)
            q, k, v = (torch.randn(batch, heads, rows, dim, device="cuda", dtype=dtype)
                       for rows in (seq_q, seq_k, seq_k))
            rows = torch.arange(0, seq_q, max(1, seq_q // 64), device="cuda")
            want, _ = exact(*map(ends, (q, k, v)), causal, rows)
            flops = 4 * batch * heads * seq_q * seq_k * dim / (2 if causal else 1)
            line = f"{args.dtype} D={dim} {'causal' if causal else 'full'} B={batch} H={heads} Sq={seq_q} Sk={seq_k}"
            for competitor in field:
                try:
                    launch, out = competitor.prepare(q, k, v, causal)
                    launch()
                except RuntimeError as error:
                    print(f"{line}: {competitor.name} skipped: {str(error).splitlines()[0]}")
                    continue
                torch.cuda.synchronize()
                # Rounding N(0, 1) to e4m3 makes 5e-2.
                right = verified(out, want, rows, 8e-2 if competitor.fp8 else tolerance)
                if not right:
                    print(f"{line}: {competitor.name} is WRONG and not timed")
                    continue
                result = protocols(launch)
                write(competitor.name, (batch, heads, seq_q, seq_k, dim, int(causal)), flops, result, int(right),
                      competitor.note)
                line += f"  {competitor.name} " + "/".join(f"{flops / r[0] / 1e9:.0f}" for r in result.values())
                if seq_q <= 16:  # decoding is bound by reading K and V
                    gigabytes = 4 * batch * heads * seq_k * dim / 1e9
                    line += " (" + "/".join(f"{gigabytes / r[0]:.2f}" for r in result.values()) + " TB/s)"
            print(line, flush=True)
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
