"""Measures the error of the FP16 and FP8 steps, and of FlashAttention-3's own kernels, against float64, on a GPU.

    python3 docs/accuracy.py --lib build/cuda/bin/steps,my/variants --npy my/qkv --csv accuracy.csv

Needs PyTorch, a CUDA build, and what docs/peers.py says of FlashAttention-3. docs/variants.py writes my/variants, which has
38_fp8_accuracy with some of its measures; docs/capture_qkv.py writes my/qkv. Tables; B=1, and H * D = 2048, but
2 heads in bias:

    outliers  Q, K, V from N(0, 1) + N(0, 100) * Bernoulli(0.001), as in FlashAttention-3's paper: 100 is the variance, so
              an element in a thousand gets 10 times a normal number added
    gaussian  N(0, 1)
    logits8   the same, and Q times 8: scores have a standard deviation of 8
    real      of a trained model, from --npy
    bias      V from N(mean, 1): what a narrow accumulator loses shows in the gain, and not with mean 0

Competitors:

    naive fp16                     PyTorch: S and P in FP16, one matrix product after another, sums in float
    36_persistent, 37_fp8, ...     steps, through their C interface
    38_plain, 38_blocks, ...       38_fp8_accuracy with no measure, with scales of blocks alone, ...
    fa3, fa3fp8                    FlashAttention-3; FP8 with a scale a head, and O in bfloat16
    fa3fp8 hadamard                the same, after Q and K were multiplied by random signs and a Hadamard matrix
    exact of quantized (hadamard)  float64 attention of what fp8 gets: what quantization alone costs

Truth is float64 attention of the FP16 inputs, for --rows queries of each head, the same in all heads. Columns:

    rmse, relative_rms      sqrt(mean (O - truth)^2); and that over the root mean square of the truth
    gain_percent            <O, truth> / <truth, truth> - 1, the factor by which O is too large
    gain_quantized_percent  the same against float64 attention of the inputs as they were multiplied, where these are known:
                            with a scale a head; 38_fp8_accuracy and some of its variants round others
    lse_error               max |LSE - truth|, of steps and of exact attention

Each is the median over seeds. NaN stays in the table. Outputs are NaN before a step runs. An answer that is NaN, or
hardly nearer than zeros would be, or in FP16 not within 5 %, is called WRONG, and the exit status is 1. Who refuses a
problem is named and skipped.
"""

import argparse
import collections
import csv
import datetime
import functools
import itertools
import math
import pathlib
import statistics
import sys
import time

try:
    import torch
    from peers import FlashAttention3, Step, answer, e4m3, exact, hidden
except ImportError as error:
    torch, absent = None, error

DEVICE = "cuda"
MEASURES = ("plain", "blocks", "hadamard", "two_level")  # variants of 38; the step itself has all
TABLES = ("outliers", "gaussian", "logits8", "real", "bias")
COLUMNS = ("rmse", "relative_rms", "gain_percent", "gain_quantized_percent", "lse_error")

# `inputs` says what is multiplied, a key of INPUTS, or None if it is not known here. `answer` gives O and LSE (or None) of
# the chosen rows; without one, the answer is exact attention of INPUTS[inputs].
Competitor = collections.namedtuple("Competitor", "name fp8 inputs answer note", defaults=("",))
Case = collections.namedtuple("Case", "table heads seq dim causal mean")


# --- what is done to the inputs ----------------------------------------------------------------------------------------

def quantized(x):
    """What e4m3 with a scale a head leaves of x, in float64."""
    codes, descale = e4m3(x)
    return codes.double() * descale[:, :, None, None].double()


def rotated(x):
    """x times random signs times a Hadamard matrix, in float. Orthogonal: done to both Q and K, it does not change S."""
    dim = x.shape[-1]
    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(dim)) * 2 - 1
    return x.float() @ (signs[:, None] * matrix * dim ** -0.5).to(x.device)


INPUTS = {
    "fp16": lambda q, k, v: (q, k, v),
    "quantized": lambda q, k, v: (quantized(q), quantized(k), quantized(v)),
    "quantized hadamard": lambda q, k, v: (quantized(rotated(q)), quantized(rotated(k)), quantized(v)),
}


# --- competitors -------------------------------------------------------------------------------------------------------

def naive(q, k, v, causal, rows):
    """Attention as it is written on paper, every tensor FP16."""
    s = q[:, :, rows] @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        s.masked_fill_(hidden(q, k, rows), -math.inf)
    return torch.softmax(s, -1) @ v, None


def attend(kernel, q, k, v, causal, rows):
    """O and, of a step, LSE, from one launch on tensors that were NaN."""
    launch, out = kernel.prepare(q, k, v, causal)
    launch()
    torch.cuda.synchronize()
    return answer(out)[:, :, rows], launch.lse[:, :, rows] if isinstance(kernel, Step) else None


def order(path):
    """Steps by number; the variants of one as MEASURES has them, then the step itself, which has all."""
    name = path.name.split(".")[0]
    variants = list(MEASURES)
    return name[:2], variants.index(name[3:]) if name[3:] in variants else len(variants), name


def competitors(args):
    field = [Competitor("naive fp16", False, "fp16", naive)]
    wanted = tuple(args.steps.split(","))  # "" begins every name
    paths = [p for folder in args.lib.split(",") for p in pathlib.Path(folder).glob("*.gpu.so")]
    for path in sorted((p for p in paths if p.name.startswith(wanted)), key=order):
        step = Step(path.resolve())
        precision = step.library.flash_precision().decode().split()
        inputs = "fp16" if not step.fp8 else None if {"blocks", "hadamard"} & set(precision) else "quantized"
        field.append(Competitor(step.name, step.fp8, inputs, lambda *a, step=step: attend(step, *a)))
    if len(field) == 1:
        sys.exit(f"No step {args.steps} in {args.lib}.")
    try:
        fa3, fa3fp8 = FlashAttention3(), FlashAttention3("fa3fp8")
        field += [Competitor("fa3", False, "fp16", lambda *a: attend(fa3, *a), fa3.note),
                  Competitor("fa3fp8", True, "quantized", lambda *a: attend(fa3fp8, *a), fa3.note),
                  Competitor("fa3fp8 hadamard", True, "quantized hadamard",
                             lambda q, k, *a: attend(fa3fp8, rotated(q), rotated(k), *a), fa3.note)]
    except RuntimeError as error:
        print(f"fa3 and fa3fp8 skipped: {str(error).splitlines()[0]}")
    field += [Competitor(f"exact of {inputs}", True, inputs, None) for inputs in list(INPUTS)[1:]]
    return sorted(field, key=lambda c: c.fp8)  # FP16 first; else the order stays


# --- problems ----------------------------------------------------------------------------------------------------------

def cases(args, real):
    """Every problem, table after table; causal and logits8 at one length alone."""
    grid = [(dim, seq) for dim in map(int, args.dims.split(",")) for seq in map(int, args.lengths.split(","))]
    for table in args.tables.split(","):
        if table in ("outliers", "gaussian"):
            yield from (Case(table, 2048 // dim, seq, dim, False, 0) for dim, seq in grid)
            yield from (Case(table, 2048 // dim, seq, dim, True, 0) for dim, seq in grid if (dim, seq) == (128, 2048))
        elif table == "logits8":
            yield from (Case(table, 2048 // dim, seq, dim, False, 0) for dim, seq in grid if seq == 2048)
        elif table == "real" and real:
            _, heads, seq, dim = real[0].shape
            yield Case(table, heads, seq, dim, False, 0)
        elif table == "bias":
            for dim, mean, keys in itertools.product(args.dims.split(","), (0, 1, 4), args.keys.split(",")):
                yield Case(table, 2, int(keys), int(dim), False, mean)


def tensors(case, seed, real):
    """Q, K and V [1, H, S, D] in FP16."""
    if case.table == "real":
        return real
    generator = torch.Generator(DEVICE).manual_seed(seed)
    shape = (1, case.heads, case.seq, case.dim)

    def normal():
        return torch.randn(shape, generator=generator, device=DEVICE)

    q, k, v = normal(), normal(), normal() + case.mean
    if case.table == "outliers":
        q, k, v = (x + 10 * normal() * (torch.rand(shape, generator=generator, device=DEVICE) < 0.001) for x in (q, k, v))
    if case.table == "logits8":
        q = q * 8
    return q.half(), k.half(), v.half()


def load(folder):
    """Q, K and V of a real model as docs/capture_qkv.py writes them: q.npy, k.npy, v.npy."""
    import numpy
    return [torch.from_numpy(numpy.load(folder / f"{n}.npy")).half().to(DEVICE).contiguous() for n in "qkv"]


# --- measuring ---------------------------------------------------------------------------------------------------------

def measure(answer, truths, inputs):
    """The five COLUMNS of an answer; None where there is nothing to compare."""
    out, lse = answer
    want, want_lse = truths["fp16"]
    out = out.double()
    error = (out - want).norm()

    def gain(want):
        return 100 * ((out * want).sum() / (want * want).sum() - 1).item()

    return ((error / math.sqrt(want.numel())).item(), (error / want.norm()).item(), gain(want),
            gain(truths[inputs][0]) if inputs not in ("fp16", None) else None,
            None if lse is None else (lse.double() - want_lse).abs().max().item())


def median(values):
    """NaN if one is NaN, None if all are None."""
    return None if None in values else math.nan if any(map(math.isnan, values)) else statistics.median(values)


def run(case, field, args, real):
    """Competitor -> its COLUMNS."""
    found = {c: [] for c in field if c.fp8 or case.table != "bias"}
    for seed in range(1, seeds_of(case, args) + 1):
        q, k, v = tensors(case, seed, real)
        picked = torch.randperm(case.seq, generator=torch.Generator().manual_seed(seed))[:args.rows]
        rows = picked.sort().values.to(q.device)
        truths = {name: exact(*prepare(q, k, v), case.causal, rows) for name, prepare in INPUTS.items()}
        for c in list(found):
            try:
                answer = c.answer(q, k, v, case.causal, rows) if c.answer else truths[c.inputs]
            except RuntimeError as error:
                torch.cuda.synchronize()  # fails again if it is the GPU that failed: that ends the program
                say(f"D={case.dim}: {c.name} skipped: {str(error).splitlines()[0]}")
                del found[c]
                continue
            found[c].append(measure(answer, truths, c.inputs if c.answer else None))
    return {c: [median(column) for column in zip(*rows)] for c, rows in found.items()}


@functools.cache
def say(line):
    """Prints a line the first time."""
    print(line)


def seeds_of(case, args):
    return 1 if case.table == "real" else args.seeds


def text(number):
    return "" if number is None else f"{number:.4g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default="build/cuda/bin/steps", help="folders with *.gpu.so, comma-separated")
    parser.add_argument("--steps", default="36,37,38", help="comma-separated beginnings of names; all if empty")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default="512,2048,8192,16384", help="but for bias and real")
    parser.add_argument("--keys", default="1024,2048,4096,8192,16384,32768", help="lengths of bias")
    parser.add_argument("--rows", type=int, default=512, help="query rows of each head that are compared")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--npy", type=pathlib.Path, metavar="FOLDER", help="with q.npy, k.npy and v.npy of a real model")
    parser.add_argument("--csv", default="accuracy.csv")
    args = parser.parse_args()
    if unknown := set(args.tables.split(",")) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    if torch is None or not torch.cuda.is_available():
        print("PyTorch sees no GPU; nothing can be measured here." if torch else f"PyTorch is absent: {absent}")
        return 77

    begin, wrong = time.perf_counter(), 0
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # of the naive one: sums in float
    real = load(args.npy) if args.npy else None
    field = competitors(args)
    stamp = [datetime.date.today().isoformat(), torch.cuda.get_device_name(), torch.__version__, torch.version.cuda]
    with open(args.csv, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow("date,gpu,torch,cuda,table,competitor,batch,heads,seq_q,seq_k,dim,causal,mean,seeds".split(",") +
                       [*COLUMNS, "note"])
        for case in cases(args, real):
            line = f"{case.table} D={case.dim} S={case.seq}{' causal' * case.causal}"
            line += f" mean {case.mean}:" if case.table == "bias" else ":"
            for c, values in run(case, field, args, real).items():
                rmse, relative, gain, gain_quantized, _ = values
                right = relative <= (0.8 if c.fp8 else 0.05)  # false for NaN; zeros have 1
                wrong += not right
                table.writerow(stamp + [case.table, c.name, 1, case.heads, case.seq, case.seq, case.dim, int(case.causal),
                                        case.mean, seeds_of(case, args), *map(text, values),
                                        " ".join(n for n in ("whisper" * (case.table == "real"), c.note) if n)])
                shown = (f"{gain:.2f}" + ("" if gain_quantized is None else f"/{gain_quantized:.2f}") + " %"
                         if case.table == "bias" else f"{rmse:.2e}")
                line += f"  {c.name} {shown}" + ("" if right else " WRONG")
            print(line, flush=True)
            file.flush()
    print(f"{time.perf_counter() - begin:.0f} s, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
