#!/bin/sh
# Builds the site; any warning of Doxygen's is an error, and so is a function of the kernels' vocabulary that says
# nothing about itself. Runs in the top folder.
#   docs/build.sh DOXYFILE
for program in doxygen python3; do
  command -v $program >/dev/null || { echo "$program is not installed"; exit 77; }
done
site=$(dirname "$1")
rm -rf "$site/html" "$site/xml"  # Doxygen leaves the pages of files that are gone
python3 docs/vocabulary.py >"$site/vocabulary.md" || exit 1

# Debian's doxygen-awesome-css gives the site a style for light and dark screens; without it, it has Doxygen's own.
style=/usr/share/doxygen-awesome-css/doxygen-awesome.css
[ -e $style ] || style=
{ cat "$1"; echo "HTML_EXTRA_STYLESHEET = $style docs/site.css"; } | doxygen - || exit 1

# Of Debian's MathJax, what the pages load. Without it they show formulas as they are written.
mathjax=/usr/share/javascript/mathjax
if [ -e $mathjax/MathJax.js ]; then
  mkdir "$site/html/mathjax"
  (cd $mathjax && cp -r --parents MathJax.js extensions jax/element jax/input/TeX jax/output/SVG/jax.js jax/output/SVG/config.js \
    jax/output/SVG/autoload jax/output/SVG/fonts/TeX "$site/html/mathjax") || exit 1
fi
# Most pages have no formula, and need not load it.
grep -LE '\\[([]' "$site"/html/*.html | xargs sed -i '/text\/x-mathjax-config/,/mathjax\/MathJax.js/d'

# The tree beside the pages: Doxygen names variables after files, and "11__tensor__cores_2attention_8cu" is no name.
sed -i '1s/^var \([0-9]\)/var _\1/' "$site"/html/[0-9]*.js
sed -i "s/eval(n.replace(.*))/eval(n.replace(\/-\/g,'_').replace(\/^(?=[0-9])\/,'_'))/" "$site/html/navtree.js"

# The site shows uncommented code too, so Doxygen does not ask for comments there. simt.h is the CUDA language itself.
uncommented=$({ cat "$1"; echo "INPUT = docs/namespaces.dox steps/hardware reference_cpu/simulator/hardware
EXTRACT_ALL = NO
FILE_PATTERNS = *.h *.dox
GENERATE_HTML = NO
GENERATE_XML = YES
XML_OUTPUT = uncommented"; } | doxygen - 2>&1 | grep '(function) of namespace .* is not documented' | grep -v '/simt\.h:' | sort -u)
[ -z "$uncommented" ] || { echo "$uncommented"; exit 1; }
echo "The site is built: $site/html/index.html"
