"""Sixteen ways to get the synchronization of 36_persistent wrong, and who notices.

    python3 docs/mutants.py --build build/cpu  --csv mutants.csv              what the simulated GPU says
    python3 docs/mutants.py --build build/cuda --csv mutants.csv --gpu        a plain run, and three of
                                                                              compute-sanitizer's tools on a GPU

Each mutant is an edit of attention.cu, compiled alone and put beside a copy of the program. A run on the GPU that does not
end within a time limit is a hang. The results stand in docs/results; docs/simulator.md shows them.
"""

import argparse
import concurrent.futures
import csv
import pathlib
import re
import shutil
import subprocess
import tempfile

import variants

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP = "36_persistent"
# What is wrong; the text in attention.cu, which stands there once; what stands there instead.
MUTANTS = [
    ("no fence_proxy_async() before O is stored", "  fence_proxy_async();", "  "),
    ("no barrier before O is stored", "  named_barrier_sync(own_rows, 128);  // and all parts are there\n", ""),
    ("nobody waits for the last store before the CTA ends",
     "    if (threadIdx.x % 128 == 0) tma_wait_read<0>();  // O has left shared memory before the CTA gives it back\n", ""),
    ("K's tile is released before QK is done",
     "    wgmma_wait<1>(S);  // QK is done, PV goes on\n    release(shared.K_empty[n % stages]);\n",
     "    release(shared.K_empty[n % stages]);\n    wgmma_wait<1>(S);\n"),
    ("no fence before PV", "  wgmma_fence(O, P);", "  "),
    ("S is read before QK is done", "    wgmma_wait<1>(S);  // QK is done, PV goes on\n", ""),
    ("no fence_mbarrier_init()", "    fence_mbarrier_init();", "    "),
    ("no __syncthreads() after the mbarriers were made", "  __syncthreads();", "  "),
    ("nobody waits until V has landed",
     "    mbarrier_wait(shared.V_full[last % stages], parity(last));  // V of the block before has landed\n", ""),
    ("the producer does not wait until K's tile is empty",
     "    mbarrier_wait(shared.K_empty[stage], parity(n) ^ 1);  // all consumers have multiplied by what lay there\n", ""),
    ("the consumer waits for K with the wrong parity",
     "    mbarrier_wait(shared.K_full[n % stages], parity(n));  // K_j has landed",
     "    mbarrier_wait(shared.K_full[n % stages], parity(n) ^ 1);"),
    ("K's barrier expects 16 bytes too few", "mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);",
     "mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage] - 16);"),
    ("K's barrier expects 16 bytes too many", "mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage]);",
     "mbarrier_expect(shared.K_full[stage], sizeof shared.K[stage] + 16);"),
    ("nobody hands over the first turn", "named_barrier_arrive(1, 256);  // the first turn is consumer 0's", ";"),
    ("one arrival too few frees K's tile", "mbarrier_init(shared.K_empty[s], 4 * consumers<d>);",
     "mbarrier_init(shared.K_empty[s], 4 * consumers<d> - 1);"),
    ("the consumers ask for more registers than there are",
     "constexpr int consumer_registers = d == 64 ? 160 : d == 128 ? 232 : 240;",
     "constexpr int consumer_registers = d == 64 ? 160 : 248;"),
]
SHAPE = {False: ["--heads", "70", "--seq-q", "330", "--seq-k", "600", "--dim", "128"],
         True: ["--heads", "20", "--seq-q", "1024", "--seq-k", "1024", "--dim", "128"]}


def compile_mutant(build, gpu, folder, old, new):
    """Builds the mutant into folder/steps, beside a copy of the program."""
    text = variants.edited(STEP, [(old, new)])
    (folder / "steps").mkdir()
    for path in (build / "bin").glob("*"):
        if path.is_file():
            shutil.copy(path, folder)
    shutil.copy(build / f"bin/steps/{STEP}.json", folder / "steps")
    library = folder / "steps" / f"{STEP}.{'gpu' if gpu else 'simulated'}.so"
    if gpu:
        return variants.compile_for_gpu(STEP, text, build, library)
    kernel, unit = folder / "attention.cu", folder / "unit.cpp"
    kernel.write_text(text)
    unit.write_text(f'#include "{kernel}"\n#include <steps/course/step_interface_body.h>\n')
    hooks = re.search(r"set\(FLASH_HOOKS (.*?)\)", (ROOT / "steps/step.cmake").read_text(), re.S)[1].split()
    subprocess.run(["g++", *hooks, "-std=c++20", "-DSTEP=step_36", f"-I{ROOT}", f"-I{ROOT}/reference_cpu/simulator", "-fPIC",
                    "-c", unit, "-o", folder / "unit.o"], check=True)
    # Linked without the sanitizer's runtime: the simulator takes its place.
    subprocess.run(["g++", "-shared", f"-Wl,--version-script={ROOT}/steps/exports.map", folder / "unit.o",
                    build / "reference_cpu/libreference.a", folder / "libsimulator.so", "-o", library], check=True)


def run(command, seconds):
    """Exit code and output; the code is None if it did not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return None, ""


def plain_verdict(code, output):
    return "hangs" if code is None else "right" if code == 0 else "wrong" if "wrong" in output else "error"


def judge(folder, gpu):
    """Who says what: name of the judge -> verdict."""
    program = [folder / "course", "run", "36", "--device", "gpu" if gpu else "cpu"] + SHAPE[gpu]
    if not gpu:
        found = re.search("36_persistent is wrong: (.*?)\nError share", run(program, 300)[1], re.S)
        return {"simulated GPU": " ".join(found[1].replace(f"{folder.name}/", "").split()) if found else "right"}
    verdicts = []
    for _ in range(5):
        verdicts.append(plain_verdict(*run(program, 12)))
        if verdicts[-1] == "hangs":
            break
    result = {"plain run": "/".join(dict.fromkeys(verdicts))}
    for tool in ("memcheck", "racecheck", "synccheck"):
        code, output = run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] + program, 40)
        result[tool] = "hangs" if code is None else "silent" if code == 0 else "reports" if code == 9 else "wrong result"
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder of this repository")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--csv", default="mutants.csv")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()

    def one(mutant):
        what, old, new = mutant
        with tempfile.TemporaryDirectory() as folder:
            compile_mutant(args.build.resolve(), args.gpu, pathlib.Path(folder), old, new)
            verdicts = judge(pathlib.Path(folder), args.gpu)
        print(what, verdicts, flush=True)
        return [(what, who, verdict) for who, verdict in verdicts.items()]

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, open(args.csv, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["mutant", "judge", "verdict"])
        for rows in pool.map(one, MUTANTS):
            table.writerows(rows)


if __name__ == "__main__":
    main()
