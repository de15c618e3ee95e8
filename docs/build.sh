#!/bin/sh
# Builds the site; any warning of Doxygen's is an error, and so is a function of the kernels' vocabulary that says
# nothing about itself. Runs in the top folder.
#   docs/build.sh DOXYFILE
command -v doxygen >/dev/null || { echo "doxygen is not installed"; exit 77; }
doxygen "$1" || exit 1
# The site shows uncommented code too, so Doxygen does not ask for comments there. simt.h is the CUDA language itself.
uncommented=$({ cat "$1"; echo "INPUT = docs/namespaces.dox steps/hardware reference_cpu/simulator/hardware
EXTRACT_ALL = NO
FILE_PATTERNS = *.h *.dox
GENERATE_HTML = NO
GENERATE_XML = YES"; } | doxygen - 2>&1 | grep '(function) of namespace .* is not documented' | grep -v '/simt\.h:' | sort -u)
[ -z "$uncommented" ] || { echo "$uncommented"; exit 1; }
echo "The site is built: $(dirname "$1")/html/index.html"
