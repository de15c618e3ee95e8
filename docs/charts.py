"""Draws the charts of README.md and the lessons from docs/results, as SVG with the data inside.

    python3 docs/charts.py           draws them into docs/figures; needs matplotlib
    python3 docs/charts.py --check   compares the data inside with docs/results, and exits 1 if a chart is stale

    ladder.svg   speed of every step at the standard shape, from the newest bench file; PyTorch's FlashAttention-2, cuDNN,
                 FlashAttention-3 and a large matrix product as lines, each from the newest peers-2*.csv that has it
    bias.svg     by how much O is too small or too large where V has mean 1, from the newest accuracy-*.csv
"""

import argparse
import csv
import json
import pathlib
import re
import sys
import xml.sax.saxutils

import tables

FIGURES = tables.ROOT / "docs/figures"


def ladder_data():
    """Steps in order with TFLOP/s (full mask, burst), and the lines to compare with."""
    rows = tables.results()
    if not rows:
        return None
    steps = sorted({r["step"] for r in rows})
    speeds = {s: float(row["tflops"]) for s in steps if (row := tables.standard(rows, s, 0, "burst"))}
    lines, files = {}, [rows[0]["file"]]
    for peer in NAMES:
        found, file = tables.newest("peers-2*.csv", lambda r: r["competitor"] == peer and at_standard_shape(r))
        for r in found:
            if r["competitor"] == peer and at_standard_shape(r) and r["protocol"] == "burst":
                lines[peer] = float(r["tflops"])
        files += [str(file)] if found and str(file) not in files else []
    return {"steps": speeds, "lines": lines, "from": files}


def at_standard_shape(r):
    return r["competitor"] == "matmul" or (
        (r["batch"], r["heads"], r["seq_q"], r["seq_k"], r["dim"], r["causal"]) == ("2", "16", "8192", "8192", "128", "0"))


def bias_data():
    """Of each competitor the gain error in per cent by the number of keys, d = 128, V of mean 1."""
    rows, name = tables.newest("accuracy-*.csv")
    curves = {}
    for r in rows:
        if r["competitor"] in BIASED and (r["table"], r["dim"], float(r["mean"])) == ("bias", "128", 1) and r["gain_percent"]:
            curves.setdefault(r["competitor"], []).append((int(r["seq_k"]), float(r["gain_percent"])))
    return {"curves": curves, "from": [str(name)]} if curves else None


COLORS = ["#8c8c8c", "#4c78a8", "#54a24b", "#e0752d", "#b8458b"]  # by the first digit of a step; readable on light and dark
BIASED = {"37_fp8": "37", "fa3fp8": "FlashAttention-3, FP8", "38_fp8_accuracy": "38"}
NAMES = {"fa2": "FlashAttention-2 (PyTorch)", "cudnn": "cuDNN", "fa3": "FlashAttention-3", "matmul": "matrix product"}


def draw_ladder(plot, axes, data):
    steps = list(data["steps"].items())
    for i, (step, tflops) in enumerate(steps):
        axes.bar(i, tflops, color=COLORS[int(step[0])])
        axes.text(i, tflops * 1.05, f"{tflops:.3g}", ha="center", va="bottom", fontsize=7, color="#7f7f7f")
    near, last = [], 0  # lines that lie close together are named in one place, below the lowest
    for name, tflops in sorted(data["lines"].items(), key=lambda line: line[1]):
        axes.axhline(tflops, color="#7f7f7f", linewidth=0.8, linestyle=":")
        near += [] if near and tflops < 1.2 * last else [(tflops, [])]
        near[-1][1].append(f"{NAMES[name]} {tflops:.0f}")
        last = tflops
    for lowest, names in near:
        axes.text(-0.6, lowest, ", ".join(names), fontsize=7, color="#7f7f7f", va="top")
    axes.set_yscale("log")
    axes.set_ylim(1, 1600)
    axes.set_xlim(-0.7, len(steps) - 0.3)
    axes.set_xticks(range(len(steps)), [s.replace("_", " ", 1) for s, _ in steps], rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("TFLOP/s, full mask, burst")
    axes.set_title("B=2, H=16, N=8192, d=128 on an H200", fontsize=10)


def draw_bias(plot, axes, data):
    for color, (name, curve) in zip(COLORS[1:], data["curves"].items()):
        axes.plot(*zip(*curve), marker="o", markersize=3, color=color, label=BIASED[name])
    axes.set_xscale("log", base=2)
    axes.set_xticks([k for k, _ in curve], [f"{k // 1024}k" for k, _ in curve])
    axes.set_xlabel("keys")
    axes.set_ylabel("gain error of O, %")
    axes.set_title("V of mean 1, d=128, on an H200", fontsize=10)
    axes.legend(frameon=False, fontsize=8, labelcolor="#7f7f7f")


CHARTS = {"ladder": (ladder_data, draw_ladder, (8, 4.5)), "bias": (bias_data, draw_bias, (6, 3.5))}


def data_inside(file):
    """The data that a chart was drawn from."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", file.read_text(), re.S) if file.exists() else None
    return json.loads(xml.sax.saxutils.unescape(found[1], {"&quot;": '"'})) if found else None


def draw(name):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plot
    collect, paint, size = CHARTS[name]
    # Grey text and no background, for light and dark pages; the same file for the same data.
    plot.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"} | {
        k: "#7f7f7f" for k in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")})
    figure, axes = plot.subplots(figsize=size)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    data = collect()
    paint(plot, axes, data)
    figure.savefig(FIGURES / f"{name}.svg", bbox_inches="tight", transparent=True,
                   metadata={"Date": None, "Description": json.dumps(data)})
    print(f"docs/figures/{name}.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of drawing")
    check = parser.parse_args().check
    stale = 0
    for name, (collect, _, _) in CHARTS.items():
        data = json.loads(json.dumps(collect()))
        if data is None:
            print(f"{name}: not measured yet")
        elif not check:
            draw(name)
        elif data_inside(FIGURES / f"{name}.svg") != data:
            print(f"docs/figures/{name}.svg is stale: it was drawn from other data. Run python3 docs/charts.py.")
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
