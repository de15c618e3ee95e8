#!/bin/sh
# The script ./learn, on a project of one shell script in place of the course: which messages, exit codes and
# arguments pass through it, what it does about missing packages, and that a second call does nothing.
#   test_learn.sh PATH_OF_LEARN
set -u
learn=$1
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
trap 'exit 1' INT TERM
failures=0
unset CUDACXX CXX
export FLASH_PRESET=cpu

# call NAME COMMAND...: keeps out, err and code.
call() {
  name=$1; shift
  "$@" >"$place/out" 2>"$place/err" </dev/null
  code=$?
}
wrong() { echo "$name: $*"; sed 's/^/  out: /' "$place/out"; sed 's/^/  err: /' "$place/err"; failures=$((failures + 1)); }
expect_code() { [ "$code" = "$1" ] || wrong "exit code $code, not $1"; }
expect_out() { [ "$(cat "$place/out")" = "$1" ] || wrong "stdout is not '$1'"; }
expect_err() { grep -q -- "$1" "$place/err" || wrong "stderr lacks '$1'"; }
expect_silent() { [ ! -s "$place/err" ] || wrong "stderr is not empty"; }

# A project whose program prints its arguments and its directory, and ends with the code that --code names.
project="$place/a project"
mkdir -p "$project" "$place/elsewhere"
cp "$learn" "$project/learn"
cat >"$project/CMakePresets.json" <<'P'
{"version": 6, "configurePresets": [
  {"name": "cpu", "generator": "Ninja", "binaryDir": "${sourceDir}/build/cpu"},
  {"name": "cuda", "generator": "Ninja", "binaryDir": "${sourceDir}/build/cuda"}]}
P
cat >"$project/CMakeLists.txt" <<'P'
cmake_minimum_required(VERSION 3.25)
project(stub LANGUAGES NONE)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/bin/course DEPENDS program.sh
                   COMMAND sh ${CMAKE_SOURCE_DIR}/program.sh --build
                   COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/program.sh ${CMAKE_BINARY_DIR}/bin/course)
add_custom_target(course ALL DEPENDS ${CMAKE_BINARY_DIR}/bin/course)
add_custom_target(tests ALL COMMAND ${CMAKE_COMMAND} -E touch ${CMAKE_BINARY_DIR}/tests_are_built)
P
program() {
  printf '#!/bin/sh\n%s\n' "$1"
  cat <<'P'
[ "$1" != --code ] || exit "$2"
echo "in $(pwd -P)"
for argument in "$@"; do echo "<$argument>"; done
P
}
program ':' >"$project/program.sh"
chmod +x "$project/program.sh"

call "syntax" sh -n "$learn"
expect_code 0

cd "$place/elsewhere" || exit 1
here=$(pwd -P)
call "first call" "$project/learn" run --q "q file.npy" '*'
expect_code 0
expect_out "in $here
<run>
<--q>
<q file.npy>
<*>"
[ "$(cat "$place/err")" = "Building ..." ] || wrong "stderr is not the one line 'Building ...'"

call "second call" "$project/learn" list
expect_code 0
expect_out "in $here
<list>"
expect_silent

call "no arguments" "$project/learn"
expect_out "in $here"

ln -s "$project/learn" link
call "through a link" ./link x
expect_out "in $here
<x>"
expect_silent

for want in 0 1 77; do
  call "exit code" "$project/learn" --code $want
  expect_code $want
done

for n in 1 2 3 4; do "$project/learn" $n >"$place/out.$n" 2>&1 & done
wait
for n in 1 2 3 4; do grep -q "^<$n>" "$place/out.$n" || { cat "$place/out.$n"; name="four at once"; wrong "call $n failed"; }; done

mv "$project" "$place/moved project"
project="$place/moved project"
call "after a move" "$project/learn" x
expect_code 0
[ -x "$project/build/cpu/bin/course" ] && [ ! -e "$place/a project" ] || wrong "the old place was built"

sleep 0.01
program '[ "$1" != --build ] || { echo "the compiler says no"; exit 3; }' >"$project/program.sh"
call "a build that fails" "$project/learn" x
expect_code 1
expect_out ""
expect_err "the compiler says no"
program ':' >"$project/program.sh"
echo 'message(FATAL_ERROR "no such library")' >>"$project/CMakeLists.txt"
call "a configuration that fails" "$project/learn" x
expect_code 1
expect_err "no such library"
sed -i '$d' "$project/CMakeLists.txt"
call "and is repaired" "$project/learn" x
expect_code 0

[ ! -e "$project/build/cpu/tests_are_built" ] || { name="not a test"; wrong "the tests were built"; }
call "test" "$project/learn" test -R x
expect_code 0
expect_out "in $here
<test>
<-R>
<x>"
[ -e "$project/build/cpu/tests_are_built" ] || wrong "the tests were not built"

call "an unknown preset" env FLASH_PRESET=rocm "$project/learn" x
expect_code 1
expect_err "FLASH_PRESET is 'rocm'"

# Machines that lack something: a PATH of links, without the tools named.
tools="$place/tools"
mkdir "$tools"
for folder in /usr/local/bin /usr/bin /bin; do ln -s $folder/* "$tools" 2>/dev/null; done
rm -f "$tools/g++" "$tools/apt-get" "$tools/sudo" "$tools/id" "$tools/nvcc"
printf '#!/bin/sh\necho ${FAKE_ID:-1000}\n' >"$tools/id"
printf '#!/bin/sh\nexit 1\n' >"$tools/sudo"
chmod +x "$tools/id" "$tools/sudo"
lacking() { rm -rf "$project/build"; name=$1; shift; call "$name" env "$@" PATH="$tools" "$project/learn" x; }

lacking "no g++, no apt-get"
expect_code 1
expect_err "Missing (by the names of Debian's packages): g++ "
cat >"$tools/apt-get" <<P
#!/bin/sh
echo "apt-get \$*" >>"$place/apt"
[ -z "\${FAKE_APT_FAILS:-}" ] || { echo "E: no network"; exit 100; }
case "\$*" in *install*) ln -sf /usr/bin/g++ "$tools/g++" ;; esac
P
chmod +x "$tools/apt-get"
lacking "no g++, no root" FAKE_ID=1000
expect_code 1
expect_err "^Please install what is missing:  sudo apt-get update && sudo apt-get install -y g++ "
[ ! -e "$place/apt" ] || wrong "apt-get was called"
lacking "no g++, no network" FAKE_ID=0 FAKE_APT_FAILS=1
expect_code 1
expect_err "E: no network"
lacking "no g++, root" FAKE_ID=0
expect_code 0
expect_err "^Installing with apt-get: g++ "
grep -q "update" "$place/apt" && grep -q " install .*g++" "$place/apt" || wrong "apt-get was not asked to update and to install g++"

rm -f "$tools/doxygen"
call "docs without doxygen" env PATH="$tools" "$project/learn" docs
expect_code 1
expect_err "apt-get install -y doxygen"
call "test without doxygen" env PATH="$tools" "$project/learn" test
expect_code 0
expect_err "tests of the docs will be skipped"

# nvcc
fake_nvcc() { rm -f "$tools/nvcc"; printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' $1 $1 >"$tools/nvcc"; chmod +x "$tools/nvcc"; }
fake_nvcc 13.1
lacking "nvcc 13.1" -u FLASH_PRESET
expect_code 0
[ -d "$project/build/cuda" ] || wrong "the cuda preset was not taken"
if [ ! -e /usr/local/cuda/bin/nvcc ]; then
  fake_nvcc 12.4
  lacking "nvcc 12.4" -u FLASH_PRESET
  expect_code 0
  [ -d "$project/build/cpu" ] && [ ! -d "$project/build/cuda" ] || wrong "the cpu preset was not taken"
  expect_err "nvcc is version 12.4; the GPU's kernels need 13.0 or newer"
fi

[ $failures = 0 ] || { echo "$failures failures"; exit 1; }
echo "learn: all as expected"
