"""Writes the page of the vocabulary: every name of steps/hardware, with what the GPU does beside what the simulator does.

    python3 docs/vocabulary.py > vocabulary.md
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPU, SIMULATED = "steps/hardware", "reference_cpu/simulator/hardware"


def units(file):
    """What a header documents, in its order: name and text. A unit goes on until the next comment begins."""
    found, comment = [], False
    for line in file.read_text().partition("inline namespace")[2].partition("\n}  // namespace")[0].splitlines():
        if line.startswith("///") and not comment:
            found.append("")
        comment = line.startswith("///")
        if found:
            found[-1] += line + "\n"
    return [(name_of(text), text.rstrip()) for text in found]


def name_of(text):
    code = re.sub(r"(?m)^///.*", "", text)
    return re.search(r"(?:struct|enum class|using) (\w+)|(\w+)\(", code).expand(r"\1\2")


def with_body(text, sources):
    """A declaration with the body that stands elsewhere in its place."""
    comment, declaration = re.fullmatch(r"((?:///.*\n)*)(.*)", text, re.S).groups()
    start = re.match(r"\w[\w ]*\([^,){]*", declaration.replace("SIMULATOR_SITE_PARAMETERS", ""))
    body = start and "{" not in declaration and re.search(rf"(?m)^{re.escape(start[0])}(.*\}}$|[\s\S]*?^\}})", sources)
    return comment + body[0] if body else text


def panel(title, texts):
    print(f"\\htmlonly<div>\\endhtmlonly\n{title}\n")
    print("\n\n".join(["\\code{.cpp}", *texts, "\\endcode"]) if texts else "It needs none.")
    print("\n\\htmlonly</div>\\endhtmlonly")


def main():
    sources = "\n".join(file.read_text() for file in sorted((ROOT / SIMULATED).glob("*.cpp")))
    print("# The vocabulary {#vocabulary}\n")
    print("A kernel includes `<hardware/mma.h>` and the like. Each name exists twice: on the GPU it is one PTX instruction, on")
    print("the simulated GPU it is C++ that says what the instruction does. The include path chooses. CUDA's own language")
    print("(`threadIdx`, `__syncthreads`, shuffles, votes) comes with nvcc; the simulator has it in")
    print(f"@ref {SIMULATED}/simt.h \"simt.h\". What the simulator alone needs is left out.\n")
    for header in sorted((ROOT / GPU).glob("*.h")):
        ours = units(header)
        if not ours:
            continue
        theirs = units(ROOT / SIMULATED / header.name)
        print(f"## {header.name}\n")
        for name in dict.fromkeys(name for name, _ in ours):
            print(f"### {name}\n\n\\htmlonly<div class=\"beside\">\\endhtmlonly")
            panel(f"@ref {GPU}/{header.name} \"GPU\"", [text for n, text in ours if n == name])
            panel(f"@ref {SIMULATED}/{header.name} \"simulated GPU\"", [with_body(text, sources) for n, text in theirs if n == name])
            print("\\htmlonly</div>\\endhtmlonly\n")


main()
