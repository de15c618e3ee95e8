"""Writes the generated blocks of README.md, the lessons and docs/*.md, so that every number there has a producer.

    python3 docs/tables.py --course build/cpu/bin/course           rewrites the blocks
    python3 docs/tables.py --course build/cpu/bin/course --check   says which blocks are stale, and exits 1

Blocks stand between <!-- ledger ... --> or <!-- measured ... --> and <!-- end -->:

    <!-- ledger 10 --seq 512 -->  what `course run 10 --seq 512` counts on the simulated GPU, beside its PREV's count
    <!-- measured 10_tiling -->   speed and resources of the step, from the newest file in docs/results
    <!-- measured ladder -->      speed of all steps at the standard shape
    <!-- measured peers 26 -->    a step beside its peers, from the newest docs/results/*/peers-<date>.csv that has it
    <!-- measured peers 42 bf16 -->    the same in BF16, from peers-bf16-*.csv
    <!-- measured mutants -->     who notices each mutant of 36, from mutants-*.csv
    <!-- measured ablation -->    32 against 31 and 34 against 33, from peers-ablation-*.csv
    <!-- measured decode -->      the same for few queries and many keys, from decode-*.csv
    <!-- measured accuracy -->    errors of FP16 and FP8 on outliers, beside FlashAttention-3's paper, from accuracy-*.csv;
                                  accuracy gaussian, accuracy logits8 and accuracy real: on other inputs
    <!-- measured bias 128 -->    how much smaller O is if V has a mean, at this head dimension, from the same files
    <!-- measured halves -->      what each decision of 40 is worth, from peers-halves-*.csv
    <!-- measured pick -->        two consumers against three, from peers-pick-*.csv
    <!-- measured wave -->        41, and 42 with and without its split, from peers-wave-*.csv
    <!-- measured fp8 38 -->      an FP8 step with and without its quantizer beside fa3fp8, from peers-fp8-*.csv
"""

import argparse
import csv
import difflib
import functools
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- (ledger|measured) (.*?) -->\n)(.*?)(<!-- end -->)", re.S)
COUNTS = [  # what a row is called, and how it is computed from the ledger
    ("bytes asked", lambda l: l["global_read"] + l["global_written"]),
    ("distinct bytes", lambda l: l["global_read_distinct"] + l["global_written_distinct"]),
    ("copy instructions", lambda l: l["copy_instructions"]),
    ("tensor-core FLOPs", lambda l: l["tensor_flops"]),
    ("scalar FLOPs", lambda l: l["scalar_flops"]),
    ("exponentials", lambda l: l["exponentials"]),
    ("divisions", lambda l: l["divisions"]),
    ("rescale multiplications", lambda l: l["rescales"]),
    ("barriers", lambda l: l["barriers"]),
    ("bank conflicts of ldmatrix", lambda l: l["bank_conflicts"]),
]


def run_json(course, arguments):
    command = [course] + arguments
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return json.loads(done.stdout)


def ledger_block(course, steps, arguments):
    step = next(s for s in steps if s["step"].startswith(arguments[0]))
    names = [n for n in (step["prev"], step["step"]) if n]
    rows = [run_json(course, ["run", n, "--device", "cpu", "--json"] + arguments[1:])[0] for n in names]
    p = rows[-1]["problem"]
    lengths = f"N={p['seq_q']}" if p["seq_q"] == p["seq_k"] else f"Nq={p['seq_q']}, Nk={p['seq_k']}"
    lines = [f"Counted at B={p['batch']}, H={p['heads']}, {lengths}, d={p['dim']}, "
             f"{'causal' if p['causal'] else 'full'} (`./learn run {' '.join(arguments)}`):", "",
             "| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for name, count in COUNTS:
        values = [count(r["ledger"]) for r in rows]
        if any(values):
            lines.append(f"| {name} | " + " | ".join(f"{v:,}" for v in values) + " |")
    return "\n".join(lines) + "\n"


@functools.cache
def results():
    """Rows of all files of `course bench`, the newest file's first; each says where it stands."""
    rows = []
    for name in sorted(ROOT.glob("docs/results/*/[0-9]*.csv"), reverse=True):  # <date>-<commit>.csv
        with open(name, newline="") as file:
            rows += [row | {"file": str(name.relative_to(ROOT))} for row in csv.DictReader(file)]
    return rows


def standard(rows, step, causal, protocol, dtype="fp16"):
    """The newest row of a step at the standard shape; a launch longer than the burst window has one for both protocols. Files
    without the column dtype have FP16 alone."""
    for row in rows:
        if (row["step"] == step and int(row["causal"]) == causal and row["protocol"] in (protocol, "three runs") and
                row.get("dtype", "fp16") == dtype and
                (row["batch"], row["heads"], row["seq_q"], row["dim"]) == ("2", "16", "8192", "128")):
            return row
    return None


def source_line(rows):
    """Where the rows that were shown come from, one sentence a file."""
    sources = []
    for r in {r["file"]: r for r in rows if r}.values():
        sources.append(f"{r['gpu']}, driver {r['driver']}, CUDA {r['toolkit']}, {r['date']}, commit {r['commit']}: "
                       f"[{pathlib.Path(r['file']).name}](/{r['file']}).")
    return "B=2, H=16, N=8192, d=128. " + " ".join(sources)


def speed(row, protocol="burst"):
    """Of one row; a launch longer than the burst window has one row for both protocols, shown under burst."""
    if row is None or (row["protocol"] == "three runs" and protocol == "steady"):
        return "–"
    text = f"{float(row['ms_median']):.4g} ms, {float(row['tflops']):.3g} TFLOP/s"
    return text + (" (3 runs)" if row["protocol"] == "three runs" else "")


def measured_step(steps, name):
    rows, shown = results(), []
    if standard(rows, name, 0, "burst") is None:
        return "Not measured yet.\n"
    prev = next(s for s in steps if s["step"] == name)["prev"]
    lines = ["| | burst | steady | against " + (prev or "–") + " (burst) |", "|---|---:|---:|---:|"]
    for dtype, causal in (("fp16", 0), ("fp16", 1), ("bf16", 0), ("bf16", 1)):
        burst, steady = (standard(rows, name, causal, p, dtype) for p in ("burst", "steady"))
        if burst is None and dtype == "bf16":
            continue
        shown += [burst, steady]
        before = standard(rows, prev, causal, "burst", dtype)
        ratio = f"× {float(before['ms_median']) / float(burst['ms_median']):.2f}" if burst and before else "–"
        what = ("causal" if causal else "full") + (", BF16" if dtype == "bf16" else "")
        lines.append(f"| {what} | {speed(burst)} | {speed(steady, 'steady')} | {ratio} |")
    row = standard(rows, name, 0, "burst")
    if row:
        lines += ["", "| kernel | registers | spilled bytes | shared memory a CTA | threads | CTAs per SM |",
                  "|---|---:|---:|---:|---:|---:|"]
        columns = [row[c].split("/") for c in ("kernels", "registers", "spill_bytes", "static_shared", "dynamic_shared",
                                               "threads", "ctas_per_sm")]
        for kernel, registers, spill, static, dynamic, threads, ctas in zip(*columns):
            lines.append(f"| {kernel} | {registers} | {spill} | {int(static) + int(dynamic):,} | {threads} | {ctas} |")
    return "\n".join(lines) + "\n\n" + source_line(shown) + "\n"


def measured_ladder(steps):
    rows, shown = results(), []
    if not rows:
        return "Not measured yet.\n"
    lines = ["| step | full, burst | full, steady | causal, burst | × step before | × naive | % of FP16 peak |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    naive = standard(rows, steps[0]["step"], 0, "burst")
    for step in steps:
        burst, steady = (standard(rows, step["step"], 0, p) for p in ("burst", "steady"))
        if burst is None:
            continue
        causal = standard(rows, step["step"], 1, "burst")
        shown += [burst, steady, causal]
        before = standard(rows, step["prev"], 0, "burst")
        times = [f"{float(b['ms_median']) / float(burst['ms_median']):.3g}" if b else "–" for b in (before, naive)]
        lines.append(f"| [{step['step']}](/steps/{step['step']}/README.md) | {speed(burst)} | {speed(steady, 'steady')} | "
                     f"{speed(causal)} | {times[0]} | {times[1]} | "
                     f"{float(burst['pct_of_peak']):.2g} |")
    return "\n".join(lines) + "\n\n" + source_line(shown) + "\n"


def newest(pattern, wanted=lambda row: True, dtype="fp16"):
    """Rows of this type and name of the newest file of this pattern that has a wanted one; nothing if there is none."""
    for name in sorted(ROOT.glob(f"docs/results/*/{pattern}"), reverse=True):
        with open(name, newline="") as file:
            rows = [r for r in csv.DictReader(file) if r.get("dtype", "fp16") == dtype]
        if any(map(wanted, rows)):
            return rows, name.relative_to(ROOT)
    return [], ""


def peers_cells(rows):
    """(d, causal, batch, Sq, Sk) -> (competitor, protocol) -> TFLOP/s; and all competitors."""
    key = lambda r: (int(r["dim"]), int(r["causal"]), int(r["batch"]), int(r["seq_q"]), int(r["seq_k"]))
    cells = {}
    for r in rows:
        cells.setdefault(key(r), {})[r["competitor"], r["protocol"]] = float(r["tflops"])
    return cells, list(dict.fromkeys(r["competitor"] for r in rows))


def burst_steady(cell, name):
    """TFLOP/s of both protocols, as text."""
    return "/".join(f"{cell[name, p]:.0f}" if (name, p) in cell else "–" for p in ("burst", "steady"))


def measured_peers(number, dtype="fp16"):
    pattern = "peers-2*.csv" if dtype == "fp16" else f"peers-{dtype}-*.csv"
    rows, name = newest(pattern, lambda r: r["competitor"].startswith(number), dtype)
    if not rows:
        return "Not measured yet.\n"
    cells, names = peers_cells(rows)
    ours = next(n for n in names if n.startswith(number))
    cells = {k: c for k, c in sorted(cells.items()) if (ours, "burst") in c}
    others = [n for n in names if not n[0].isdigit()]
    rival = "fa3" if "fa3" in others else "fa2"
    lines = [f"| d | mask | B, Sq, Sk | " + " | ".join([ours] + others) + f" | of {rival}, burst / steady |",
             "|---:|---|---|" + "---:|" * (len(others) + 2)]
    for (dim, causal, batch, seq_q, seq_k), cell in cells.items():
        speeds = [burst_steady(cell, n) for n in [ours] + others]
        # Before CUDA graphs were used, short problems timed the launches too. The clock is higher in a burst: a rival that is
        # slower there was launched more slowly than it computes.
        slow = (rival == "fa3" and "launches_a_replay" not in rows[0] and
                (seq_q <= 1024 or cell[rival, "burst"] < cell[rival, "steady"]))
        ratio = "launch-bound" if slow else " / ".join(f"{cell[ours, p] / cell[rival, p]:.2f}" for p in ("burst", "steady"))
        lines.append(f"| {dim} | {'causal' if causal else 'full'} | {batch}, {seq_q}, {seq_k} | " + " | ".join(speeds) +
                     f" | {ratio} |")
    r = rows[0]
    return "\n".join(lines) + (f"\n\nTFLOP/s, burst/steady, by docs/peers.py on one GPU. {r['gpu']}, PyTorch {r['torch']}, {r['date']}; hidden size "
                               f"2048, N(0,1) inputs. Data: [{name.name}](/{name}).\n")


def measured_fp8(number):
    rows, name = newest("peers-fp8-*.csv", lambda r: r["competitor"].startswith(number))
    if not rows:
        return "Not measured yet.\n"
    cells, names = peers_cells(rows)
    whole = next(n for n in names if n.startswith(number))
    alone, rival = whole + " attention", "fa3fp8"

    def both(cell, value, digits=0):
        """Of burst and steady; dashes where a competitor was skipped."""
        try:
            return " / ".join(f"{value(lambda n: cell[n, p]):.{digits}f}" for p in ("burst", "steady"))
        except KeyError:
            return "–"

    lines = [f"| d | mask | B, N | {alone} | {rival} | of {rival} | {whole} | its quantizer's share of the time, % |",
             "|---:|---|---|" + "---:|" * 5]
    for (dim, causal, batch, _, seq), cell in sorted(cells.items()):
        columns = [both(cell, lambda of: of(alone)), both(cell, lambda of: of(rival)),
                   both(cell, lambda of: of(alone) / of(rival), 2), both(cell, lambda of: of(whole)),
                   both(cell, lambda of: 100 - 100 * of(whole) / of(alone))]
        lines.append(f"| {dim} | {'causal' if causal else 'full'} | {batch}, {seq} | {' | '.join(columns)} |")
    r = rows[0]
    return "\n".join(lines) + (f"\n\nTFLOP/s, burst / steady, in one run of docs/peers.py. The columns of {alone} and {rival} start from e4m3 "
                               f"tensors. {r['gpu']}, PyTorch {r['torch']}, {r['date']}; hidden size 2048, N(0,1) inputs. "
                               f"Data: [{name.name}](/{name}).\n")


PAPER = {"naive fp16": "3.2e-4", "fa3": "1.9e-4", "38_plain": "2.4e-2", "38_blocks": "2.4e-2",  # its table 3
         "38_hadamard": "9.3e-3", "38_fp8_accuracy": "9.1e-3"}


def measured_accuracy(table="outliers"):
    rows, name = newest("accuracy-*.csv", lambda r: r["table"] == table)
    rows = [r for r in rows if r["table"] == table]
    if not rows:
        return "Not measured yet.\n"
    cells = {}
    for r in rows:
        cells.setdefault((int(r["causal"]), int(r["dim"]), int(r["seq_q"])), {})[r["competitor"]] = r
    shapes = sorted(s for s in cells if len(cells) <= 10 or s[2] != 8192)  # a page has room for ten
    exponential = lambda number: f"{float(number):.2e}".replace("e-0", "e-")
    show = [lambda r, s=s: exponential(r[s]["rmse"]) if s in r else "–" for s in shapes]
    head = [f"d={dim}, N={seq}{', causal' * causal}" for causal, dim, seq in shapes]
    note = "RMSE"
    if len(shapes) == 1:
        only = shapes[0]
        show += [lambda r: f"{100 * float(r[only]['relative_rms']):.3g} %",
                 lambda r: f"{float(r[only]['lse_error']):.2g}" if r[only]["lse_error"] else "–"]
        note = ", ".join(filter(None, [rows[0]["note"].capitalize(), f"H={rows[0]['heads']}", *head]))
        head = ["RMSE", "relative RMS", "LSE off by up to"]
    elif len({int(r["heads"]) * int(r["dim"]) for r in rows}) == 1:
        note += f", H·d = {int(rows[0]['heads']) * int(rows[0]['dim'])}"
    lines = ["| | " + " | ".join(head + ["FlashAttention-3's paper, H100"] * (table == "outliers")) + " |",
             "|---|" + "---:|" * (len(head) + (table == "outliers"))]
    for n in dict.fromkeys(r["competitor"] for r in rows):
        of = {s: cell[n] for s, cell in cells.items() if n in cell}
        columns = [f(of) for f in show] + [PAPER.get(n, "–")] * (table == "outliers")
        lines.append(f"| {n} | " + " | ".join(columns) + " |")
    r = rows[0]
    seeds = f"; median of {r['seeds']} seeds" if r["seeds"] != "1" else ""
    paper = " The paper does not say its N, d and batch." if table == "outliers" else ""
    return "\n".join(lines) + (f"\n\n{note}, B={r['batch']}, against float64 attention of the FP16 inputs{seeds}. "
                               f"docs/accuracy.py says who is who.{paper} {r['gpu']}, PyTorch {r['torch']}, {r['date']}. "
                               f"Data: [{name.name}](/{name}).\n")


def measured_bias(dim="128"):
    wanted = lambda r: r["table"] == "bias" and r["dim"] == dim
    rows, name = newest("accuracy-*.csv", wanted)
    rows = [r for r in rows if wanted(r)]
    if not rows:
        return "Not measured yet.\n"
    keys = sorted({int(r["seq_k"]) for r in rows})
    gains = {}  # (mean, competitor, inputs of the exact answer) -> keys -> text
    for r in rows:
        for column, inputs in (("gain_percent", "FP16"), ("gain_quantized_percent", "quantized")):
            if r[column] and r["competitor"] in ("37_fp8", "38_fp8_accuracy", "fa3fp8", "exact of quantized"):
                text = f"{float(r[column]):+.2f} %".replace("-", "−")
                gains.setdefault((r["mean"], r["competitor"], inputs), {})[int(r["seq_k"])] = text
    lines = ["| mean of V | | against exact attention of | " + " | ".join(f"{k // 1024}k keys" for k in keys) + " |",
             "|---:|---|---|" + "---:|" * len(keys)]
    for (mean, competitor, inputs), gain in gains.items():
        lines.append(f"| {mean} | {competitor} | {inputs} inputs | " + " | ".join(gain.get(k, "–") for k in keys) + " |")
    r = rows[0]
    return "\n".join(lines) + (f"\n\nBy how much O is too large: <O, exact> / <exact, exact> − 1, median of {r['seeds']} seeds; V from "
                               f"N(mean, 1), B={r['batch']}, H={r['heads']}, d={dim}, full. {r['gpu']}, PyTorch {r['torch']}, "
                               f"{r['date']}. Data: [{name.name}](/{name}).\n")


def measured_ablation():
    rows, name = newest("peers-ablation-*.csv")
    if not rows:
        return "Not measured yet.\n"
    speed = {(r["competitor"], r["protocol"]): float(r["tflops"]) for r in rows}
    r = rows[0]
    lines = ["| | burst | steady | FlashAttention-3's paper |", "|---|---:|---:|---:|"]
    for over, under, paper in (("32_warp_specialization", "31_wgmma", "1.160"), ("34_overlap", "33_pingpong", "1.136")):
        ratios = [f"{speed[over, p] / speed[under, p]:.3f}" for p in ("burst", "steady")]
        lines.append(f"| {over} / {under} | {' | '.join(ratios)} | {paper} |")
    return "\n".join(lines) + (f"\n\nB={r['batch']}, H={r['heads']}, N={r['seq_q']}, d={r['dim']}, full. {r['gpu']}, {r['date']}. "
                               f"Data: [{name.name}](/{name}).\n")


def side_by_side(pattern, what, head, common):
    """Variants of a step (docs/variants.py) in rows, shapes in columns, from the newest file of this pattern."""
    rows, name = newest(pattern)
    if not rows:
        return "Not measured yet.\n"
    cells, names = peers_cells(rows)
    lines = ["| | " + " | ".join(head(*key) for key in cells) + " |", "|---|" + "---:|" * len(cells)]
    for n in sorted(names, key=lambda n: (n[0] > "9", n[:2], n not in what, n)):
        speeds = [burst_steady(cell, n) for cell in cells.values()]
        lines.append(f"| {what.get(n, n)} | {' | '.join(speeds)} |")
    r = rows[0]
    return "\n".join(lines) + (f"\n\nTFLOP/s, burst/steady, {common(r)}hidden size 2048, in one run. {r['gpu']}, {r['date']}. "
                               f"Data: [{name.name}](/{name}).\n")


def measured_halves():
    return side_by_side("peers-halves-*.csv",
                        {"40_always": "40, but O is rescaled in every block", "40_threshold_0": "40, but whenever the maximum rises",
                         "40_not_late": "40, but before the next Q K^T", "40_turns": "40, with turns at d = 128 too",
                         "40_no_turns": "40, without turns at d = 64 too", "fa3": "FlashAttention-3"},
                        lambda dim, *_: f"d={dim}", lambda r: f"full mask, B={r['batch']}, N={r['seq_q']}, ")


def measured_wave():
    return side_by_side("peers-wave-*.csv",
                        {"41_three_consumers": "41_three_consumers: two consumers at d = 128, nothing split",
                         "42_two": "42, but two consumers at d = 128", "42_whole": "42, but nothing split", "fa3": "FlashAttention-3"},
                        lambda dim, causal, batch, queries, keys: f"d={dim}, N={keys}{', causal' * causal}", lambda r: "")


def measured_pick():
    rows, name = newest("peers-pick-*.csv")
    if not rows:
        return "Not measured yet.\n"
    cells, _ = peers_cells(rows)
    lines = ["| d | mask | B, N | two consumers | three, nothing passed on | three | three / two, burst / steady |",
             "|---:|---|---|---:|---:|---:|---:|"]
    for (dim, causal, batch, seq, _), cell in cells.items():
        all_blocks = burst_steady(cell, "41_no_pass") if seq >= 2048 else "–"  # below, the launcher's choice is two
        ratio = " / ".join(f"{cell['41_three', p] / cell['41_two', p]:.2f}" for p in ("burst", "steady"))
        lines.append(f"| {dim} | {'causal' if causal else 'full'} | {batch}, {seq} | {burst_steady(cell, '41_two')} | "
                     f"{all_blocks} | {burst_steady(cell, '41_three')} | {ratio} |")
    r = rows[0]
    return "\n".join(lines) + (f"\n\nTFLOP/s, burst/steady, hidden size 2048, in one run. {r['gpu']}, {r['date']}. "
                               f"Data: [{name.name}](/{name}).\n")


def measured_decode():
    name = sorted(ROOT.glob("docs/results/*/decode-*.csv"))[-1]
    with open(name, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["protocol"] == "burst"]
    shapes = list(dict.fromkeys((r["heads"], r["seq_q"], r["seq_k"], r["dim"]) for r in rows))
    lines = ["| | " + " | ".join(f"H={h}, Sq={q}, Sk={k}, d={d}" for h, q, k, d in shapes) + " |",
             "|---|" + "---:|" * len(shapes)]
    for competitor in dict.fromkeys(r["competitor"] for r in rows):
        cells = []
        for heads, seq_q, seq_k, dim in shapes:
            row = next((r for r in rows if r["competitor"] == competitor and
                        (r["heads"], r["seq_q"], r["seq_k"], r["dim"]) == (heads, seq_q, seq_k, dim)), None)
            bytes_read = 4 * int(heads) * int(seq_k) * int(dim)
            ms = row and float(row["ms_median"])
            cells.append(f"{ms:.3f} ms, {bytes_read / ms / 1e9:.2f} TB/s" if row else "–")
        lines.append(f"| {competitor} | " + " | ".join(cells) + " |")
    r, name = rows[0], name.relative_to(ROOT)
    return "\n".join(lines) + (f"\n\nB=1, burst; TB/s of K and V alone, in one run of docs/peers.py. {r['gpu']}, PyTorch {r['torch']}, "
                               f"{r['date']}. Data: [{name.name}](/{name}).\n")


def measured_mutants():
    name = sorted(ROOT.glob("docs/results/*/mutants-*.csv"))[-1]
    verdicts = {}
    with open(name, newline="") as file:
        for r in csv.DictReader(file):
            verdicts.setdefault(r["mutant"], {})[r["judge"]] = r["verdict"]
    gpu = ("plain run", "memcheck", "racecheck", "synccheck")
    lines = ["| mutant | " + " | ".join(gpu) + " | simulated GPU |", "|---|" + "---|" * (len(gpu) + 1)]
    for mutant, judges in verdicts.items():
        lines.append(f"| {mutant} | " + " | ".join(judges[j] for j in gpu) + f" | {judges['simulated GPU']} |")
    name = name.relative_to(ROOT)
    return "\n".join(lines) + f"\n\nData: [{name.name}](/{name}).\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--course", required=True, help="the program, e.g. build/cpu/bin/course")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is stale")
    args = parser.parse_args()
    steps = json.loads(subprocess.run([args.course, "list", "--json"], capture_output=True, text=True, check=True).stdout)
    blocks = stale = 0
    for page in [ROOT / "README.md"] + sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("steps/*/README.md")):
        text = page.read_text()

        def fresh(match):
            kind, what = match[2], match[3].split()
            if kind == "ledger":
                body = ledger_block(args.course, steps, what)
            else:
                block = globals().get(f"measured_{what[0]}")  # a step's block bears the step's name
                body = (measured_step(steps, what[0]) if block is None else
                        block(steps) if what == ["ladder"] else block(*what[1:]))
            # Relative links, so that they work on any host.
            up = "../" * (len(page.relative_to(ROOT).parts) - 1)
            return match[1] + body.replace("](/", "](" + up) + match[5]

        new = BLOCK.sub(fresh, text)
        blocks += len(BLOCK.findall(text))
        if new != text:
            stale += 1
            if args.check:
                print(f"{page.relative_to(ROOT)} is stale; run docs/tables.py without --check.")
                sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), n=0))
            else:
                page.write_text(new)
                print(f"wrote {page.relative_to(ROOT)}")
    print(f"{blocks} generated blocks, {stale} stale files")
    return 1 if blocks == 0 or (args.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
