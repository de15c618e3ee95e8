# GitHub's Markdown to Doxygen's.
#   [text](attention.cu)            a link to a file in the lesson's folder  -> the page of that file
#   <!-- doxygen: \command ... -->  invisible on GitHub                      -> the command
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
{
  line = $0
  result = ""
  while (match(line, /\[[^]]*\]\([^):]*\.(cu|cpp|h)(#[^)]*)?\)/)) {
    split(substr(line, RSTART + 1, RLENGTH - 2), part, /\]\(/)
    label = part[1]
    path = folder part[2]
    sub(/#.*/, "", path)
    while (sub(/[^\/]+\/\.\.\//, "", path)) {}
    if (path !~ /exercises\//) {  # these have no page
      gsub(/`/, "", label)
      label = "@ref " path " \"" label "\""
    }
    result = result substr(line, 1, RSTART - 1) label
    line = substr(line, RSTART + RLENGTH)
  }
  print result line
}
