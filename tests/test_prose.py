"""Does what the lessons and pages print hold? Commands are run, and code in C++ must be code that is compiled.

    python3 tests/test_prose.py commands COURSE      COURSE is build/<preset>/bin/course
    python3 tests/test_prose.py snippets

A command is a line of a block that begins with ./learn; one behind a $ has its answer below it, and must give it. What is
not run is listed, with the reason.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("steps/*/README.md"))]

# What is not run here, by what the command says.
NOT_RUN = [
    (r"^(test|docs)\b", "it is the caller of this test"),
    (r"^run$", "test_steps runs all steps"),
    (r"^(bench|profile)\b|--device gpu", "it needs a GPU"),
    (r"\$", "it is a line of a script, on files of students"),
    (r"\bq\.npy", "it reads a file that the reader makes"),
]


def blocks(text):
    """(first line's number, language, lines) of each block, fenced or indented; an indented one has no language."""
    found, fence = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = None if fence else (number, line[3:].strip(), [])
            if fence:
                found.append(fence)
        elif fence:
            fence[2].append(line)
        elif line.startswith("    "):
            if not found or found[-1][1] or found[-1][0] + len(found[-1][2]) != number:
                found.append((number, "", []))
            found[-1][2].append(line)
    return found


def commands(text):
    """(line number, what follows ./learn, the answer that is printed below)."""
    for number, _, lines in blocks(text):
        for i, line in enumerate(lines):
            command = re.match(r"\s*(\$ )?\./learn\b(.*?)(?:  .*|#.*)?$", line)
            if command:
                below = lines[i + 1:] if command[1] else []
                end = next((j for j, text in enumerate(below) if not text.strip() or text.strip().startswith("$")), len(below))
                yield number + i, command[2].strip(), [answer for answer in below[:end]]


def squeezed(text):
    return re.sub(r"\s+", " ", text).strip()


def run(course, command, answer, folder):
    """None, or what is wrong. The last column of a table, seconds, is not compared."""
    result = subprocess.run([course, *command.split()], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    said = [squeezed(line) for line in (result.stdout + result.stderr).splitlines()]
    if not answer and result.returncode != 0:
        return f"exit code {result.returncode}: {' '.join(said)[-300:]}"
    said = [re.sub(r" [\d.]+$", "", line) for line in said]
    for line in answer:
        if re.sub(r" [\d.]+$", "", squeezed(line)) not in said:
            return f"it does not answer '{line.strip()}'"
    return None


def processor_time():
    """Of all children, however busy the machine is."""
    return os.times().children_user + os.times().children_system


def test_commands(course, pages):
    """pages: text by name. Returns the faults."""
    faults, done, seconds = [], set(), {}
    with tempfile.TemporaryDirectory() as folder:
        for page, text in pages.items():
            for number, command, answer in commands(text):
                if (command, *answer) in done:
                    continue
                done.add((command, *answer))
                reason = next((reason for pattern, reason in NOT_RUN if re.search(pattern, command)), None)
                if reason:
                    print(f"not run: ./learn {command}: {reason}")
                    continue
                start = processor_time()
                if fault := run(course, command, answer, folder):
                    faults.append(f"{page}:{number}: ./learn {command}: {fault}")
                seconds[command] = processor_time() - start
    for command in sorted(seconds, key=seconds.get)[-6:]:
        print(f"{seconds[command]:.1f} s: ./learn {command}")
    print(f"{len(seconds)} commands were run in {sum(seconds.values()):.0f} s of processor time")
    return faults


def test_snippets(pages, sources):
    faults = []
    for page, text in pages.items():
        for number, language, lines in blocks(text):
            if language in ("cpp", "c++", "cuda", "c") and squeezed("\n".join(lines)) not in sources:
                faults.append(f"{page}:{number}: this code stands in no file that is compiled. Put it into one, or take '{language}' away")
    return faults


def sources():
    folders = [ROOT / name for name in ("steps", "reference_cpu", "tests")]
    files = [file for folder in folders for end in ("cu", "h", "cpp") for file in sorted(folder.rglob(f"*.{end}"))]
    return "\n".join(squeezed(file.read_text()) for file in files)


def main():
    pages = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    if sys.argv[1] == "commands":
        planted = {"planted": "    ./learn run 99\n\n```\n$ ./learn list\nThis is not what it says\n```\n"}
        assert len(test_commands(sys.argv[2], planted)) == 2
        faults = test_commands(sys.argv[2], pages)
    else:
        assert len(test_snippets({"planted": "```cpp\nint nobody = compiled(this);\n```\n"}, "int somebody;")) == 1
        faults = test_snippets(pages, sources())
    print("\n".join(faults) if faults else "all as printed")
    return 1 if faults else 0


sys.exit(main())
