"""Profiles one launch of each step, and of the peers of docs/peers.py, with Nsight Compute and writes a CSV.

    python3 docs/ncu_table.py --csv ncu.csv [--steps 25,26] [--backends fa3] [--seq 8192] [--raw ncu-raw.csv] ...

One row a kernel. Needs what docs/peers.py needs, and ncu. All competitors are launched in one process, each on a
stream of its own, which tells their kernels apart. The results are not checked here; docs/peers.py does that.
The metrics' names differ between GPUs and versions of ncu: of several names for a column the first one that this
ncu knows is taken, and a column without any stays empty.

stall_X is the number of warps that wait for reason X per instruction issued, of one scheduler: of the cycles between
two instructions of a warp, those that it spends on X. "selected" is the issue itself: 1.
"""

import argparse
import csv
import datetime
import pathlib
import re
import subprocess
import sys
import tempfile

STALLS = ("selected wait long_scoreboard short_scoreboard barrier math_pipe_throttle mio_throttle lg_throttle gmma "
          "not_selected branch_resolving dispatch_stall no_instruction sleeping membar").split()
SHARED = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
BUSY = ".avg.pct_of_peak_sustained_active"
COLUMNS = {  # column: ncu's names for it
    "time_ns": ["gpu__time_duration.sum"],
    "dram_read": ["dram__bytes_read.sum"],
    "dram_written": ["dram__bytes_write.sum"],
    "l2_bytes": ["lts__t_bytes.sum"],
    "shared_bank_conflicts": [SHARED + ".sum"],
    "shared_load_bank_conflicts": [SHARED + "_op_ld.sum"],
    "tensor_instructions": ["sm__inst_executed_pipe_tensor_op_hmma.sum", "sm__inst_executed_pipe_tensor.sum"],
    "tensor_pipe_pct": ["sm__pipe_tensor_cycles_active" + BUSY, "sm__pipe_tensor_op_hmma_cycles_active" + BUSY],
    "issue_slots_pct": ["smsp__issue_active" + BUSY, "sm__issue_active" + BUSY],
    "registers": ["launch__registers_per_thread"],
    "wgmma_instructions": ["sm__inst_executed_pipe_tensor_op_gmma.sum", "smsp__inst_executed_pipe_tensor_op_gmma.sum"],
    "cycles": ["sm__cycles_elapsed.max"],
    "tensor_pipe_elapsed_pct": ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
                                "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"],
    "exp_pipe_pct": ["sm__inst_executed_pipe_xu" + BUSY],
    "fma_pipe_pct": ["sm__pipe_fma_cycles_active" + BUSY, "sm__inst_executed_pipe_fma" + BUSY],
    "alu_pipe_pct": ["sm__pipe_alu_cycles_active" + BUSY, "sm__inst_executed_pipe_alu" + BUSY],
    "instructions": ["smsp__inst_executed.sum", "sm__inst_executed.sum"],
    "warps_per_sm": ["sm__warps_active.avg.per_cycle_active"],
} | {f"stall_{s}": [f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio"] for s in STALLS}


def launch_all(args):
    """What ncu runs: launches every competitor once between the profiler's marks, and says whom."""
    import torch

    import peers

    torch.manual_seed(1)
    q, k, v = (torch.randn(args.batch, args.heads, args.seq, args.dim, device="cuda", dtype=torch.float16)
               for _ in range(3))
    for competitor in peers.competitors(args):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            try:
                launch, _ = competitor.prepare(q, k, v, args.causal)
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                launch()
            except RuntimeError as error:
                print(f"{competitor.name} skipped: {str(error).splitlines()[0]}", flush=True)
                continue
            finally:
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
        print(f"launched {competitor.name}", flush=True)
    print(f"gpu {torch.cuda.get_device_name()}")


def known_metrics():
    """For each column the first name that this ncu knows, or None."""
    listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True).stdout
    names = {line.split()[0] for line in listed.splitlines() if line.strip()}
    if "gpu__time_duration" not in names:  # no list: ask for the usual names
        return {column: metrics[0] for column, metrics in COLUMNS.items()}
    known = lambda metric: metric.startswith("launch__") or metric.split(".")[0] in names
    return {column: next(filter(known, metrics), None) for column, metrics in COLUMNS.items()}


def base_name(kernel):
    """attention_kernel of void name_space::attention_kernel<128>(const __half *)"""
    plain = re.sub(r"\(anonymous namespace\)|<unnamed>", "", kernel)
    return re.split(r"[<(]", plain)[0].split()[-1].split("::")[-1]


def rows_of(raw, competitors, metrics):
    """(competitor, kernel, values) of the first launch of each kernel in ncu's raw CSV."""
    lines = [line for line in raw.splitlines() if line.startswith('"')]
    streams, seen = [], set()
    for row in csv.DictReader(lines):
        if not row["ID"]:  # the line with the units
            continue
        if row["Stream"] not in streams:
            streams.append(row["Stream"])
        index, kernel = streams.index(row["Stream"]), base_name(row["Kernel Name"])
        if (index, kernel) in seen:
            continue
        seen.add((index, kernel))
        values = [(row.get(m) or "").replace(",", "") if m else "" for m in metrics.values()]
        yield (competitors[index] if index < len(competitors) else "?", kernel,
               ["" if v.lower() in ("n/a", "nan") else v for v in values])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default="build/cuda/bin/steps", help="folder with the steps' *.gpu.so")
    parser.add_argument("--steps", default="", help="comma-separated numbers; all if empty")
    parser.add_argument("--backends", default="none", help="any of fa2, cudnn, fa3, none")
    for name, default in (("batch", 2), ("heads", 16), ("seq", 8192), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--csv", default="ncu.csv")
    parser.add_argument("--raw", default="", help="keep what ncu wrote in this file")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        return launch_all(args)

    metrics = known_metrics()
    for column in (c for c, m in metrics.items() if m is None):
        print(f"This ncu has no metric for {column}: {', '.join(COLUMNS[column])}")
    raw = pathlib.Path(args.raw or tempfile.mkstemp(suffix=".csv")[1])
    command = ["ncu", "--clock-control", "none", "--target-processes", "all", "--profile-from-start", "off", "--csv",
               "--page", "raw", "--print-units", "base", "--log-file", str(raw), "--metrics",
               ",".join(filter(None, metrics.values())), sys.executable] + sys.argv + ["--launch"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    said = [line.split(None, 1) for line in done.stdout.splitlines()]
    competitors = [words[1] for words in said if words[:1] == ["launched"]]
    gpu = next((words[1] for words in said if words[:1] == ["gpu"]), "?")
    rows = list(rows_of(raw.read_text(), competitors, metrics))
    if done.returncode or not rows:
        print(f"ncu failed (exit code {done.returncode}); the last it wrote:\n" + raw.read_text()[-2000:])
    with open(args.csv, "w", newline="") as file:
        file.write(f"# ncu --clock-control none, {gpu}, B={args.batch} H={args.heads} N={args.seq} d={args.dim} "
                   f"{'causal' if args.causal else 'full'}, {datetime.date.today()}; first launch of each kernel\n")
        table = csv.writer(file)
        table.writerow(["step", "kernel"] + list(metrics))
        table.writerows([step, kernel] + values for step, kernel, values in rows)
    print(f"wrote {args.csv}: {len(rows)} kernels of {len(competitors)} competitors")
    return 0 if rows and not done.returncode else 1


if __name__ == "__main__":
    sys.exit(main())
