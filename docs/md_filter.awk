# GitHub's Markdown to Doxygen's.
#   [text](attention.cu)            a link to a file in the lesson's folder       -> the page of that file
#   [text](exercises/1_traffic.md)  no page: exercises hold their answers; data   -> the text
#   ![text](folder/picture.svg)     a picture on a line of its own              -> \image; IMAGE_PATH finds it
#   <!-- doxygen: \command ... -->  invisible on GitHub                           -> the command
#   ```math, $`...`$                a formula                                   -> \f[ ... \f], \f$...\f$
#   other comments of one line      (a table right below one is none to Doxygen)  -> an empty line
# In a lesson the table of its exercises becomes their questions, each with its hint folded; answers stay out.
# At the end of a lesson: its diff to the step before, in colours, and links to the lessons before and after it.
BEGIN {
  folder = ARGV[1]
  if (index(folder, ENVIRON["PWD"] "/") == 1) folder = substr(folder, length(ENVIRON["PWD"]) + 2)
  sub(/[^\/]*$/, "", folder)
  lesson = folder ~ /^steps\/[0-9][0-9]_[^\/]*\/$/
}
/^```math$/ { print "\\f["; formula = 1; next }
formula && /^```$/ { print "\\f]"; formula = 0; next }
formula { print; next }
/^```/ { code = !code }
code { print; next }
/^## / { in_exercises = 0 }
lesson && /^## Exercises$/ {
  print $0 "\n\n`./learn exercise next` brings them one by one, `./learn exercise check` says right or wrong, and why.\n"
  in_exercises = 1
  next
}
in_exercises && /^\| \[/ { if (match($0, /exercises\/[^)]*/)) exercise(folder substr($0, RSTART, RLENGTH)); next }
in_exercises && /^\|/ { next }
/^<!-- doxygen: .* -->$/ {
  sub(/^<!-- doxygen: /, "")
  sub(/ -->$/, "")
  print
  next
}
/^<!--.*-->$/ { print ""; next }
/^!\[.*\]\(.*\.svg\)$/ { sub(/.*\//, ""); sub(/\)$/, ""); print "\\image html " $0; next }
{
  print translated($0)
}
function translated(line,    result, link, label, path, part) {
  line = formulas(line)
  while (match(line, /\[[^]]*\]\([^):]*\)/)) {
    link = substr(line, RSTART, RLENGTH)
    split(substr(link, 2, RLENGTH - 2), part, /\]\(/)
    label = part[1]
    path = folder part[2]
    sub(/#.*/, "", path)
    while (sub(/[^\/]+\/\.\.\//, "", path)) {}
    if (path ~ /\.(cu|cpp|h)$/) {
      gsub(/`/, "", label)
      link = "@ref " path " \"" label "\""
    } else if (path ~ /exercises\// || path !~ /\.md$/ && part[2] !~ /^#/) {
      link = label
    }
    result = result substr(line, 1, RSTART - 1) link
    line = substr(line, RSTART + RLENGTH)
  }
  return result line
}
function formulas(line) {
  while (match(line, /\$`[^`]*`\$/))
    line = substr(line, 1, RSTART - 1) "\\f$" substr(line, RSTART + 2, RLENGTH - 4) "\\f$" substr(line, RSTART + RLENGTH)
  return line
}
function exercise(file,    line, part) {
  while ((getline line < file) > 0) {
    if (line ~ /^# /) {
      print "##" line "\n"
      part = "question"
    } else if (line ~ /^## /) {
      if (part == "hint") print "\n\\htmlonly</details>\\endhtmlonly\n"
      part = line == "## Hint" ? "hint" : ""
      if (part == "hint") print "\\htmlonly<details><summary>Hint</summary>\\endhtmlonly\n"
    } else if (part) {
      print translated(line)
    }
  }
}
END {
  if (!lesson) exit
  while ((getline line < (folder "CMakeLists.txt")) > 0)
    if (match(line, /PREV [^ ]+/)) prev = substr(line, RSTART + 5, RLENGTH - 5)
  if (prev != "-") diff(prev)
  while (("ls steps/[0-9][0-9]_*/README.md" | getline path) > 0) {
    sub(/README\.md$/, "", path)
    if (found) { after = path; break }
    if (path == folder) found = 1
    else before = path
  }
  print "\n" (before ? "[← " name(before) "](../" name(before) "/README.md)" : "") (before && after ? " · " : "") \
        (after ? "[" name(after) " →](../" name(after) "/README.md)" : "")
}
function name(path) { sub(/^steps\//, "", path); sub(/\/$/, "", path); return path }
function diff(prev,    command, line, class) {
  print "\n\\htmlonly\n<details><summary>The diff to " prev "</summary><pre class=\"diff\">"
  command = "diff -u steps/" prev "/attention.cu " folder "attention.cu"
  while ((command | getline line) > 0) {
    class = line ~ /^(---|\+\+\+|@@)/ ? "where" : line ~ /^\+/ ? "added" : line ~ /^-/ ? "removed" : ""
    gsub(/&/, "\\&amp;", line)
    gsub(/</, "\\&lt;", line)
    print class ? "<span class=\"" class "\">" line "</span>" : line
  }
  print "</pre></details>\n\\endhtmlonly"
}
