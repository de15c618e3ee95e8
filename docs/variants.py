"""Compiles variants of steps that the lessons compare: each takes one decision of a step back.

    python3 docs/variants.py --build build/cuda --out my/variants      needs nvcc, no GPU
    python3 docs/peers.py --lib my/variants --steps 40 --dims 64,128,256 --lengths 8192 --causal 0 --csv variants.csv

A variant is an edit of attention.cu, whose text must stand there once. docs/accuracy.py measures those of 38, docs/peers.py
those of 40 to 42; docs/results has what came of it, and the lessons show it.
"""

import argparse
import concurrent.futures
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Name, step, edits.
VARIANTS = [
    *((f"38_{name}", "38_fp8_accuracy", [("#define FLASH_MEASURES 7", f"#define FLASH_MEASURES {measures}")])
      for name, measures in (("plain", 0), ("blocks", 1), ("hadamard", 2), ("two_level", 4))),
    ("42_whole", "42_last_wave", [("splits(p) ? all % sms : 0", "splits(p) ? 0 : 0")]),
    ("42_two", "42_last_wave", [("(splits(p) || ", "(false || ")]),
    ("40_threshold_0", "40_late_rescale", [("constexpr float slack = 8;", "constexpr float slack = 0;")]),
    ("40_always", "40_late_rescale", [("  raised = __any_sync(all_lanes, raised);", "  raised = true;")]),
    ("40_not_late", "40_late_rescale", [
        ("    if (raised) rescale_O();\n    mbarrier_wait(shared.V_full[last",
         "    mbarrier_wait(shared.V_full[last"),
        ("    if (raised) rescale_O();\n    mbarrier_wait(shared.V_full[n", "    mbarrier_wait(shared.V_full[n"),
        ("    wgmma_wait<0>(O, P);  // PV is done\n", "    wgmma_wait<0>(O, P);\n    if (raised) rescale_O();\n")]),
    ("40_turns", "40_late_rescale", [("constexpr bool pingpong = d == 64;", "constexpr bool pingpong = d < 256;")]),
    ("40_no_turns", "40_late_rescale", [("constexpr bool pingpong = d == 64;", "constexpr bool pingpong = false;")]),
    ("41_two", "41_three_consumers", [("const bool three = p.causal && p.seq_q >= 2048;", "const bool three = false;"),
                                      ("start<T, 64, 3>", "start<T, 64, 2>")]),
    ("41_three", "41_three_consumers", [("const bool three = p.causal && p.seq_q >= 2048;", "const bool three = true;")]),
    ("41_no_pass", "41_three_consumers", [("const int Tc = shape.key_blocks<d, consumers>(first_row, 64); ",
                                           "const int Tc = all;")]),
]


def edited(step, edits):
    """A step's attention.cu with its texts replaced; each must stand there once."""
    text = (ROOT / "steps" / step / "attention.cu").read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise SystemExit(f"{step}/attention.cu has this {text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    return text


def compile_for_gpu(step, text, build, library):
    """Compiles an attention.cu of a step into a library that the program and docs/peers.py can load."""
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "unit.cu"
        unit.write_text(text + "\n#include <steps/course/step_interface_body.h>\n")
        subprocess.run(["nvcc", "-O3", "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a", f"-DSTEP=step_{step[:2]}",
                        f"-I{ROOT}/steps", f"-I{ROOT}", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "-Xlinker",
                        f"--version-script={ROOT}/steps/exports.map", unit, build / "reference_cpu/libreference.a", "-o",
                        library], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    def build(variant):
        name, step, edits = variant
        compile_for_gpu(step, edited(step, edits), args.build, args.out / f"{name}.gpu.so")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(build, VARIANTS))
    print(f"{len(VARIANTS)} variants in {args.out}")


if __name__ == "__main__":
    main()
