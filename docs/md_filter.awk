# GitHub's Markdown to Doxygen's.
#   [text](attention.cu)            a link to a file in the lesson's folder       -> the page of that file
#   [text](exercises/1_traffic.md)  no page: exercises hold their answers; data   -> the text
#   ![text](folder/picture.svg)     a picture on a line of its own              -> \image; IMAGE_PATH finds it
#   <!-- doxygen: \command ... -->  invisible on GitHub                           -> the command
#   other comments of one line      (a table right below one is none to Doxygen)  -> an empty line
BEGIN {
  folder = ARGV[1]
  if (index(folder, ENVIRON["PWD"] "/") == 1) folder = substr(folder, length(ENVIRON["PWD"]) + 2)
  sub(/[^\/]*$/, "", folder)
}
/^```/ { code = !code }
code { print; next }
/^<!-- doxygen: .* -->$/ {
  sub(/^<!-- doxygen: /, "")
  sub(/ -->$/, "")
  print
  next
}
/^<!--.*-->$/ { print ""; next }
/^!\[.*\]\(.*\.svg\)$/ { sub(/.*\//, ""); sub(/\)$/, ""); print "\\image html " $0; next }
{
  line = $0
  result = ""
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
  print result line
}
