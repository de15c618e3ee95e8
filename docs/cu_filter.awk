# Kernel files carry plain comments, for they are read as files. On the site the first block becomes the file's text and
# every block at the left margin that of the declaration below it. No line is added or removed: the line numbers of the
# source browser stay true. What Doxygen would take for markup is escaped.
BEGIN {
  file = ARGV[1]
  match(file, /[^\/]+\/[^\/]+$/)
  file = substr(file, RSTART)
}
function text(line) {
  sub(/^\/\/ ?/, "", line)
  if (line !~ /^    /) gsub(/[\\@#<>&%]/, "\\\\&", line)  # code and pictures stand indented
  return line
}
/^\/\/ ---/ { print; header = 1; next }
/^\/\/($| )/ {
  print "/// " (header ? "" : "\\file " file " ") text($0)
  header = 1
  next
}
{ header = 1; print }
