"""Does the site show every kernel, every name of the vocabulary and every exercise, without its answer? Doxygen's XML against
the sources.

    python3 tests/test_site.py XML           XML is the folder with Doxygen's index.xml
"""

import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def names(root):
    """(file, function): all kernels of the steps, and all wrappers of both machines."""
    found = set()
    for file in root.glob("steps/[0-9]*/attention.cu"):
        for name in re.findall(r"__global__\s+void\s+(?:__launch_bounds__\(.*?\)\s+)?(\w+)\(", file.read_text()):
            found.add((str(file.relative_to(root)), name))
    for file in root.glob("steps/hardware/*.h"):
        for name in re.findall(r"__device__ __forceinline__ [^(;]*?(\w+)\(", file.read_text()):
            found.add((str(file.relative_to(root)), name))
    for file in root.glob("reference_cpu/simulator/hardware/*.h"):
        for name in re.findall(r"(?m)^(?!using|struct|inline|static|#|/|\s)[\w:<>*& ]*?(\w+)\(", file.read_text()):
            found.add((str(file.relative_to(root)), name))
    return found


def documented(xml_folder):
    """The same from Doxygen."""
    found = set()
    for file in xml_folder.glob("*.xml"):
        for function in xml.etree.ElementTree.parse(file).iter("memberdef"):
            location = function.find("location")
            if location is not None:
                found |= {(location.get(key), function.findtext("name")) for key in ("file", "declfile")}
    return found


def on_vocabulary_page(xml_folder):
    """Name: the two codes below it."""
    page = xml.etree.ElementTree.parse(xml_folder / "vocabulary.xml")
    return {section.findtext("title"): ["".join(code.itertext()) for code in section.iter("programlisting")]
            for section in page.iter("sect2")}


def missing(root, shown, page):
    for file, name in sorted(names(root) - shown):
        yield f"{file}: {name} is not on the site"
    for file, name in sorted(names(root)):
        if file.startswith("steps/hardware/"):
            machines = 1 + any(name == other and "simulator" in place for place, other in names(ROOT))
            if len([code for code in page.get(name, []) if name in code]) < machines:
                yield f"{file}: {name} does not stand on the page of the vocabulary, with what each machine does"


def opening(text):
    """The first letters, without markup."""
    return re.sub(r"\W", "", text)[:40]


def lesson_text(xml_folder, step):
    page = xml.etree.ElementTree.parse(xml_folder / f"md_steps_{step}_README.xml")
    return re.sub(r"\W", "", "".join(page.getroot().itertext()))


def exercise_faults(file, text):
    """A lesson's page has the question and the hint, and not what the checker says to wrong answers."""
    question, *sections = re.split(r"(?m)^## ", file.read_text().partition("\n")[2])
    for section in ["Question\n" + question, *sections]:
        kind, _, body = section.partition("\n")
        if kind in ("Question", "Hint") and opening(body) not in text:
            yield f"{file}: its lesson's page lacks the {kind.lower()}"
        if kind in ("Answer", "Unsolved", "Wrong") and opening(body) in text:
            yield f"{file}: its lesson's page tells what stands under '{kind}'"


def self_test(shown, page):
    """Would it see a kernel and a wrapper that are not shown, a question that is missing and an answer that is not?"""
    told = list(exercise_faults(ROOT / "steps/10_tiling/exercises/1_traffic.md", opening("```\nbytes_asked = 635904\n```")))
    assert ["question" in told[0], "hint" in told[1], "Answer" in told[2]] == [True] * 3 and len(told) == 3, told
    with tempfile.TemporaryDirectory() as folder:
        kernel, wrapper = pathlib.Path(folder, "steps/99_new/attention.cu"), pathlib.Path(folder, "steps/hardware/new.h")
        for file, text in ((kernel, "__global__ void __launch_bounds__(threads<d>, 1)\n    new_kernel(int* x) {}\n"),
                           (wrapper, "__device__ __forceinline__ void new_instruction() {}\n")):
            file.parent.mkdir(parents=True)
            file.write_text(text)
        said = "\n".join(missing(pathlib.Path(folder), shown, page))
        assert "new_kernel is not on" in said and "new_instruction is not on" in said and "new_instruction does not" in said, said


def main():
    xml_folder = pathlib.Path(sys.argv[1])
    if not (xml_folder / "index.xml").is_file():
        print(f"There is no XML of Doxygen in {xml_folder}.")
        return 77
    shown, page = documented(xml_folder), on_vocabulary_page(xml_folder)
    self_test(shown, page)
    faults = list(missing(ROOT, shown, page))
    for file in sorted(ROOT.glob("steps/*/exercises/*.md")):
        faults += exercise_faults(file, lesson_text(xml_folder, file.parent.parent.name))
    print("\n".join(faults + [f"{len(names(ROOT))} kernels and wrappers, {len(faults)} faults"]))
    return 1 if faults or len(names(ROOT)) < 100 else 0


sys.exit(main())
